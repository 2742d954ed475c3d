"""Who divides the cores: the requested GPUs alone, or all GPUs of the node."""

from __future__ import annotations

from itertools import combinations

import pytest

from affinityd.topology.model import Topology
from tests.support.asking import ask, codes, cpulists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

#: Five cores and two GPUs on node 0, five cores and one GPU on node 1.
UNEVEN = made({0: "0-4", 1: "5-9"}, gpus=[0, 0, 1])
#: Eight cores, two GPUs.
PAIR = made({0: "0-7"}, gpus=[0, 0])
#: Node 1 is near to no GPU: partners of node 0's two cores.
PARTNERS = made({0: "0-1", 1: "2-5"}, gpus=[0, 0])


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        ("", "node"),
        ("cpuset=0-79", "node"),
        ("cpuset=0-4095", "node"),
        ("cpuset=1-79", "requested"),
        ("cpuset=0-19,40-59", "requested"),
        ("share=requested", "requested"),
        ("share=node", "node"),
        ("share=node cpuset=1-79", "node"),
        ("mode=unique_interleaved", "node"),
        ("mode=single_unique", "node"),
        ("mode=exclusive", "node"),
        ("mode=node", "requested"),
        ("mode=all share=node", "requested"),
        ("mode=core_complex share=node", "requested"),
        ("mode=even share=node", "requested"),
        ("mode=even", "requested"),
    ],
)
def test_who_divides_is_decided_and_told(asked: str, share: str) -> None:
    parameters = dict(part.split("=") for part in asked.split())
    assert ask(machine("dgx-1v"), gpus="0", **parameters).plan.share == share


@pytest.mark.parametrize(
    ("mask", "reserved", "share"),
    [
        pytest.param("0-79", "", "node", id="the caller may use all"),
        pytest.param("2-79", "0-1", "node", id="all but the reserved CPUs"),
        pytest.param("2-79", "0-2", "node", id="more than all but the reserved CPUs"),
        pytest.param("2-79", "0", "requested", id="less than all but the reserved CPUs"),
    ],
)
def test_auto_is_node_where_the_caller_may_use_all_but_the_reserved(
    mask: str, reserved: str, share: str
) -> None:
    assert ask(machine("dgx-1v"), mask=mask, reserved=reserved).plan.share == share


@pytest.mark.parametrize(
    ("topology", "parameters", "expected"),
    [
        pytest.param(
            machine("dgx-a100"),
            {"gpus": "1,0"},
            ["56-63,184-191", "48-55,176-183"],
            id="a GPU's block is its own in whatever order it is asked for",
        ),
        pytest.param(
            machine("dgx-1v"), {"gpus": "3"}, ["15-19,55-59"], id="four GPUs of a node: a quarter"
        ),
        pytest.param(
            UNEVEN,
            {"balanced": "false"},
            ["0-2", "3-4", "5-9"],
            id="the remainder goes to the first GPUs",
        ),
        pytest.param(
            UNEVEN, {}, ["0-1", "3-4", "5-6"], id="balanced keeps as much as the smallest block has"
        ),
        pytest.param(
            UNEVEN,
            {"gpus": "2"},
            ["5-6"],
            id="balanced counts the whole machine's blocks, asked for or not",
        ),
        pytest.param(
            made({0: "0-4", 1: "5-9"}, gpus=[0, 1, 1]),
            {"gpus": "0"},
            ["0-1"],
            id="wherever the smallest block is",
        ),
        pytest.param(
            UNEVEN, {"mode": "exclusive"}, ["0-2", "3-4", "5-9"], id="exclusive is never balanced"
        ),
        pytest.param(
            UNEVEN, {"mode": "single_unique"}, ["0", "3", "5"], id="the first core of each block"
        ),
        pytest.param(
            UNEVEN,
            {"mode": "single_unique", "gpus": "1,1,2"},
            ["3", "4", "5"],
            id="ranks on one GPU take cores of its block in turn",
        ),
        pytest.param(PAIR, {"gpus": "0,0"}, ["0-1", "2-3"], id="ranks on one GPU divide its block"),
        pytest.param(
            PAIR,
            {"gpus": "0,1,0", "mode": "unique_interleaved", "balanced": "false"},
            ["0,2", "4-7", "1,3"],
            id="interleaved is within the block",
        ),
        pytest.param(
            PAIR, {"gpus": "0,1,0"}, ["0-1", "4-5", "2-3"], id="balanced over the ranks, too"
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, gpus=[None, 0, None]),
            {},
            ["4-5", "0-1", "2-3"],
            id="unknown GPUs are placed among all of the machine's",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, gpus=[None, 0, None]),
            {"gpus": "2"},
            ["2-3"],
            id="and so they are where only one is asked for",
        ),
        pytest.param(
            PARTNERS, {"scope": "socket"}, ["0,2,4", "1,3,5"], id="a block has its cores' partners"
        ),
        pytest.param(
            PARTNERS,
            {"scope": "socket", "gpus": "1"},
            ["1,3,5"],
            id="partners are the same for one GPU alone",
        ),
        pytest.param(
            made({0: "0-1", 1: "2-5"}, gpus=[0, 1]),
            {"scope": "socket", "gpus": "0"},
            ["0-1"],
            id="what is near to another GPU of the machine is no partner",
        ),
    ],
)
def test_blocks(topology: Topology, parameters: dict[str, str], expected: list[str]) -> None:
    reply = ask(topology, **{"share": "node", **parameters})
    assert cpulists(reply) == expected
    assert "share_unavailable" not in codes(reply)


