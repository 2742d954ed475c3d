"""Plans: partners, cuts, minimums, memory, and what a plan says about itself."""

from __future__ import annotations

import re

import pytest

from affinityd.errors import UnsatisfiableError
from affinityd.topology.model import Topology
from tests.support.asking import ask, cpulists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

#: Three near cores, six partners: 0 brings 3 and 6, 1 brings 4 and 7, 2 brings 5 and 8.
THREE_NEAR = made({0: "0-2", 1: "3-8"}, gpus=[0, 0])
#: A package of five cores, of which two are near: 0 brings 2, 4; 1 brings 3.
RAGGED = made({0: "0-1", 1: "2-4"}, gpus=[0, 0])
#: One node over two packages whose CPU numbers alternate; node 1 has a core of the first.
ASTRIDE = made({0: "0-7", 1: "8"}, gpus=[0, 0], packages={0: "0-6:2,8", 1: "1-7:2"})
#: Node 0 has a core of both packages, nodes 1 and 2 are of one package each.
BRIDGE = made(
    {0: "0,4", 1: "1-3", 2: "5-7"},
    packages={0: "0-3", 1: "4-7"},
    distances=[("0", "1", 30), ("0", "2", 20)],
)


@pytest.mark.parametrize(
    ("topology", "parameters", "expected"),
    [
        pytest.param(
            machine("dgx-a100"),
            {"gpus": "0,1"},
            [
                "0-7,16-23,32-39,48-55,128-135,144-151,160-167,176-183",
                "8-15,24-31,40-47,56-63,136-143,152-159,168-175,184-191",
            ],
            id="the package's 48 other cores are dealt to the 16 near ones",
        ),
        pytest.param(
            machine("dgx-a100"),
            {"gpus": "0,2"},
            ["32-63,160-191", "0-31,128-159"],
            id="what is near to another planned rank is nobody's partner",
        ),
        pytest.param(
            machine("dgx-a100"),
            {"gpus": "0,1", "mode": "unique_interleaved", "max_physical_cores": "9"},
            [
                "0,48,50,52,54,56,58,60,62,128,176,178,180,182,184,186,188,190",
                "1,49,51,53,55,57,59,61,63,129,177,179,181,183,185,187,189,191",
            ],
            id="a near core brings its partners along wherever it goes",
        ),
        pytest.param(
            THREE_NEAR,
            {},
            ["0,3,6", "1,4,7"],
            id="balanced leaves out a near core and its partners",
        ),
        pytest.param(
            THREE_NEAR,
            {"mode": "unique_interleaved", "balanced": "false"},
            ["0,2-3,5-6,8", "1,4,7"],
            id="partners follow their near core, which may be more than others have",
        ),
        pytest.param(
            THREE_NEAR,
            {"mode": "exclusive"},
            ["0-1,3-4,6-7", "2,5,8"],
            id="exclusive brings partners along, too",
        ),
        pytest.param(
            RAGGED, {}, ["0,2,4", "1,3"], id="balanced equalises near cores only, not partners"
        ),
        pytest.param(
            RAGGED, {"cpuset": "0-2,4"}, ["0,2", "1,4"], id="only allowed partners are dealt"
        ),
        pytest.param(
            RAGGED, {"cpuset": "1-4", "gpus": "0"}, ["1-4"], id="only to allowed near cores"
        ),
        pytest.param(
            ASTRIDE,
            {},
            ["0-3,8", "4-7"],
            id="near cores are in the order of their CPUs, whatever package they are of",
        ),
        pytest.param(
            made({0: "0-1", 1: "2-3", 2: "4-5"}, packages={0: "0-3", 1: "4-5"}, gpus=[0]),
            {},
            ["0-3"],
            id="a package without a near core gives none",
        ),
        pytest.param(
            BRIDGE,
            {"gpus": "0,0"},
            ["0-3", "4-7"],
            id="a package's cores are partners of its own near cores",
        ),
    ],
)
def test_unique_modes_in_socket_scope(
    topology: Topology, parameters: dict[str, str], expected: list[str]
) -> None:
    asked = {"scope": "socket", "share": "requested", **parameters}
    assert cpulists(ask(topology, **asked)) == expected


@pytest.mark.parametrize(
    ("topology", "parameters", "expected"),
    [
        pytest.param(THREE_NEAR, {"gpus": "0"}, "0-8", id="all of the package"),
        pytest.param(BRIDGE, {}, "0-7", id="all of every package that the node has a core of"),
        pytest.param(BRIDGE, {"cpuset": "0,5"}, "0,5", id="even where only one of them is allowed"),
        pytest.param(BRIDGE, {"max_physical_cores": "2"}, "0,4", id="the rank's own node first"),
        pytest.param(
            BRIDGE, {"max_physical_cores": "4"}, "0,4-6", id="then the nearest of the others"
        ),
        pytest.param(
            made({0: "2-3", 1: "4-5", 2: "0-1"}, distances=[("0", "1-2", 20)]),
            {"max_physical_cores": "3"},
            "2-4",
            id="of others as near the lower number",
        ),
        pytest.param(
            made({0: "0-1", 1: "2-3"}, packages={0: "0-1", 1: "2-3"}),
            {},
            "0-1",
            id="another package is no neighbour",
        ),
    ],
)
@pytest.mark.parametrize("mode", [{"mode": "socket"}, {"mode": "all", "scope": "socket"}], ids=str)
def test_sharing_modes_in_socket_scope(
    topology: Topology, parameters: dict[str, str], expected: str, mode: dict[str, str]
) -> None:
    assert cpulists(ask(topology, **{"gpus": "0", **mode, **parameters})) == [expected]


