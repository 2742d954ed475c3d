"""What is near the GPUs of a machine, and the placement of a mask."""

import pickle
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.topology.model import Gpu, GpuKey, Nic, Topology, keys_before
from affinityd.topology.nearness import cause_of, placement, vicinity
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

Nodes = Sequence[int | None]

#: Node 1 has no CPUs, node 3 no memory; CPUs 8-9 are in no node.
ODD = made(
    {0: "0-3", 1: "", 3: "4-7"},
    gpus=[1],
    packages={0: "0-9"},
    memoryless=[3],
    distances=[("0", "1", 20), ("1", "3", 30), ("0", "3", 40)],
)


def test_a_node_has_its_cores_in_order_and_its_cpus() -> None:
    assert [core.cpus for core in machine("dgx-1v").node_cores[1]][:2] == [(20, 60), (21, 61)]
    cpus = {number: format_list(ODD.cpus_of_node(number)) for number in (0, 1, 3, None, 17)}
    assert cpus == {0: "0-3", 1: "", 3: "4-7", None: "8-9", 17: ""}
    assert ODD.nodes_with_cpus == (0, 3, None)
    assert [it.order for it in ODD.nodes] == [(False, 0), (False, 1), (False, 3), (True, 0)]


def test_only_the_fields_of_a_topology_are_pickled() -> None:
    sent = made({0: "0-3", 1: "4-7"}, gpus=[1])
    assert len(sent.online) == 8  # the computed value is kept
    assert pickle.loads(pickle.dumps(sent)) == sent  # noqa: S301 - its own
    assert sent.__getstate__().keys() == {field.name for field in fields(sent)}


def test_a_missing_distance_is_farthest() -> None:
    assert (ODD.distance(0, 3), ODD.distance(3, 3)) == (40, 10)
    unknown = (0, None), (None, 0), (0, 17), (17, 0)
    assert {ODD.distance(*ends) for ends in unknown} == {float("inf")}


@pytest.mark.parametrize(
    ("start", "candidates", "nearest"),
    [
        (0, [0, 3], (0,)),
        (1, [0, 3], (0,)),
        (3, [0, None], (0,)),  # a node with a distance is nearer than one without
        (1, [None], (None,)),  # a lone node is nearest
        (17, [0, 3], (0, 3)),  # a node without distances is equally near to all
        (None, [0, None], (0, None)),
    ],
)
def test_the_nearest_nodes_are_found(start: int | None, candidates: Nodes, nearest: Nodes) -> None:
    assert ODD.nearest(start, candidates) == nearest


@pytest.mark.parametrize(
    ("topology", "home", "node"),
    [
        (machine("dgx-a100"), 3, 3),  # a node of unknown memory is taken to have some
        (machine("threadripper-2990wx"), 2, 2),
        (machine("threadripper-2990wx"), 1, 0),  # without memory: the nearest node, then the lowest
        (machine("gh200x4"), 1, 1),  # GPU memory is no nearer than a node's own
        (machine("stray-cpus"), None, None),  # the CPUs of no node have no memory node
        (machine("gh200x4"), 12, 1),  # a GPU that the kernel puts onto its own memory's node
        (made({0: "0", 1: "1", 2: ""}, memoryless=[1], distances=[("1", "2", 11)]), 1, 0),
        (made({0: "0", 1: "1", 2: ""}, memoryless=[0, 1]), 1, 2),  # no other node has memory
        (made({0: "0", 1: "1"}, memoryless=[0, 1]), 1, 1),
    ],
)
def test_the_memory_node_is_the_home_node_or_the_nearest_with_memory(
    topology: Topology, home: int | None, node: int | None
) -> None:
    assert topology.memory_node(home) == node


@pytest.mark.parametrize(
    ("gpu", "nic", "node", "word"),
    [
        ("h0/switch/port1/GPU", "h0/switch/port2/NIC", 0, "PIX"),
        ("h0/port/GPU", "h0/port/NIC", 0, "PIX"),
        ("h0/root/switch1/port/GPU", "h0/root/switch2/port/NIC", 0, "PXB"),
        ("h0/port1/GPU", "h0/port2/NIC", 0, "PHB"),
        ("h0/GPU", "h1/NIC", 0, "NODE"),
        ("h0/GPU", "h1/NIC", 1, "SYS"),
        ("h0/GPU", "h1/NIC", None, "SYS"),
    ],
)
def test_the_bridges_above_a_nic_tell_how_near_it_is(
    gpu: str, nic: str, node: int | None, word: str
) -> None:
    one = Gpu(0, "nvidia", "GPU", 0, pci_path=tuple(gpu.split("/")))
    other = Nic("NIC", node, "ethernet", pci_path=tuple(nic.split("/")))
    assert machine("laptop").nearness(one, other) == word
    unplaced = replace(one, numa_node=None), replace(other, numa_node=None)
    assert machine("laptop").nearness(*unplaced) == (word if word != "NODE" else "SYS")


