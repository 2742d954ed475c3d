"""What is near to GPUs, and where a mask is, on named machines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.topology.model import Topology
from affinityd.topology.nearness import cause_of, placement, vicinity
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1])
THREE = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[0, 1])
LONE = made({0: "0-3", 1: ""}, gpus=[1])  # CPUs in one node only
LOST = made({0: "0-3", 1: "4-7"}, gpus=[None])
STRAY = made({0: "0-3"}, gpus=[0], packages={0: "0-7"})  # CPUs 4-7 are in no node
BARREN = made(
    {0: "0-3", 1: "4-7", 2: ""},
    gpus=[2],
    distances=[("0", "1", 20), ("0", "2", 40), ("1", "2", 30)],
)


@pytest.mark.parametrize(
    ("topology", "gpus", "mask", "expected"),
    [
        pytest.param(TWO, "0", "4-7", "local", id="the GPU's node"),
        pytest.param(TWO, "0", "5", "local", id="a part of it"),
        pytest.param(TWO, "0", "3-4", "mixed", id="some of it, and some of another"),
        pytest.param(TWO, "0", "0-6", "mixed", id="all but one CPU"),
        pytest.param(TWO, "0", "0-3", "remote", id="another node"),
        pytest.param(TWO, "0", "0-7", "unpinned", id="every online CPU"),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, [1], online="0-5"),
            "0",
            "0-5",
            "unpinned",
            id="CPUs that are offline do not count",
        ),
        pytest.param(made({0: "0-3"}, [0]), "0", "0-3", "local", id="with one node all is local"),
        pytest.param(LONE, "0", "0-3", "local", id="with CPUs in one node only, too"),
        pytest.param(made({0: "0-3"}, [None]), "0", "0-1", "local", id="even of an unknown GPU"),
        pytest.param(LOST, "0", "0-7", "unknown", id="an unknown GPU"),
        pytest.param(
            BARREN, "0", "4-7", "local", id="of a node without CPUs the nearest that has some"
        ),
        pytest.param(BARREN, "0", "0-3", "remote", id="and no farther one"),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, [0, 1]), "0,1", "0-7", "local", id="GPUs on every node"
        ),
        pytest.param(THREE, "0,1", "4-7", "local", id="of several GPUs any one's node"),
        pytest.param(THREE, "0,1", "0-8", "mixed", id="several GPUs' nodes and one more"),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, [0, None]),
            "0,1",
            "4-7",
            "unknown",
            id="of a known and an unknown GPU, which may be anywhere",
        ),
        pytest.param(STRAY, "0", "4-7", "remote", id="the CPUs of no node"),
        pytest.param(
            machine("dgx-a100"), "0", "48-63,176-191", "local", id="DGX A100: GPU 0 is on node 3"
        ),
        pytest.param(
            machine("dgx-a100"), "0", "0-15,128-143", "remote", id="DGX A100: and not on node 0"
        ),
        pytest.param(
            machine("dgx-a100"),
            "all",
            "0-255",
            "unpinned",
            id="DGX A100: half its nodes have no GPU",
        ),
        pytest.param(machine("mi250x"), "4", "0-63", "mixed", id="MI250X: half of the CPUs"),
        pytest.param(
            machine("flat"), "all", "0", "unknown", id="a machine that says of no GPU where it is"
        ),
    ],
)
def test_placement(topology: Topology, gpus: str, mask: str, expected: str) -> None:
    chosen = [gpu for gpu in topology.gpus if gpus == "all" or gpu.index in parse_list(gpus)]
    near = vicinity(topology, chosen)
    assert placement(topology, near, parse_list(mask)) == expected


@pytest.mark.parametrize(
    ("topology", "cpus", "memory", "far_memory"),
    [
        pytest.param(TWO, "4-7", {1}, {0}, id="the GPU's node"),
        pytest.param(BARREN, "4-7", {1}, {0}, id="the nearest node that has CPUs"),
        pytest.param(LOST, "", set(), set(), id="of an unknown place nothing is near, or far"),
        pytest.param(LONE, "0-3", {0}, set(), id="with CPUs in one node nothing is far"),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, [1], memoryless=[1]),
            "4-7",
            {0},
            {1},
            id="the memory next to a node without",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, [1], online="0-5"), "4-5", {1}, {0}, id="online CPUs alone"
        ),
    ],
)
def test_near_are_cpus_and_memory(
    topology: Topology, cpus: str, memory: set[int], far_memory: set[int]
) -> None:
    near = vicinity(topology, topology.gpus)
    found = (format_list(near.cpus), set(near.memory), set(near.far_memory))
    assert found == (cpus, memory, far_memory)


def test_memory_that_was_planned_is_near_wherever_it_is() -> None:
    near = vicinity(TWO, TWO.gpus, [0, None])
    assert (set(near.memory), set(near.far_memory)) == ({0, 1}, set())


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (TWO, "GPU 0 is on node 1"),
        (THREE, "GPUs 0-1 are on nodes 0-1"),
        (LOST, "GPU 0 is on an unknown node"),
    ],
)
def test_it_is_said_in_a_few_words(topology: Topology, said: str) -> None:
    assert str(vicinity(topology, topology.gpus)) == said


NEAR = parse_list("4-7")


@pytest.mark.parametrize(
    ("masks", "cpuset", "granted", "expected"),
    [
        pytest.param(["4-7", "5"], "0-7", None, None, id="near ones"),
        pytest.param(["0-3"], "0-7", None, "mask", id="its cpuset has near CPUs, its mask others"),
        pytest.param(["0-3", "4-7"], "0-7", None, "mask", id="of one thread alone"),
        pytest.param(["0-3"], None, None, "mask", id="the cpuset is not known"),
        pytest.param(["0-3"], "0-3", None, "allocation", id="its cpuset has no near CPU"),
        pytest.param(["2-7", "3"], "0-7", "2-7", "allocation", id="far ones that were granted"),
        pytest.param(["1-7", "3"], "0-7", "2-7", "mask", id="more than was granted"),
        pytest.param(["0-7"], "0-7", None, "unpinned", id="the whole machine"),
        pytest.param(["0-3", "0-7"], "0-7", None, "unpinned", id="a thread on the whole machine"),
        pytest.param(["0-7"], "0-7", "0-7", "allocation", id="the whole machine, as granted"),
    ],
)
def test_why_masks_are_far(
    masks: Sequence[str], cpuset: str | None, granted: str | None, expected: str | None
) -> None:
    near = vicinity(TWO, TWO.gpus)
    assert near.cpus == NEAR
    placements = {mask: placement(TWO, near, mask) for mask in map(parse_list, masks)}
    allowed, given = (None if text is None else parse_list(text) for text in (cpuset, granted))
    assert cause_of(placements, near.cpus, allowed, given) == expected


def test_of_a_gpu_that_may_be_anywhere_nothing_is_far() -> None:
    near = vicinity(LOST, LOST.gpus)
    mask = parse_list("0-3")
    placements = {mask: placement(LOST, near, mask)}
    assert cause_of(placements, near.cpus, parse_list("0-3"), None) is None