#: What two ranks of THREE_NEAR have, by how many cores they may have at most.
AT_MOST = {
    1: ["0", "2"],
    2: ["0-1", "2,5"],
    3: ["0-1,3", "2,5,8"],
    4: ["0-1,3-4", "2,5,8"],
    5: ["0-1,3-4,6", "2,5,8"],
    99: ["0-1,3-4,6-7", "2,5,8"],
}


@pytest.mark.parametrize("most", AT_MOST)
def test_the_maximum_cuts_near_cores_first_then_partners_round_by_round(most: int) -> None:
    asked = {"scope": "socket", "share": "requested", "mode": "exclusive"}
    reply = ask(THREE_NEAR, **asked, max_physical_cores=str(most))
    assert cpulists(reply) == AT_MOST[most]
    assert [rank.physical_cores for rank in reply.ranks] == [min(most, 6), min(most, 3)]


def test_the_maximum_cuts_in_the_order_of_interleaving() -> None:
    reply = ask(
        machine("dgx-1v"),
        gpus="0,1",
        mode="unique_interleaved",
        share="requested",
        max_physical_cores="2",
    )
    assert cpulists(reply) == ["0,2,40,42", "1,3,41,43"]


def test_single_modes_ignore_minimum_and_maximum() -> None:
    for mode in "single", "single_unique":
        reply = ask(machine("dgx-1v"), gpus="0", mode=mode, min_physical_cores="2")
        assert cpulists(reply) == ["0,40"]


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [
        pytest.param({"min_physical_cores": "5"}, True, id="as many as there are"),
        pytest.param({"min_physical_cores": "6"}, False, id="more than there are"),
        pytest.param(
            {"min_physical_cores": "5", "max_physical_cores": "5"}, True, id="both the same"
        ),
        pytest.param(
            {"mode": "exclusive", "gpus": "0,0,0", "min_physical_cores": "4"},
            False,
            id="fewer for any one rank",
        ),
        pytest.param({"mode": "node", "min_physical_cores": "20"}, True, id="shared cores count"),
        pytest.param(
            {"min_physical_cores": "4", "cpuset": "0-15"}, True, id="one CPU of a core is a core"
        ),
        pytest.param(
            {"gpus": "0", "rank": "0", "mode": "single_unique"}, True, id="no minimum, one core"
        ),
    ],
)
def test_the_minimum(parameters: dict[str, str], fits: bool) -> None:
    asked = {"gpus": "0,1,2,3", **parameters}
    if asked["gpus"] == "0,0,0":  # one GPU's block is five cores
        asked["share"] = "node"
    if fits:
        least = int(asked.get("min_physical_cores", 1))
        reply = ask(machine("dgx-1v"), **asked)
        assert all(rank.physical_cores >= least for rank in reply.ranks)
    else:
        with pytest.raises(UnsatisfiableError):
            ask(machine("dgx-1v"), **asked)


@pytest.mark.parametrize(
    ("most", "fits"), [("3", True), ("4", False)], ids=["with partners", "more than with partners"]
)
def test_the_minimum_is_counted_with_partners(most: str, fits: bool) -> None:
    asked = {"scope": "socket", "share": "requested", "min_physical_cores": most}
    if fits:
        assert cpulists(ask(THREE_NEAR, **asked)) == ["0,3,6", "1,4,7"]
    else:
        with pytest.raises(UnsatisfiableError, match="min_physical_cores=3 would do"):
            ask(THREE_NEAR, **asked)