NODES = {0: "0-3", 1: "4-7"}
TWO = made(NODES, gpus=[1])
BOTH = made(NODES, gpus=[0, 1])
THREE = made({**NODES, 2: "8-11"}, gpus=[0, 1])
ONE = made({0: "0-3"}, gpus=[0])
LONE = made({0: "0-3", 1: ""}, gpus=[1])  # CPUs in one node only
LOST = made(NODES, gpus=[None])
HALF_LOST = made(NODES, gpus=[0, None])
STRAY = made({0: "0-3"}, gpus=[0], packages={0: "0-7"})  # CPUs 4-7 are in no node
HALF_ONLINE = made(NODES, gpus=[1], online="0-5")
BEHIND_0 = made({**NODES, 2: ""}, [1], distances=[("0", "1", 20), ("0", "2", 14), ("1", "2", 24)])
CXL = made({**NODES, 2: ""}, [1], distances=[("0", "1", 20), ("0", "2", 24), ("1", "2", 14)])
HIDDEN = made({}, gpus=[None], packages={0: "0-3", 1: "4-7"})
HIDDEN_IN_ONE = made({}, gpus=[None], packages={0: "0-7"})
GRACE = replace(CXL.gpus[0], model="NVIDIA GH200 120GB")
GPU_MEMORY = replace(CXL, gpus=(GRACE,))
MEMORYLESS = made(NODES, gpus=[1], memoryless=[1])
DISTANCES = [("0", "1", 20), ("0", "2", 40), ("1", "2", 30)]
BARREN = made({**NODES, 2: ""}, gpus=[2], distances=DISTANCES)
DGX = machine("dgx-a100")


@pytest.mark.parametrize(
    ("topology", "gpus", "mask", "expected"),
    [
        pytest.param(TWO, "0", "4-7", "local", id="the GPU's node"),
        pytest.param(TWO, "0", "3-4", "mixed", id="some near and some far CPUs"),
        pytest.param(TWO, "0", "0-6", "mixed", id="all but one CPU"),
        pytest.param(TWO, "0", "0-3", "remote", id="another node"),
        pytest.param(TWO, "0", "0-7", "unpinned", id="every online CPU"),
        pytest.param(HALF_ONLINE, "0", "0-5", "unpinned", id="CPUs that are offline do not count"),
        pytest.param(ONE, "0", "0-3", "local", id="with one node all is local"),
        pytest.param(made({0: "0-3"}, [None]), "0", "0-1", "local", id="one node, unknown GPU"),
        pytest.param(LOST, "0", "0-7", "unknown", id="an unknown GPU"),
        pytest.param(HIDDEN, "0", "0-3", "unknown", id="several packages, and no node is shown"),
        pytest.param(HIDDEN_IN_ONE, "0", "0-3", "local", id="one package, and no node is shown"),
        pytest.param(HALF_LOST, "0-1", "4-7", "unknown", id="a known and an unknown GPU"),
        pytest.param(BARREN, "0", "4-7", "local", id="the nearest node that has CPUs"),
        pytest.param(BARREN, "0", "0-3", "remote", id="a farther node that has CPUs"),
        pytest.param(BOTH, "0-1", "0-7", "local", id="GPUs on every node"),
        pytest.param(THREE, "0-1", "4-7", "local", id="the node of any of several GPUs"),
        pytest.param(STRAY, "0", "4-7", "remote", id="the CPUs of no node"),
        pytest.param(DGX, "0-7", "0-255", "unpinned", id="DGX A100: half its nodes have no GPU"),
    ],
)
def test_masks_have_placements(topology: Topology, gpus: str, mask: str, expected: str) -> None:
    near = vicinity(topology, [topology.gpus[index] for index in sorted(parse_list(gpus))])
    assert placement(topology, near, parse_list(mask)) == expected


