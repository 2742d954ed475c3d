"""The picture of a machine has every part once, at its place, and a plan's marks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given

from affinityd.cpuset import parse_list
from affinityd.picture import Marks, draw, marks_of
from affinityd.picture.boxes import Box
from affinityd.picture.boxes import machine as boxes_of
from affinityd.request.parameters import parse_request
from affinityd.request.resolve import Reply, answer
from affinityd.topology.model import Node, Topology
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.strategies import machines
from tests.support.paths import REPOSITORY

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>\"'&\x1b[31m\0"


def parsed(topology: Topology, marks: Marks | None = None) -> ET.Element:
    return ET.fromstring(draw(topology, marks))  # noqa: S314 - our own


def groups(within: ET.Element, kind: str) -> list[ET.Element]:
    return [group for group in within.iter(f"{SVG}g") if kind in group.attrib["class"].split()]


def cpus(within: ET.Element) -> list[int]:
    drawn = (group.attrib for group in groups(within, "cpu"))
    return [int(attributes["data-name"]) for attributes in drawn if "data-name" in attributes]


def said(element: ET.Element) -> list[str | None]:
    return [text.text for text in element.findall(f"{SVG}text")]


def planned(topology: Topology, **parameters: str) -> Reply:
    return answer(Node(topology), parse_request(parameters.items()))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_part_of_a_machine_is_drawn_once_inside_its_parent(name: str) -> None:
    topology = machine(name)
    picture = parsed(topology)
    assert sorted(cpus(picture)) == sorted(topology.possible)
    (offline,) = groups(picture, "offline") or [ET.Element("g")]
    assert {*cpus(offline)} == topology.possible - topology.online
    assert sorted(tuple(cpus(core)) for core in groups(picture, "core")) == [
        core.cpus for core in topology.cores
    ]
    for node in groups(picture, "node"):
        heading = said(node)[0] or ""
        number = heading.partition("NUMA node ")[2].split(" ")[0]
        if number.isdigit():
            home = int(number)
            assert {*cpus(node)} == topology.cpus_of_node(home)
            gpus = {f"{gpu.vendor}:{gpu.index}" for gpu in topology.gpus if gpu.numa_node == home}
            assert {gpu.attrib["data-name"] for gpu in groups(node, "gpu")} == gpus
            nics = sum(1 for nic in topology.nics if nic.numa_node == home)
            assert len(groups(node, "nic")) == nics
    assert len(groups(picture, "gpu")) == len(topology.gpus)
    assert len(groups(picture, "nic")) == len(topology.nics)


def overlaps(box: Box) -> Iterator[str]:
    """Yield each box that overlaps its neighbor, or extends beyond its parent."""
    for place, (x, y, one) in enumerate(box.inside):
        if box.kind and (x + one.width > box.width + 0.01 or y + one.height > box.height + 0.01):
            yield f"{one.kind} {one.name} is out of its {box.kind}"
        for dx, dy, other in box.inside[:place]:
            if x < dx + other.width and dx < x + one.width:  # noqa: SIM102 - two directions
                if y < dy + other.height and dy < y + one.height:
                    yield f"{one.kind} {one.name} is on {other.kind} {other.name}"
        yield from overlaps(one)


@given(machines())
def test_every_cpu_is_drawn_once_and_no_boxes_overlap(topology: Topology) -> None:
    assert list(overlaps(boxes_of(topology))) == []
    assert Counter(cpus(parsed(topology))) == Counter(topology.possible | topology.online)


@pytest.mark.parametrize(
    "mode", ["unique_contiguous", "unique_interleaved", "node", "single_unique"]
)
def test_a_plan_is_marked_on_its_cpus_and_cores(mode: str) -> None:
    topology = machine("dgx-a100")
    reply = planned(topology, mode=mode, gpus="0,1,4", cpuset="0-60,112-255")
    picture = parsed(topology, marks_of(reply, parse_list("0,128")))
    drawn = {
        int(cpu.attrib["data-name"]): set(cpu.attrib["class"].split()) - {"cpu"}
        for cpu in groups(picture, "cpu")
        if "data-name" in cpu.attrib
    }
    first = {cpu: rank.rank for rank in reversed(reply.ranks) for cpu in rank.cpus}
    assert {cpu: words for cpu, words in drawn.items() if words} == {
        **{cpu: {"disallowed"} for cpu in range(61, 112)},
        **{cpu: {f"r{rank}"} for cpu, rank in first.items()},
        **{cpu: {"reserved"} for cpu in (0, 128)},
    }
    ranks = {core: said(core)[-1] for core in groups(picture, "core")}
    shared = {rank.rank for rank in reply.ranks if 48 in rank.cpus}
    (label,) = [text for core, text in ranks.items() if 48 in cpus(core)]
    assert label == ("r0-1" if len(shared) == 2 else "r0")


def test_the_readmes_picture_is_current() -> None:
    """`affinityd plan --machine dgx-a100 --svg docs/pictures/plan.svg` makes the picture."""
    topology = machine("dgx-a100")
    drawn = draw(topology, marks_of(planned(topology), frozenset()))
    assert (REPOSITORY / "docs/pictures/plan.svg").read_text(encoding="utf-8") == drawn


def test_hostile_names_are_escaped() -> None:
    topology = machine("dgx-a100")
    gpus = tuple(replace(gpu, model=HOSTILE, uuid=HOSTILE) for gpu in topology.gpus)
    nics = tuple(replace(nic, names=(HOSTILE,), bond=HOSTILE) for nic in topology.nics)
    text = draw(replace(topology, name=HOSTILE, gpus=gpus, nics=nics))
    picture = ET.fromstring(text)  # noqa: S314 - our own
    assert "<script" not in text
    assert picture.attrib["aria-label"].startswith(HOSTILE.replace("\x1b", "?").replace("\0", "?"))
