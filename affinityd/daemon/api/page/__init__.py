"""The node's page for browsers: its HTML, its files and their paths, and the plan as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from shlex import quote
from string import Template
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from affinityd import __version__
from affinityd.config.settings import Settings
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.picture import Marks, draw_within, stylesheet
from affinityd.request.parameters import PARAMETERS
from affinityd.text import printable
from affinityd.topology.model import Gpu, Node, Topology
from affinityd.topology.rdma import nics_of_gpus
from affinityd.topology.words import gpu_word, totals, tree

HEADERS = {
    # The page loads nothing from elsewhere, sends nothing elsewhere, runs no script and uses no
    # style inside a document, and is in no frame: CSP Level 3; Trusted Types.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept",
}

#: The options in which two plans, side by side, may differ.
COMPARED_OPTIONS = ("mode", "scope", "multithreading", "balanced", "share")


def page_routes(
    watcher: TopologyWatcher, settings: Settings, listed: Callable[[], str]
) -> list[Route]:
    """Return / and its files: browsers get the page, other clients what `listed` returns."""
    last: tuple[Node, str] | None = None

    async def root(request: Request) -> Response:
        nonlocal last
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(listed(), headers={"vary": "accept"})
        await watcher.refresh()
        if last is None or last[0] is not watcher.node:  # made once for each node: plans would wait
            last = watcher.node, page(watcher.node, settings)
        return HTMLResponse(last[1], headers=HEADERS)

    texts = {"picture.css": stylesheet()}
    for name in ("page.js", "picture.js", "audit.js", "processes.js", "elements.js", "page.css"):
        texts[name] = (files(__package__) / name).read_text(encoding="utf-8")

    async def file(request: Request) -> Response:
        name = request.url.path[1:]
        media_type = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(texts[name], media_type=media_type, headers=HEADERS)

    return [Route("/", root), *(Route(f"/{name}", file) for name in texts)]


def page(node: Node, settings: Settings) -> str:
    """Return the HTML of a node's page."""
    topology = node.topology
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        version=escape(__version__),
        name=_text(topology.name),
        totals=_text(", ".join(totals(topology))),
        node=escape(topology.name),
        generation=node.generation,
        interval=settings.scan_interval or 0,
        forward=_text(
            f"ssh -N -L {quote(f'127.0.0.1:9465:{settings.socket}')} {quote(topology.name)}"
        ),
        gpus="\n".join(_checkbox(topology, gpu) for gpu in topology.gpus),
        options="\n".join(_select(name, "") for name in COMPARED_OPTIONS),
        # page.js uses this prefix, too, for the second plan's options.
        other_options="\n".join(_select(name, "b.") for name in COMPARED_OPTIONS),
        pictures=draw_within(topology, Marks(node.reserved)),
        words="\n".join(_text(line) for line in tree(topology)),
        notices="\n".join(f"<li>{_text(notice)}</li>" for notice in topology.notices),
    )


def gpu_entry(topology: Topology, gpu: Gpu) -> str:
    """Return a GPU as a plan's `gpus` names it: its index, else its UUID or PCI bus id."""
    if gpu.vendor == topology.vendor:
        return str(gpu.index)
    return gpu.uuid or gpu.pci_bus_id


def _checkbox(topology: Topology, gpu: Gpu) -> str:
    key = _text("{}:{}".format(*gpu.key))
    entry = _text(gpu_entry(topology, gpu))
    name = _text(f"{gpu_word(topology, gpu)} {gpu.index}")
    near = nics_of_gpus(topology)[gpu.key].best()
    nics = ", ".join(f"{nic.port.device} {nic.link}" for nic in near)
    names = f'data-uuid="{_text(gpu.uuid or "")}" data-pci="{_text(gpu.pci_bus_id)}"'
    names += f' data-nics="{_text(nics)}"'
    return (
        f'<label class="choice"><input type="checkbox" data-gpu="{key}" {names} value="{entry}"> '
        f"{name}</label>"
    )


def _select(name: str, prefix: str) -> str:
    parameter = PARAMETERS[name]
    default, *others = _values(parameter.schema)
    options = "".join(f"<option>{word}</option>" for word in others)
    return (
        f'<label title="{_text(parameter.help)}">{name} '
        f'<select name="{prefix}{name}" data-default="{default}">'
        f'<option value="">{default}</option>{options}</select></label>'
    )


def _values(schema: Mapping[str, Any]) -> list[str]:
    """Return a parameter's values, the default first."""
    default = schema["default"]
    if isinstance(default, bool):
        return [str(default).lower(), str(not default).lower()]
    others = [word for word in schema["enum"] if word != default]
    return [default, *others]


def _text(text: str) -> str:
    return escape(printable(text))
