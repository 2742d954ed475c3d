"""The JSON form of a topology: nothing is lost in it, and garbage is told from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.json_codec import decode
from affinityd.topology.document import TopologyDocument, from_document, to_document
from affinityd.topology.model import Core, Gpu, MigInstance, Nic, NumaNode, NvLinks, Topology
from tests.support.documents import in_json
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.nvlinks import dgx_1v

NUMBERS = st.integers(0, 2**40)
MAYBE_NUMBER = st.none() | NUMBERS
TEXT = st.text(max_size=12)
MAYBE_TEXT = st.none() | TEXT
TEXTS = st.lists(TEXT, max_size=3).map(tuple)

CPUS = st.frozensets(st.integers(0, 4095), min_size=1, max_size=8)
GPUS = st.builds(
    Gpu,
    index=NUMBERS,
    vendor=TEXT,
    pci_bus_id=TEXT,
    numa_node=MAYBE_NUMBER,
    numa_source=MAYBE_TEXT,
    uuid=MAYBE_TEXT,
    minor=MAYBE_NUMBER,
    render_minor=MAYBE_NUMBER,
    model=MAYBE_TEXT,
    pci_id=MAYBE_TEXT,
    pci_path=TEXTS,
    mig=st.lists(st.builds(MigInstance, uuid=TEXT), max_size=2).map(tuple),
    nvlinks=st.none() | st.lists(st.builds(NvLinks, TEXT, NUMBERS), max_size=3).map(tuple),
)
NICS = st.builds(
    Nic, pci_bus_id=TEXT, numa_node=MAYBE_NUMBER, kind=TEXT, names=TEXTS, pci_path=TEXTS
)
NODES = st.lists(
    st.builds(
        NumaNode,
        number=MAYBE_NUMBER,
        memory_bytes=MAYBE_NUMBER,
        distances=st.dictionaries(NUMBERS, st.integers(0, 255), max_size=3),
    ),
    min_size=1,
    max_size=4,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any topology at all, sensible or not: a core is on one of the nodes, and that is all."""
    nodes = draw(NODES)
    cores = st.builds(
        Core,
        cpus=CPUS.map(lambda cpus: tuple(sorted(cpus))),
        node=st.sampled_from([node.number for node in nodes]),
        package=MAYBE_NUMBER,
        die=MAYBE_NUMBER,
        llc=NUMBERS,
    )
    return Topology(
        name=draw(TEXT),
        cores=tuple(draw(st.lists(cores, max_size=4))),
        nodes=tuple(nodes),
        gpus=tuple(draw(st.lists(GPUS, max_size=3))),
        nics=tuple(draw(st.lists(NICS, max_size=2))),
        possible=draw(CPUS),
        notices=draw(TEXTS),
    )


def to_json(topology: Topology) -> dict[str, Any]:
    data: dict[str, Any] = in_json(to_document(topology))
    return data


def from_json(data: object) -> Topology:
    return from_document(decode(TopologyDocument, data, "topology"))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_machine_comes_back_as_it_was(name: str) -> None:
    assert from_json(to_json(machine(name))) == machine(name)


@given(topologies())
def test_every_topology_comes_back_as_it_was(topology: Topology) -> None:
    assert from_json(to_json(topology)) == topology


def test_it_speaks_of_a_machine_in_the_fields_words() -> None:
    data = to_json(machine("power9"))
    assert list(data) == [
        "name",
        "online",
        "possible",
        "packages",
        "nodes",
        "cores",
        "gpus",
        "nics",
        "notices",
    ]
    assert data["name"] == "power9"
    assert data["online"] == "0-15,88-103"
    assert data["possible"] == "0-175"
    assert data["packages"] == [
        {"number": 0, "cpulist": "0-15"},
        {"number": 8, "cpulist": "88-103"},
    ]
    assert data["nodes"][1] == {
        "number": 8,
        "cpulist": "88-103",
        "memory_bytes": 130812 * 2**20,
        "distances": {"0": 40, "8": 10} | {str(number): 80 for number in range(250, 256)},
    }
    assert data["nodes"][2]["cpulist"] == ""
    assert data["cores"][1] == {
        "cpulist": "4-7",
        "numa_node": 0,
        "package": 0,
        "die": None,
        "llc": 0,
    }


def test_an_adapter_tells_how_near_it_is_to_each_gpu() -> None:
    nic = to_json(machine("dgx-h100"))["nics"][5]
    assert nic["names"] == ["mlx5_9", "ibp192s0"]
    assert nic["nearness"]["0000:1b:00.0"] == "SYS"
    assert nic["nearness"]["0000:9d:00.0"] == "NODE"
    assert nic["nearness"]["0000:c3:00.0"] == "PXB"