@pytest.mark.parametrize(
    ("topology", "said", "cpus", "memory", "far_memory"),
    [
        pytest.param(TWO, "GPU 0 is on node 1", "4-7", {1}, {0}, id="the GPU's node"),
        pytest.param(BARREN, "GPU 0 is on node 2", "4-7", {1, 2}, {0}, id="nearest node with CPUs"),
        pytest.param(LOST, "GPU 0 is on an unknown node", "", set(), set(), id="an unknown node"),
        pytest.param(LONE, "GPU 0 is on node 1", "0-3", {0, 1}, set(), id="CPUs in one node"),
        pytest.param(GPU_MEMORY, "GPU 0 is on node 1", "4-7", {1}, {0}, id="memory of a GPU"),
        pytest.param(CXL, "GPU 0 is on node 1", "4-7", {1, 2}, {0}, id="memory without CPUs"),
        pytest.param(BEHIND_0, "GPU 0 is on node 1", "4-7", {1}, {0, 2}, id="behind other CPUs"),
        pytest.param(MEMORYLESS, "GPU 0 is on node 1", "4-7", {0}, {1}, id="a node without memory"),
        pytest.param(HALF_ONLINE, "GPU 0 is on node 1", "4-5", {1}, {0}, id="online CPUs alone"),
        pytest.param(THREE, "GPUs 0-1 are on nodes 0-1", "0-7", {0, 1}, {2}, id="several GPUs"),
    ],
)
def test_gpus_have_near_cpus_near_memory_and_far_memory(
    topology: Topology, said: str, cpus: str, memory: set[int], far_memory: set[int]
) -> None:
    near = vicinity(topology, topology.gpus)
    found = (str(near), format_list(near.cpus), set(near.memory), set(near.far_memory))
    assert found == (said, cpus, memory, far_memory)


@pytest.mark.parametrize(
    ("topology", "masks", "cpuset", "granted", "expected"),
    [
        pytest.param(TWO, "4-7 5", "0-7", None, None, id="near CPUs"),
        pytest.param(TWO, "0-3", "0-7", None, "mask", id="its cpuset has near CPUs"),
        pytest.param(TWO, "0-3", None, None, "mask", id="the cpuset is not known"),
        pytest.param(TWO, "0-3", "0-3", None, "allocation", id="its cpuset has no near CPU"),
        pytest.param(TWO, "2-7 3", "0-7", "2-7", "allocation", id="far CPUs that were granted"),
        pytest.param(TWO, "1-7 3", "0-7", "2-7", "mask", id="more than was granted"),
        pytest.param(TWO, "0-7", "0-7", None, "unpinned", id="the whole machine"),
        pytest.param(TWO, "0-3 0-7", "0-7", None, "unpinned", id="a thread on the whole machine"),
        pytest.param(TWO, "0-7", "0-7", "0-7", "allocation", id="the whole machine, as granted"),
        pytest.param(LOST, "0-3", "0-3", None, None, id="the GPU may be anywhere: no CPU is far"),
    ],
)
def test_each_far_mask_has_a_cause(
    topology: Topology, masks: str, cpuset: str | None, granted: str | None, expected: str | None
) -> None:
    near = vicinity(topology, topology.gpus)
    placements = {mask: placement(topology, near, mask) for mask in map(parse_list, masks.split())}
    allowed, given = (None if text is None else parse_list(text) for text in (cpuset, granted))
    assert cause_of(placements, near.cpus, allowed, given) == expected


def parts(*places: str) -> Topology:
    """Return a machine with GPUs at these PCI addresses; parts of a GPU share an address."""
    first = ONE.gpus[0]
    gpus = (replace(first, index=it, pci_bus_id=place) for it, place in enumerate(places))
    return replace(ONE, gpus=tuple(gpus))


@pytest.mark.parametrize(
    ("before", "now", "keys"),
    [
        ("ab", "ab", {0: 0, 1: 1}),
        ("ab", "b", {0: 1}),
        ("b", "ab", {1: 0}),
        ("a", "aa", {0: 0}),  # counters of a divided GPU are not those of its parts
        ("ab", "aabb", {0: 0, 2: 1}),
        ("aa", "a", {0: 0}),
    ],
)
def test_a_gpu_keeps_its_key_by_its_address_and_no_two_gpus_have_one_key(
    before: str, now: str, keys: dict[int, int]
) -> None:
    def key(index: int) -> GpuKey:
        return ONE.gpus[0].vendor, index

    expected = {key(index): key(other) for index, other in keys.items()}
    assert keys_before(parts(*before), parts(*now)) == expected
