"""What is near to GPUs, and where a mask is, on named machines."""

from __future__ import annotations

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.topology.model import Topology
from affinityd.topology.nearness import cause_of, placement, vicinity
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

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
GPU_MEMORY = made({**NODES, 2: ""}, gpus=[1])  # node 2 is a GPU's, or an expansion
MEMORYLESS = made(NODES, gpus=[1], memoryless=[1])
DISTANCES = [("0", "1", 20), ("0", "2", 40), ("1", "2", 30)]
BARREN = made({**NODES, 2: ""}, gpus=[2], distances=DISTANCES)
DGX = machine("dgx-a100")


@pytest.mark.parametrize(
    ("topology", "gpus", "mask", "expected"),
    [
        pytest.param(TWO, "0", "4-7", "local", id="the GPU's node"),
        pytest.param(TWO, "0", "3-4", "mixed", id="some of it, and some of another"),
        pytest.param(TWO, "0", "0-6", "mixed", id="all but one CPU"),
        pytest.param(TWO, "0", "0-3", "remote", id="another node"),
        pytest.param(TWO, "0", "0-7", "unpinned", id="every online CPU"),
        pytest.param(HALF_ONLINE, "0", "0-5", "unpinned", id="CPUs that are offline do not count"),
        pytest.param(ONE, "0", "0-3", "local", id="with one node all is local"),
        pytest.param(made({0: "0-3"}, [None]), "0", "0-1", "local", id="even of an unknown GPU"),
        pytest.param(LOST, "0", "0-7", "unknown", id="an unknown GPU"),
        pytest.param(HALF_LOST, "0-1", "4-7", "unknown", id="a known and an unknown GPU"),
        pytest.param(BARREN, "0", "4-7", "local", id="without CPUs the nearest node that has some"),
        pytest.param(BARREN, "0", "0-3", "remote", id="and no farther one"),
        pytest.param(BOTH, "0-1", "0-7", "local", id="GPUs on every node"),
        pytest.param(THREE, "0-1", "4-7", "local", id="of several GPUs any one's node"),
        pytest.param(STRAY, "0", "4-7", "remote", id="the CPUs of no node"),
        pytest.param(DGX, "0-7", "0-255", "unpinned", id="DGX A100: half its nodes have no GPU"),
    ],
)
def test_placement(topology: Topology, gpus: str, mask: str, expected: str) -> None:
    near = vicinity(topology, [topology.gpus[index] for index in sorted(parse_list(gpus))])
    assert placement(topology, near, parse_list(mask)) == expected


@pytest.mark.parametrize(
    ("topology", "said", "cpus", "memory", "far_memory"),
    [
        pytest.param(TWO, "GPU 0 is on node 1", "4-7", {1}, {0}, id="the GPU's node"),
        pytest.param(BARREN, "GPU 0 is on node 2", "4-7", {1}, {0}, id="the nearest with CPUs"),
        pytest.param(LOST, "GPU 0 is on an unknown node", "", set(), set(), id="unknown"),
        pytest.param(LONE, "GPU 0 is on node 1", "0-3", {0}, set(), id="CPUs in one node"),
        pytest.param(GPU_MEMORY, "GPU 0 is on node 1", "4-7", {1}, {0}, id="a node without CPUs"),
        pytest.param(MEMORYLESS, "GPU 0 is on node 1", "4-7", {0}, {1}, id="a node without memory"),
        pytest.param(HALF_ONLINE, "GPU 0 is on node 1", "4-5", {1}, {0}, id="online CPUs alone"),
        pytest.param(THREE, "GPUs 0-1 are on nodes 0-1", "0-7", {0, 1}, {2}, id="several"),
    ],
)
def test_near_cpus_and_near_memory(
    topology: Topology, said: str, cpus: str, memory: set[int], far_memory: set[int]
) -> None:
    near = vicinity(topology, topology.gpus)
    found = (str(near), format_list(near.cpus), set(near.memory), set(near.far_memory))
    assert found == (said, cpus, memory, far_memory)


@pytest.mark.parametrize(
    ("topology", "masks", "cpuset", "granted", "expected"),
    [
        pytest.param(TWO, "4-7 5", "0-7", None, None, id="near ones"),
        pytest.param(TWO, "0-3", "0-7", None, "mask", id="its cpuset has near CPUs"),
        pytest.param(TWO, "0-3", None, None, "mask", id="the cpuset is not known"),
        pytest.param(TWO, "0-3", "0-3", None, "allocation", id="its cpuset has no near CPU"),
        pytest.param(TWO, "2-7 3", "0-7", "2-7", "allocation", id="far ones that were granted"),
        pytest.param(TWO, "1-7 3", "0-7", "2-7", "mask", id="more than was granted"),
        pytest.param(TWO, "0-7", "0-7", None, "unpinned", id="the whole machine"),
        pytest.param(TWO, "0-3 0-7", "0-7", None, "unpinned", id="a thread on the whole machine"),
        pytest.param(TWO, "0-7", "0-7", "0-7", "allocation", id="the whole machine, as granted"),
        pytest.param(LOST, "0-3", "0-3", None, None, id="the GPU may be anywhere: none is far"),
    ],
)
def test_the_cause_of_far_masks(
    topology: Topology, masks: str, cpuset: str | None, granted: str | None, expected: str | None
) -> None:
    near = vicinity(topology, topology.gpus)
    placements = {mask: placement(topology, near, mask) for mask in map(parse_list, masks.split())}
    allowed, given = (None if text is None else parse_list(text) for text in (cpuset, granted))
    assert cause_of(placements, near.cpus, allowed, given) == expected