@pytest.mark.parametrize(
    ("topology", "parameters", "message"),
    [
        pytest.param(
            machine("dgx-1v"),
            {"gpus": "0,1,2,3", "min_physical_cores": "6"},
            "rank 0 (GPU 0) would have 5 physical cores, fewer than 6: 4 ranks, 80 allowed CPUs; "
            "min_physical_cores=5 would do",
            id="too few cores for a rank",
        ),
        pytest.param(
            made({0: "0-1"}, gpus=[0, 0, 0]),
            {"mode": "exclusive"},
            "rank 2 (GPU 2) would have 0 physical cores, fewer than 1: 3 ranks, 2 allowed CPUs; "
            "ask for fewer ranks, a wider cpuset, or a mode whose ranks share cores, like node",
            id="exclusive: fewer cores than ranks",
        ),
        pytest.param(
            made({0: "0"}, gpus=[0, 0]),
            {"mode": "single_unique"},
            "rank 1 (GPU 1) would have 0 physical cores, fewer than 1: 2 ranks, 1 allowed CPU; "
            "ask for fewer ranks, a wider cpuset, or a mode whose ranks share cores, like node",
            id="single_unique: fewer cores than ranks",
        ),
        pytest.param(
            made({0: "0-1"}, gpus=[0, 0, 0]),
            {"mode": "even"},
            "rank 2 (GPU 2) would have 0 physical cores, fewer than 1: 3 ranks, 2 allowed CPUs; "
            "ask for fewer ranks, a wider cpuset, or a mode whose ranks share cores, like node",
            id="even: fewer cores than ranks",
        ),
        pytest.param(
            made({0: "0-3"}, online="0-1"),
            {"cpuset": "2-3"},
            "no CPU is allowed: the cpuset holds none of the CPUs that this machine can give (0-1)",
            id="a cpuset of offline CPUs",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}),
            {"cpuset": "4-7", "strict": "true"},
            "strict: rank 0 has CPUs away from NUMA node 0, where its GPU 0 is; its home is "
            "node 1; strict=false would allow it",
            id="strict: a remote home",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}),
            {"mode": "even", "strict": "true"},
            "strict: rank 0 has CPUs away from NUMA node 0, where its GPU 0 is; its home is "
            "node 0; strict=false would allow it",
            id="strict: even over two nodes",
        ),
    ],
)
def test_what_cannot_be_satisfied_is_told_with_what_could_be(
    topology: Topology, parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(UnsatisfiableError, match=rf"\A{re.escape(message)}\Z"):
        ask(topology, **parameters)


def test_a_wholly_reserved_machine_cannot_give_anything() -> None:
    with pytest.raises(UnsatisfiableError, match="all are reserved"):
        ask(made({0: "0-3"}), reserved="0-3")


@pytest.mark.parametrize("node", [0, None], ids=["local", "unknown"])
def test_strict_refuses_neither_local_nor_unknown(node: int | None) -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[node])
    assert cpulists(ask(topology, strict="true", mode="node")) == ["0-3"]


@pytest.mark.parametrize(
    ("cpuset", "expected"),
    [
        pytest.param("0-47", ["8,16", "24,32"], id="the first CPU of each core"),
        pytest.param("10,12-30", ["10", "16"], id="the first allowed CPU of each core"),
        pytest.param("9,18", ["9", "18"], id="the only allowed CPU of each core"),
    ],
)
def test_single_logical_gives_one_cpu_a_core(cpuset: str, expected: list[str]) -> None:
    topology = made({0: "0-47"}, gpus=[0, 0], threads=8, siblings="adjacent", online="8-47")
    asked = {"share": "requested", "cpuset": cpuset}
    reply = ask(topology, **asked, multithreading="single_logical")
    assert cpulists(reply) == expected
    assert [rank.physical_cores for rank in reply.ranks] == [
        rank.physical_cores for rank in ask(topology, **asked).ranks
    ]


@pytest.mark.parametrize(
    ("home", "memory_node"),
    [("0-3", 0), ("16-19", 0), ("8-11", 2), ("24-27", 0)],
    ids=["its own", "nearest of a node without", "its own again", "of two as near the lower"],
)
def test_memory_is_the_home_node_s_or_the_nearest(home: str, memory_node: int) -> None:
    reply = ask(machine("threadripper-2990wx"), gpus="0", cpuset=home, mode="node")
    assert reply.ranks[0].memory_node == memory_node


@pytest.mark.parametrize(
    ("parameters", "threads"),
    [
        pytest.param({"gpus": "0,1"}, [10, 10], id="cores of its own"),
        pytest.param(
            {"gpus": "0,1,4", "mode": "node"}, [10, 10, 20], id="shared by two and by one"
        ),
        pytest.param({"gpus": "0,1", "mode": "single"}, [1, 1], id="at least one"),
        pytest.param({"gpus": "0,0,0", "mode": "node"}, [6, 6, 6], id="rounded down"),
        pytest.param(
            {"gpus": "0,1,2", "mode": "node", "max_physical_cores": "3"},
            [1, 1, 1],
            id="after the cut",
        ),
    ],
)
def test_threads_are_cores_by_the_ranks_that_share_them(
    parameters: dict[str, str], threads: list[int]
) -> None:
    reply = ask(machine("dgx-1v"), **{"share": "requested", **parameters})
    assert [rank.threads for rank in reply.ranks] == threads


def test_a_core_with_an_offline_cpu_keeps_its_place() -> None:
    """CPU 0 is offline: its core is named by CPU 8 alone, and ordered so."""
    topology = made({0: "0-15"}, threads=2, online="1-15")
    assert cpulists(ask(topology, mode="single")) == ["1,9"]
    assert cpulists(ask(topology, mode="single", cpuset="8-15")) == ["9"]


def test_cores_are_in_order_of_their_lowest_cpu_allowed_or_not() -> None:
    topology = made({0: "0-7"}, threads=2)  # cores 0+4, 1+5, 2+6, 3+7
    assert cpulists(ask(topology, mode="single", cpuset="1,4")) == ["4"]