def test_reserved_cpus_are_in_no_block() -> None:
    assert cpulists(ask(PAIR, reserved="0", balanced="false")) == ["1-4", "5-7"]


@pytest.mark.parametrize(
    ("cpuset", "expected"),
    [
        pytest.param("2-7", ["2-3", "4-7"], id="each has what is allowed of its block"),
        pytest.param("3-4", ["3", "4"], id="one core of each block is enough"),
        pytest.param("0-3", ["0-1", "2-3"], id="a GPU without a core: the allowed are cut anew"),
        pytest.param("5,7", ["5", "7"], id="as many cores as GPUs are cut anew, too"),
        pytest.param("5-7", ["5-6", "7"], id="cut anew, the remainder goes to the first"),
    ],
)
def test_a_cpuset_narrows_blocks(cpuset: str, expected: list[str]) -> None:
    blocks = ask(PAIR, share="node", balanced="false", cpuset=cpuset)
    assert cpulists(blocks) == expected
    for gpu in "0", "1":
        alone = ask(PAIR, share="node", balanced="false", cpuset=cpuset, gpus=gpu)
        assert cpulists(alone) == [expected[int(gpu)]]


def test_cutting_anew_is_for_one_node_only() -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1, 1])
    reply = ask(topology, share="node", cpuset="0-1,5-7", balanced="false")
    assert cpulists(reply) == ["0", "1", "5", "6-7"]


def test_partners_that_lose_their_core_are_dealt_to_the_block_s_others() -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[0, 0])
    reply = ask(topology, share="node", scope="socket", cpuset="1-7")
    assert cpulists(reply) == ["1,4-5", "2,6"]


@pytest.mark.parametrize(
    "parameters",
    [{"gpus": "0"}, {"gpus": "1"}, {"gpus": "0,1"}, {"gpus": "0,2"}],
    ids=lambda value: value["gpus"],
)
def test_with_fewer_cores_than_gpus_the_requested_divide_and_are_warned(
    parameters: dict[str, str],
) -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1])
    asked = {**parameters, "cpuset": "2,4-7", "mode": "unique_interleaved", "balanced": "false"}
    if parameters["gpus"] == "0,1":
        asked["cpuset"] = "4-7"  # a core each, on the nearest node
    reply = ask(topology, share="node", **asked)
    assert reply.plan.share == "requested"
    assert "share_unavailable" in codes(reply)
    assert cpulists(reply) == cpulists(ask(topology, share="requested", **asked))


def test_gpus_of_other_nodes_keep_their_blocks() -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1])
    reply = ask(topology, share="node", cpuset="2,4-7", gpus="2", balanced="false")
    assert (reply.plan.share, cpulists(reply), codes(reply)) == ("node", ["4-7"], [])


def test_auto_is_warned_where_the_machine_has_fewer_cores_than_gpus() -> None:
    topology = made({0: "0-1"}, gpus=[0, 0, 0])
    reply = ask(topology, gpus="0,1")
    assert (cpulists(reply), codes(reply)) == (["0", "1"], ["share_unavailable"])


def test_auto_on_a_narrower_cpuset_is_not_warned() -> None:
    assert codes(ask(made({0: "0-3"}, gpus=[0, 0, 0]), gpus="0", cpuset="0-1")) == []


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "p4d-24xlarge", "mi250x", "ascend-910b"])
@pytest.mark.parametrize("scope", ["node", "socket"])
def test_jobs_that_never_heard_of_each_other_are_disjoint(name: str, scope: str) -> None:
    topology = machine(name)
    jobs = [
        ask(topology, gpus=str(index), scope=scope, mode=mode)
        for index, mode in zip(
            range(8),
            ["unique_contiguous", "unique_interleaved", "exclusive", "single_unique"] * 2,
            strict=True,
        )
    ]
    for one, other in combinations(jobs, 2):
        assert not one.cpus & other.cpus


def test_jobs_that_differ_in_balanced_find_the_same_blocks() -> None:
    """A balanced block of one core is not allowed here; the other job must not notice."""
    topology = made({0: "0-4", 1: "5-6"}, gpus=[0, 0, 1, 1])
    common = {"share": "node", "cpuset": "2-4"}
    assert cpulists(ask(topology, gpus="0", **common)) == ["2"]
    for other in ({"mode": "exclusive"}, {"balanced": "false"}):
        assert cpulists(ask(topology, gpus="1", **common, **other)) == ["3-4"]
