"""Debian's chromium, and the pages of daemons on several machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    sync_playwright,
)

from affinityd.cpuset import parse_list
from affinityd.machines import load
from affinityd.picture import COLORS, color
from affinityd.topology.model import Nic, Topology
from tests.support.daemons import PATIENCE, Daemon, eventually, free_port, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.node_states import with_gpus

AUDIT = re.compile(r"/audit(\?.*)?$")  #: the document's address, not that of audit.js

#: Returns the names and classes of each picture's CPUs.
CLASSES = """all => all.map(svg => [...svg.querySelectorAll(".cpu[data-name]")]
    .map(it => [it.dataset.name, it.getAttribute("class")]))"""


@dataclass(frozen=True)
class Node:
    daemon: Daemon
    origin: str


@dataclass
class Tab:
    """An open page, the addresses that the page has requested, and the errors on its console."""

    page: Page
    node: Node
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, context: BrowserContext, node: Node, query: str = "") -> Tab:
        tab = cls(context.new_page(), node)
        tab.page.on("request", lambda event: tab.requests.append(event.url))
        tab.page.on("console", tab._notes)
        tab.page.on("pageerror", lambda event: tab.errors.append(str(event)))
        tab.page.goto(f"{node.origin}/{query}")
        eventually(lambda: tab.answers[0], "the page has its first answer")
        return tab

    def _notes(self, message: ConsoleMessage) -> None:
        """Note an error, unless it says that /audit of a replayed machine has no scan."""
        if message.type == "error" and not AUDIT.search(message.location["url"]):
            self.errors.append(message.text)

    @property
    def views(self) -> list[Locator]:
        return list(self.page.locator(".view").all())

    @property
    def answers(self) -> list[str]:
        return [it.locator(".answer").inner_text() for it in self.views]

    @property
    def query(self) -> str:
        return str(self.page.evaluate("location.search"))

    @property
    def picture(self) -> Locator:
        """The first visible view's picture."""
        return self.page.locator(".view svg[role=img]:visible").first

    def drawn(self, view: int = 0) -> dict[int, set[str]]:
        """Return each CPU's CSS classes in a view's picture."""
        (classes,) = map(dict, self.views[view].locator("svg[role=img]").evaluate_all(CLASSES))
        return {int(name): {*words.split()} - {"cpu"} for name, words in classes.items()}

    def colors(self, view: int = 0) -> dict[int, str]:
        every = {color(rank) for rank in range(COLORS)}
        drawn = self.drawn(view).items()
        return {cpu: (words & every).pop() for cpu, words in drawn if words & every}

    def cpulists(self, view: int = 0) -> list[str]:
        return list(self.views[view].locator("td.list code").all_inner_texts())

    def plan(self, query: str) -> Any:  # noqa: ANN401 - a document
        return self.page.request.get(f"{self.node.origin}/plan?{query}").json()

    def shows(self, query: str, view: int = 0) -> bool:
        ranks = self.plan(query)["ranks"]
        colors = {cpu: color(it["rank"]) for it in ranks[::-1] for cpu in parse_list(it["cpulist"])}
        return (self.colors(view), self.cpulists(view)) == (colors, [it["cpulist"] for it in ranks])

    def comes_to_show(self, query: str, view: int = 0) -> None:
        eventually(lambda: self.shows(query, view), f"it shows {query}")


CHROMIUM = "/usr/bin/chromium"  #: Debian's; playwright's own cannot be installed everywhere
HOSTILE = '<img src=x onerror="document.title=1">'


def with_uuids(topology: Topology) -> Topology:
    gpus = (
        replace(it, uuid=f"GPU-{it.index}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001")
        for it in topology.gpus
    )
    return replace(topology, gpus=tuple(gpus))


def _strange() -> Topology:
    """Return a machine with names that would be active in HTML."""
    topology = machine("two-vendors")
    gpus = tuple(replace(gpu, model=HOSTILE) for gpu in topology.gpus)
    nics = (Nic("0000:99:00.0", 0, "ethernet", (HOSTILE.replace("/", ""),)),)
    return replace(topology, gpus=gpus, nics=nics)


def gpus(number: int) -> Topology:
    return with_gpus(with_uuids(load("dgx-a100")), number)


#: Machines for which a test makes the documents that the page shows.
SIZES: dict[str, Callable[[], Topology]] = {
    f"{number}-gpus": partial(gpus, number) for number in (0, 4, 8, 64)
}
MACHINES: dict[str, Callable[[], Topology]] = {
    "dgx-a100": lambda: with_uuids(load("dgx-a100")),
    "one-node": lambda: machine("cloud-vm"),
    "<b>strange": _strange,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"],  # in a container, and as root
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Node]]:
    started: dict[str, Node] = {}
    with ExitStack() as stack:

        def node(name: str) -> Node:
            if name not in started:
                folder, port = tmp_path_factory.mktemp("node"), free_port()
                root = write_tree((MACHINES | SIZES)[name](), folder / name)
                daemon = running(
                    folder, "--root", str(root), "--reserved-cpus", "0", listen=f"127.0.0.1:{port}"
                )
                started[name] = Node(stack.enter_context(daemon), f"http://127.0.0.1:{port}")
            return started[name]

        yield node


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1024, "height": 768})
    context.set_default_timeout(1000 * PATIENCE)
    yield context
    context.close()


@pytest.fixture
def open_tab(context: BrowserContext, nodes: Callable[[str], Node]) -> Callable[..., Tab]:
    return lambda name="dgx-a100", query="": Tab.open(context, nodes(name), query)
