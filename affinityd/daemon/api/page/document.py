"""The HTML of the page: its template, filled with the machine and the parameters of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from shlex import quote
from string import Template
from typing import Any

from affinityd import __version__
from affinityd.picture import Marks, draw_within, sentences
from affinityd.request.parameters import PARAMETERS
from affinityd.text import printable
from affinityd.topology.model import Gpu, Node, Topology
from affinityd.topology.words import gpu_word, totals

#: The options that two plans, side by side, may differ in.
OPTIONS = ("mode", "scope", "multithreading", "balanced", "share")
OTHER = "b."  #: before the names of the second plan's options


def page(node: Node, socket: str) -> str:
    """Return the page of a node; `socket`: the daemon's, over which it names processes."""
    topology = node.topology
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        version=escape(__version__),
        name=_text(topology.name),
        totals=_text(", ".join(totals(topology))),
        generation=node.generation,
        forward=_text(f"ssh -N -L {quote(f'127.0.0.1:9465:{socket}')} {quote(topology.name)}"),
        gpus="\n".join(_checkbox(topology, gpu) for gpu in topology.gpus),
        options="\n".join(_select(name, "") for name in OPTIONS),
        other_options="\n".join(_select(name, OTHER) for name in OPTIONS),
        pictures=draw_within(topology, Marks(node.reserved)),
        sentences="\n".join(f"<li>{_text(it)}</li>" for it in sentences(topology)),
        notices="\n".join(f"<li>{_text(it)}</li>" for it in topology.notices),
    )


def gpu_entry(topology: Topology, gpu: Gpu) -> str:
    """Return a GPU as a plan's `gpus` names it: its index, else its UUID or PCI bus id."""
    return str(gpu.index) if gpu.vendor == topology.vendor else gpu.uuid or gpu.pci_bus_id


def _checkbox(topology: Topology, gpu: Gpu) -> str:
    key = _text("{}:{}".format(*gpu.key))
    entry = _text(gpu_entry(topology, gpu))
    name = _text(f"{gpu_word(topology, gpu)} {gpu.index}")
    names = f'data-uuid="{_text(gpu.uuid or "")}" data-pci="{_text(gpu.pci_bus_id)}"'
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


def _values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a parameter's values, the default first."""
    every = [schema["default"], *schema.get("enum", (True, False))]
    return (str(it).lower() if isinstance(it, bool) else it for it in dict.fromkeys(every))


def _text(text: str) -> str:
    return escape(printable(text))