def test_what_follows_from_the_rest_is_not_believed() -> None:
    data = to_json(machine("dgx-h100"))
    data["online"], data["packages"] = "", []
    for node in data["nodes"]:
        node["cpulist"] = ""
    for nic in data["nics"]:
        nic["nearness"] = {}
    assert from_json(data) == machine("dgx-h100")


def test_links_are_told_by_where_they_lead() -> None:
    first, *_ = to_json(dgx_1v())["gpus"]
    assert first["nvlinks"] == [
        {"pci_bus_id": "0000:07:00.0", "links": 1},
        {"pci_bus_id": "0000:0a:00.0", "links": 1},
        {"pci_bus_id": "0000:0b:00.0", "links": 2},
        {"pci_bus_id": "0000:85:00.0", "links": 2},
    ]
    assert to_json(machine("dgx-1v"))["gpus"][0]["nvlinks"] is None


def test_of_a_file_from_before_links_were_told_none_are_known() -> None:
    data = to_json(dgx_1v())
    for gpu in data["gpus"]:
        del gpu["nvlinks"]
    assert {gpu.nvlinks for gpu in from_json(data).gpus} == {None}


#: What may be unknown or empty: in the document of another release it may be missing.
OPTIONAL = {
    "nodes": {"number", "memory_bytes"},
    "cores": {"numa_node", "package", "die"},
    "nics": {"numa_node", "names", "pci_path"},
}
REQUIRED = {"gpus": {"index", "vendor", "pci_bus_id"}}


def required(data: dict[str, Any]) -> list[tuple[str | int, ...]]:
    """Return the path of every field that must be there, of the first of each kind of thing."""
    parts = [
        (kind, 0, field)
        for kind in ("nodes", "cores", "gpus", "nics")
        for field in REQUIRED.get(kind) or data[kind][0].keys() - OPTIONAL[kind]
    ]
    return [*((name,) for name in data), *sorted(parts)]


@pytest.mark.parametrize(
    "path", required(to_json(machine("dgx-h100"))), ids=lambda path: ".".join(map(str, path))
)
def test_a_missing_field_is_named(path: tuple[str | int, ...]) -> None:
    data = to_json(machine("dgx-h100"))
    inner: Any = data
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    with pytest.raises(ValueError, match=rf"^topology[^ ]* has no '{path[-1]}'$"):
        from_json(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "topology.name is 3, not a string"),
        ({"cores": [{}]}, "topology.cores[0] has no 'cpulist'"),
        ({"nodes": []}, "topology.nodes has no number 0, which CPU 0 is on"),
        ({"notices": [None]}, "topology.notices[0] is None, not a string"),
        (
            {"gpus": [{**to_json(dgx_1v())["gpus"][0], "nvlinks": [{"links": 4}]}]},
            "topology.gpus[0].nvlinks[0] has no 'pci_bus_id'",
        ),
        (
            {"possible": "0-70000"},
            "topology.possible: CPU number in '0-70000' is too large; the largest is 65535",
        ),
    ],
)
def test_garbage_is_said_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the next line compares it all
        from_json(to_json(machine("laptop")) | change)
    assert str(caught.value) == said


def test_a_core_without_a_cpu_is_none() -> None:
    data = to_json(machine("laptop"))
    data["cores"][1]["cpulist"] = ""
    with pytest.raises(ValueError, match=r"^topology\.cores\[1\]\.cpulist is empty; a core has"):
        from_json(data)


@given(JSON)
def test_no_json_that_is_no_topology_does_more_than_say_so(value: object) -> None:
    with pytest.raises(ValueError, match=r"\Atopology.*\Z"):
        from_json(value)


@given(st.data(), JSON)
def test_a_topology_with_one_thing_changed_is_read_or_refused_in_one_line(
    choice: st.DataObject, value: object
) -> None:
    data = to_json(machine("two-vendors"))
    inner: Any = data
    step: Any = choice.draw(st.sampled_from(sorted(data)))
    while isinstance(inner[step], dict | list) and inner[step] and choice.draw(st.booleans()):
        inner = inner[step]
        steps = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        step = choice.draw(st.sampled_from(list(steps)))
    inner[step] = value
    assert len(refusal(data).splitlines()) <= 1


def refusal(data: object) -> str:
    """Return what is said of data that is no topology; nothing of one."""
    try:
        from_json(data)
    except ValueError as error:
        return str(error)
    return ""
