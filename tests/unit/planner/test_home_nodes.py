"""Home nodes and locality, as a caller is told of them."""

from __future__ import annotations

import pytest

from affinityd.planner.domains import home_nodes, locality, usable
from affinityd.topology.model import Core, Topology
from tests.support.asking import ask, codes, homes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

TWO = {0: "0-3", 1: "4-7"}
#: Node 2 has no CPUs; 0 and 1 are as near to it as `near` says.
BARREN = {0: "0-3", 1: "4-7", 2: ""}
EVEN_ROWS = [("0", "1", 20), ("0-1", "2", 30)]
ODD_ROWS = [("0", "1", 20), ("0", "2", 40), ("1", "2", 30)]


@pytest.mark.parametrize(
    ("topology", "cpuset", "expected"),
    [
        pytest.param(made(TWO, gpus=[1, 0]), "0-7", [1, 0], id="a GPU's own node is its home"),
        pytest.param(made(TWO, gpus=[0, 1]), "3-7", [0, 1], id="one allowed CPU is enough"),
        pytest.param(
            made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[0], distances=ODD_ROWS),
            "4-11",
            [1],
            id="without an allowed CPU the nearest node is",
        ),
        pytest.param(
            made(BARREN, gpus=[2], distances=ODD_ROWS),
            "0-7",
            [1],
            id="a node without CPUs has distances too",
        ),
        pytest.param(
            made(BARREN, gpus=[2, 2, 2, 2], distances=EVEN_ROWS),
            "0-7",
            [0, 1, 0, 1],
            id="of nodes as near the one that is home to fewer, then the lower",
        ),
        pytest.param(
            made(BARREN, gpus=[2, 0, 0], distances=EVEN_ROWS),
            "0-7",
            [1, 0, 0],
            id="ranks without a choice are placed before those with one",
        ),
        pytest.param(
            made(BARREN, gpus=[2, 2], distances=[("0", "2", 30)]),
            "0-7",
            [0, 0],
            id="a missing distance is farthest",
        ),
        pytest.param(
            made(BARREN, gpus=[2, 2]), "0-7", [0, 1], id="nodes of missing distance are as far"
        ),
        pytest.param(
            made(TWO, gpus=[None, None, None]), "0-7", [0, 1, 0], id="unknown GPUs are spread"
        ),
        pytest.param(
            made(TWO, gpus=[None, 0, None]),
            "0-7",
            [1, 0, 0],
            id="unknown GPUs go where fewest are, the known ones first",
        ),
        pytest.param(
            made(TWO, gpus=[None, None]), "4-7", [1, 1], id="unknown GPUs go where CPUs are allowed"
        ),
        pytest.param(
            made({0: "0-3"}, gpus=[0, None], packages={0: "0-7"}),
            "0-7",
            [0, None],
            id="the CPUs of no node are a node for unknown GPUs",
        ),
        pytest.param(
            made(BARREN, gpus=[2], packages={0: "0-11"}, distances=[("1", "2", 99)]),
            "0-3,8-11",
            [0],
            id="the CPUs of no node are last among the farthest",
        ),
        pytest.param(
            made({0: "0-3"}, gpus=[0], packages={0: "0-7"}),
            "4-7",
            [None],
            id="the CPUs of no node are home where nothing else is allowed",
        ),
        pytest.param(
            machine("uv2000"),
            "0-15,24-31",
            [0, 1],
            id="a big machine: node 4 is 65 from all, node 7 is 65 from 0 and 1 and 79 from 3",
        ),
    ],
)
def test_home_nodes(topology: Topology, cpuset: str, expected: list[int | None]) -> None:
    assert homes(ask(topology, cpuset=cpuset, share="requested", mode="node")) == expected


def test_homes_follow_the_order_of_ranks_not_of_gpus() -> None:
    topology = made(BARREN, gpus=[2, 2], distances=EVEN_ROWS)
    ranks = ask(topology, gpus="1,0", mode="node").ranks
    assert [(rank.gpu.index, rank.home_node) for rank in ranks] == [(1, 0), (0, 1)]


def test_a_repeated_gpu_counts_each_time() -> None:
    topology = made(TWO, gpus=[0, None])
    assert homes(ask(topology, gpus="0,0,1,1,1,1,1", mode="node")) == [0, 0, 1, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("topology", "cpuset", "expected"),
    [
        pytest.param(made(TWO, gpus=[0]), "0-7", "local", id="its own node is local"),
        pytest.param(made(TWO, gpus=[0]), "4-7", "remote", id="another node is remote"),
        pytest.param(made(TWO, gpus=[None]), "0-7", "unknown", id="no node is unknown"),
        pytest.param(made(BARREN, gpus=[2]), "0-7", "remote", id="a node without CPUs is remote"),
        pytest.param(
            made({0: "0-3"}, gpus=[None]), "0-3", "local", id="with one node all is local"
        ),
        pytest.param(
            made({0: "0-3", 1: ""}, gpus=[1]),
            "0-3",
            "local",
            id="with CPUs in one node only all is local",
        ),
        pytest.param(
            made({0: "0-3"}, gpus=[0], packages={0: "0-7"}),
            "4-7",
            "remote",
            id="the CPUs of no node are remote",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, gpus=[1], online="0-3"),
            "0-7",
            "local",
            id="offline CPUs make no second node",
        ),
    ],
)
def test_locality(topology: Topology, cpuset: str, expected: str) -> None:
    reply = ask(topology, cpuset=cpuset, mode="node")
    assert reply.ranks[0].locality == expected
    warned = {"local": [], "remote": ["remote_home"], "unknown": ["unknown_locality"]}
    assert codes(reply) == warned[expected]


def test_several_nodes_are_local_only_if_all_are_the_gpu_s() -> None:
    topology = made(TWO, gpus=[0])
    assert locality(topology, topology.gpus[0], {0}) == "local"
    assert locality(topology, topology.gpus[0], {0, 1}) == "remote"


def test_homes_are_the_same_whatever_the_order_of_candidates() -> None:
    topology = machine("flat")
    assert home_nodes(topology, topology.gpus, topology.online) == [0, 1, 0, 1]


def test_a_core_counts_if_any_of_its_cpus_is_allowed_and_gives_only_those() -> None:
    cores = (Core((0, 4), 0, 0, None, 0), Core((1, 5), 0, 0, None, 0), Core((2, 6), 0, 0, None, 0))
    assert [core.cpus for core in usable(cores, frozenset({4, 1, 5}))] == [(4,), (1, 5)]
