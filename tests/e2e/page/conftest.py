"""Debian's chromium, and the pages of daemons on several machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from affinityd.machines import load
from affinityd.topology.model import Nic, Topology
from tests.e2e.page.browsing import Node, Tab
from tests.support.daemons import PATIENCE, free_port, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

CHROMIUM = "/usr/bin/chromium"  #: Debian's; playwright's own cannot be installed everywhere
HOSTILE = '<img src=x onerror="document.title=1">'


def with_uuids(topology: Topology) -> Topology:
    gpus = (
        replace(it, uuid=f"GPU-{it.index}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001")
        for it in topology.gpus
    )
    return replace(topology, gpus=tuple(gpus))


def _strange() -> Topology:
    """Return a machine whose parts have names that would act in HTML."""
    topology = machine("two-vendors")
    gpus = tuple(replace(gpu, model=HOSTILE) for gpu in topology.gpus)
    nics = (Nic("0000:99:00.0", 0, "ethernet", (HOSTILE.replace("/", ""),)),)
    return replace(topology, gpus=gpus, nics=nics)


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
                root = write_tree(MACHINES[name](), folder / name)
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
