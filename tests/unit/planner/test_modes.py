"""Each row of the modes' table, on machines whose answers can be checked by eye."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.planner import BY_RANK
from affinityd.planner.modes import MODES
from affinityd.topology.model import Core
from tests.support.asking import ask, cpulists, homes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

#: Of the machine with 20 cores a node, siblings 40 apart.
ALL_OF_NODE_0 = "0-19,40-59"


#: What three ranks on node 0's GPUs are given.
THREE_RANKS = {
    "all": [ALL_OF_NODE_0] * 3,
    "node": [ALL_OF_NODE_0] * 3,
    "socket": [ALL_OF_NODE_0] * 3,
    "single": ["0,40"] * 3,
    "single_unique": ["0,40", "1,41", "2,42"],
    "unique_contiguous": ["0-5,40-45", "6-11,46-51", "12-17,52-57"],
    "unique_interleaved": [
        "0,3,6,9,12,15,40,43,46,49,52,55",
        "1,4,7,10,13,16,41,44,47,50,53,56",
        "2,5,8,11,14,17,42,45,48,51,54,57",
    ],
    "exclusive": ["0-6,40-46", "7-13,47-53", "14-19,54-59"],
    "core_complex": [ALL_OF_NODE_0] * 3,  # one cache a node
    "even": ["0-13,40-53", "14-26,54-66", "27-39,67-79"],
}


@pytest.mark.parametrize("mode", MODES)
def test_three_ranks_on_one_node(mode: str) -> None:
    reply = ask(machine("dgx-1v"), gpus="0,1,2", mode=mode, share="requested")
    assert cpulists(reply) == THREE_RANKS[mode]


@pytest.mark.parametrize("mode", MODES)
def test_dashes_and_underscores_are_the_same(mode: str) -> None:
    with_dashes = ask(machine("dgx-1v"), mode=mode.replace("_", "-"))
    assert with_dashes == ask(machine("dgx-1v"), mode=mode)
    assert with_dashes.request.options.mode == mode


@pytest.mark.parametrize(
    ("mode", "scope", "expected"),
    [
        pytest.param("all", "node", "48-63,176-191", id="all heeds scope node"),
        pytest.param("all", "socket", "0-63,128-191", id="all heeds scope socket"),
        pytest.param(
            "node", "socket", "48-63,176-191", id="node is of scope node whatever is said"
        ),
        pytest.param("socket", "node", "0-63,128-191", id="socket is of scope socket"),
        pytest.param("single", "socket", "48,176", id="single stays near"),
        pytest.param("single_unique", "socket", "48,176", id="single_unique stays near"),
        pytest.param("core_complex", "socket", "48-51,176-179", id="core_complex stays near"),
        pytest.param("even", "socket", "0-255", id="even is of the whole machine"),
        pytest.param("exclusive", "socket", "0-63,128-191", id="exclusive brings partners along"),
        pytest.param(
            "unique_contiguous", "socket", "0-63,128-191", id="contiguous brings partners"
        ),
        pytest.param(
            "unique_interleaved", "socket", "0-63,128-191", id="interleaved brings partners"
        ),
    ],
)
def test_scope(mode: str, scope: str, expected: str) -> None:
    reply = ask(machine("dgx-a100"), gpus="0", mode=mode, scope=scope, share="requested")
    assert cpulists(reply) == [expected]
    assert reply.ranks[0].locality == ("remote" if mode == "even" else "local")


@pytest.mark.parametrize("share", ["requested", "node"])
def test_single_ranks_share_the_first_core_of_their_own_home(share: str) -> None:
    assert cpulists(ask(machine("dgx-1v"), gpus="0,4,5", mode="single", share=share)) == [
        "0,40",
        "20,60",
        "20,60",
    ]


def test_single_unique_counts_on_each_home_node() -> None:
    reply = ask(machine("dgx-1v"), gpus="0,4,1,5", mode="single_unique", share="requested")
    assert cpulists(reply) == ["0,40", "20,60", "1,41", "21,61"]


def test_ranks_divide_in_the_order_of_the_request() -> None:
    reply = ask(machine("dgx-1v"), gpus="1,0", share="requested")
    assert cpulists(reply) == ["0-9,40-49", "10-19,50-59"]


@pytest.mark.parametrize(
    ("mode", "balanced", "expected"),
    [
        pytest.param(
            "unique_contiguous", "true", ["0-1", "2-3", "4-5", "8-9"], id="contiguous, balanced"
        ),
        pytest.param(
            "unique_contiguous",
            "false",
            ["0-1", "2-3", "4-5", "8-15"],
            id="contiguous, as it falls",
        ),
        pytest.param(
            "unique_interleaved", "true", ["0,3", "1,4", "2,5", "8-9"], id="interleaved, balanced"
        ),
        pytest.param(
            "unique_interleaved",
            "false",
            ["0,3,6", "1,4,7", "2,5", "8-15"],
            id="interleaved, as it falls",
        ),
        pytest.param(
            "exclusive", "true", ["0-2", "3-5", "6-7", "8-15"], id="exclusive is never balanced"
        ),
    ],
)
def test_balanced_gives_every_rank_as_many_cores(
    mode: str, balanced: str, expected: list[str]
) -> None:
    topology = made({0: "0-7", 1: "8-15"}, gpus=[0, 0, 0, 1])
    assert cpulists(ask(topology, mode=mode, balanced=balanced, share="requested")) == expected


#: Four caches of four cores, two CPUs a core: CPUs 0-15, siblings 16-31.
FOUR_CACHES = made({0: "0-31"}, gpus=[0], threads=2, cores_per_llc=4)


@pytest.mark.parametrize(
    ("ranks", "cpuset", "expected"),
    [
        pytest.param(2, "0-31", ["0-3,16-19", "4-7,20-23"], id="a group each, the lowest first"),
        pytest.param(
            5,
            "0-31",
            ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31", "0-3,16-19"],
            id="the fifth rank begins anew",
        ),
        pytest.param(
            2, "1-31", ["4-7,20-23", "8-11,24-27"], id="the group with a CPU less comes last"
        ),
        pytest.param(
            3,
            "0-11,16-17",
            ["0-3,16-17", "4-7", "8-11"],
            id="CPUs count, not cores: six before four",
        ),
        pytest.param(2, "2,17", ["2,17"] * 2, id="what is left of one group is one group"),
    ],
)
def test_core_complexes(ranks: int, cpuset: str, expected: list[str]) -> None:
    gpus = ",".join(["0"] * ranks)
    assert cpulists(ask(FOUR_CACHES, gpus=gpus, mode="core_complex", cpuset=cpuset)) == expected


def test_core_complexes_are_in_order_of_their_lowest_cpu_allowed_or_not() -> None:
    cores = tuple(Core((cpu,), 0, 0, None, llc=cpu % 2) for cpu in range(4))
    topology = replace(made({0: "0-3"}, gpus=[0, 0]), cores=cores)
    assert cpulists(ask(topology, mode="core_complex", cpuset="1-2")) == ["2", "1"]


def test_core_complexes_are_counted_on_each_home_node() -> None:
    reply = ask(machine("dgx-a100"), gpus="0,2,1", mode="core_complex")
    assert cpulists(reply) == ["48-51,176-179", "16-19,144-147", "52-55,180-183"]


def test_even_is_what_nproc_divided_by_ranks_gives() -> None:
    reply = ask(machine("ascend-910b"), mode="even")
    assert cpulists(reply) == [f"{24 * rank}-{24 * rank + 23}" for rank in range(8)]
    assert homes(reply) == list(range(8))


def test_even_gives_the_remainder_to_the_first_ranks() -> None:
    topology = made({0: "0-6"}, gpus=[0, 0, 0])
    assert cpulists(ask(topology, mode="even")) == ["0-2", "3-4", "5-6"]


@pytest.mark.parametrize(
    ("gpu_node", "locality"),
    [(0, "remote"), (1, "remote"), (None, "unknown")],
    ids=["home is the GPU's node, some cores are not", "home is another", "unknown"],
)
def test_even_is_local_only_if_all_cores_are_on_the_gpu_s_node(
    gpu_node: int | None, locality: str
) -> None:
    reply = ask(made({0: "0-3", 1: "4-7"}, gpus=[gpu_node]), mode="even")
    assert (cpulists(reply), homes(reply)) == (["0-7"], [0])
    assert reply.ranks[0].locality == locality


def test_even_is_local_where_a_block_lies_on_the_gpu_s_node() -> None:
    reply = ask(made({0: "0-3", 1: "4-7"}, gpus=[1, 1]), mode="even")
    assert [rank.locality for rank in reply.ranks] == ["remote", "local"]


def test_even_is_judged_by_what_the_maximum_leaves() -> None:
    reply = ask(made({0: "0-3", 1: "4-7"}, gpus=[0]), mode="even", max_physical_cores="4")
    assert (cpulists(reply), reply.ranks[0].locality) == (["0-3"], "local")


@pytest.mark.parametrize(
    ("asked", "ignored"),
    [
        ("mode=node scope=socket", "scope=socket"),
        ("mode=single scope=socket", "scope=socket"),
        ("mode=even scope=socket", "scope=socket"),
        ("mode=socket scope=node", None),
        ("mode=all scope=socket", None),
        ("mode=exclusive balanced=false", "balanced=false"),
        ("mode=unique_interleaved balanced=false", None),
        ("mode=single min_physical_cores=2", "min_physical_cores=2"),
        ("mode=single_unique max_physical_cores=2", "max_physical_cores=2"),
        ("mode=node max_physical_cores=2", None),
        ("mode=core_complex share=node", "share=node"),
        ("mode=even share=node", "share=node"),
        ("mode=single share=node", "share=node"),
        ("mode=node share=requested", None),
    ],
)
def test_a_parameter_that_means_nothing_to_a_mode_is_named(asked: str, ignored: str | None) -> None:
    parameters = dict(part.split("=") for part in asked.split())
    warnings = ask(machine("dgx-1v"), gpus="0", **parameters).warnings
    assert [warning.message for warning in warnings if warning.code == "parameter_ignored"] == (
        [f"{ignored} means nothing to mode {parameters['mode']}"] if ignored else []
    )


def test_modes_whose_ranks_have_the_same_are_those_that_share() -> None:
    same = {name for name, lists in THREE_RANKS.items() if len(set(lists)) == 1}
    assert {name for name, mode in MODES.items() if mode.shares} == same - BY_RANK
