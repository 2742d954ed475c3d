"""`cpus`: a rank that asked for more CPUs than are near its GPU gets the nearest others, too."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from affinityd.cpuset import format_list
from affinityd.errors import AffinityError, UnsatisfiableError
from affinityd.planner.model import RankPlan
from affinityd.request.formats import Reply, document
from affinityd.topology.model import Topology
from tests.support.asking import ask, codes, cpulists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import UNIQUE, Question, questions

#: Two nodes of four CPUs, a GPU on the first.
PAIR = made({0: "0-3", 1: "4-7"})
#: The same with a GPU on each.
BOTH = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
#: Node 1 is nearer to node 0 than node 2 is; cores of two CPUs: 0 and 6, 1 and 7, …
CHAIN = made(
    {0: "0-1,6-7", 1: "2-3,8-9", 2: "4-5,10-11"},
    threads=2,
    distances=[("0", "1", 40), ("0", "2", 20), ("1", "2", 20)],
)
#: LLC groups of two cores.
GROUPS = made({0: "0-3", 1: "4-7"}, cores_per_llc=2)

LACK = "2 allowed CPUs are near, and 4 were asked for"
ADDED = "2 allowed CPUs, and 4 were asked for: CPUs 4-5 of other nodes were added"


@pytest.mark.parametrize(
    ("topology", "parameters", "expected", "said"),
    [
        pytest.param(
            PAIR,
            {"gpus": "0,0", "mode": "node", "cpuset": "3-4", "cpus": "1"},
            ["3-4", "3-4"],
            ["mixed", "mixed"],
            id="two tasks of one CPU each, on CPUs of two nodes, share both",
        ),
        pytest.param(
            PAIR,
            {"gpus": "0,0", "cpuset": "3-4", "cpus": "1"},
            ["3", "4"],
            ["local", "mixed"],
            id="in a unique mode each has one",
        ),
        pytest.param(
            PAIR,
            {"mode": "node", "cpuset": "3-6", "cpus": "2"},
            ["3-4"],
            ["mixed"],
            id="no more are added than were asked for",
        ),
        pytest.param(
            PAIR,
            {"mode": "node", "cpuset": "0-7", "cpus": "2"},
            ["0-3"],
            ["local"],
            id="where enough are near nothing changes",
        ),
        pytest.param(
            PAIR, {"mode": "node", "cpus": "99"}, ["0-7"], ["mixed"], id="or as many as there are"
        ),
        pytest.param(
            CHAIN,
            {"mode": "node", "cpus": "5"},
            ["0-1,4,6-7,10"],
            ["mixed"],
            id="the nearest node's cores first, and whole ones",
        ),
        pytest.param(
            CHAIN,
            {"mode": "node", "cpus": "4", "multithreading": "single_logical"},
            ["0-1,4-5"],
            ["mixed"],
            id="where one CPU a core is given, that is what counts",
        ),
        pytest.param(
            BOTH,
            {"mode": "node", "cpuset": "0-1,4-7", "cpus": "4"},
            ["0-1", "4-7"],
            ["local", "local"],
            id="what is near to another GPU of the request is not taken by ranks that share",
        ),
        pytest.param(
            BOTH,
            {"cpuset": "0-1,4-7", "cpus": "3", "balanced": "false"},
            ["0-1", "4-7"],
            ["local", "local"],
            id="nor by those that do not while its rank uses it",
        ),
        pytest.param(
            BOTH,
            {"cpuset": "0-1,4-7", "cpus": "3"},
            ["0-1,6", "4-5,7"],
            ["mixed", "local"],
            id="what balanced leaves idle is taken",
        ),
        pytest.param(
            PAIR,
            {"gpus": "0,0", "cpuset": "0-2", "cpus": "2"},
            ["0,2", "1"],
            ["local", "local"],
            id="so is the remainder of an equal division",
        ),
        pytest.param(
            CHAIN,
            {"gpus": "0,0", "cpus": "3"},
            ["0,4,6,10", "1,5,7,11"],
            ["mixed", "mixed"],
            id="cores are not cut in two",
        ),
        pytest.param(
            CHAIN,
            {"gpus": "0,0", "cpus": "4"},
            ["0,4,6,10", "1,5,7,11"],
            ["mixed", "mixed"],
            id="ranks that divide near cores keep their parts of them",
        ),
        pytest.param(
            PAIR,
            {"gpus": "0,0", "mode": "single_unique", "cpuset": "3-5", "cpus": "2"},
            ["3", "4"],
            ["local", "mixed"],
            id="a mode of one core a rank gives one, but to every rank",
        ),
        pytest.param(
            PAIR,
            {"cpus": "6", "max_physical_cores": "5"},
            ["0-4"],
            ["mixed"],
            id="max_physical_cores cuts all the same",
        ),
        pytest.param(
            GROUPS,
            {"gpus": "0,0", "mode": "core_complex", "cpuset": "2,4-7", "cpus": "2"},
            ["2", "2"],
            ["local", "local"],
            id="ranks with a cache each share near ones, however small",
        ),
        pytest.param(
            PAIR,
            {"cpuset": "4-7", "mode": "node", "cpus": "2"},
            ["4-7"],
            ["remote"],
            id="a rank that is far as a whole stays remote",
        ),
        pytest.param(
            made({0: "0-1", 1: "2-3", 2: "4-5"}, packages={0: "0-3", 1: "4-5"}),
            {"mode": "socket", "cpus": "5"},
            ["0-4"],
            ["mixed"],
            id="a socket is widened beyond itself",
        ),
        pytest.param(
            made({0: "0-1", 1: "2-3", 2: "4-5"}, packages={0: "0-3", 1: "4-5"}),
            {"mode": "socket", "cpus": "4"},
            ["0-3"],
            ["local"],
            id="and what was the mode's own before is no widening",
        ),
    ],
)
def test_where_too_few_cpus_are_near_the_nearest_others_are_added(
    topology: Topology, parameters: dict[str, str], expected: list[str], said: list[str]
) -> None:
    reply = ask(topology, **parameters)
    assert cpulists(reply) == expected
    assert [rank.locality for rank in reply.ranks] == said


def test_a_rank_says_how_many_were_near_and_how_many_were_asked_for() -> None:
    reply = ask(PAIR, gpus="0,0", mode="node", cpuset="2-5", cpus="2")
    assert [it.message for it in reply.warnings if it.code == "widened"] == [
        f"rank {rank} has CPUs 4-5 away from node 0, its home: {LACK}" for rank in (0, 1)
    ]
    for rank in reply.ranks:
        assert f"node 0 has {ADDED}" in rank.reasons
    assert document(reply).request.cpus == 2


def test_strict_refuses_a_rank_that_would_be_widened() -> None:
    with pytest.raises(UnsatisfiableError, match=r"^strict: rank 0 has CPUs 4 away from node 0"):
        ask(PAIR, mode="node", cpuset="3-4", cpus="2", strict="true")


@pytest.mark.parametrize(
    ("parameters", "idle"),
    [
        pytest.param({"cpuset": "2-7", "cpus": "2"}, "4-7", id="those of no GPU's node"),
        pytest.param({"cpuset": "2-7", "cpus": "3"}, "5-7", id="less those that came in"),
        pytest.param({"cpuset": "2-7"}, None, id="nothing is said where nothing was asked for"),
        pytest.param({"cpuset": "0-3", "cpus": "2"}, None, id="nor of near ones"),
    ],
)
def test_allowed_cpus_that_stay_idle_for_being_far_are_counted(
    parameters: dict[str, str], idle: str | None
) -> None:
    reply = ask(PAIR, mode="node", **parameters)
    (*said,) = (it.message for it in reply.warnings if it.code == "idle_cpus")
    assert bool(said) == (idle is not None)
    assert all(f"({idle}) will stay idle, near none" in message for message in said)


def test_a_rank_that_keeps_to_its_gpu_s_block_is_told_that_it_asked_for_more() -> None:
    reply = ask(machine("dgx-a100"), gpus="0", cpus="40", share="node")
    (said,) = (it.message for it in reply.warnings if it.code == "parameter_ignored")
    assert said.startswith("rank 0: cpus=40 is more than the 16 CPUs of its GPU's block")


def test_a_gpu_s_block_that_is_too_small_is_left_for_all_that_its_ranks_may_use() -> None:
    dgx = machine("dgx-a100")
    enough = ask(dgx, gpus="0", cpus="16")
    assert (cpulists(enough), enough.plan.share) == (["48-55,176-183"], "node")
    apart = ask(dgx, gpus="0", cpus="20", share="node")  # of ranks that plan by themselves
    assert (cpulists(apart), apart.plan.share) == (["48-55,176-183"], "node")
    more = ask(dgx, gpus="0", cpus="20")
    assert (cpulists(more), more.plan.share) == (["48-63,176-191"], "requested")
    assert "share_unavailable" in codes(more)


@pytest.mark.parametrize(
    ("parameters", "each"),
    [
        pytest.param({"task_cpus": "4", "cpuset": "0-7"}, 4, id="a task with one GPU"),
        pytest.param({"gpus": "0,0", "task_cpus": "4"}, 2, id="a task's GPUs divide them"),
        pytest.param({"gpus": "0,0", "task_cpus": "3"}, 2, id="and none gets less than its part"),
        pytest.param(
            {"gpus": "0", "ranks": "2", "rank": "1", "task_cpus": "2"}, 2, id="two tasks on a GPU"
        ),
        pytest.param(
            {"job": "0", "ranks": "2", "rank": "1", "task_cpus": "2", "mode": "node"},
            4,
            id="where ranks share, one of the plan stands for both tasks",
        ),
        pytest.param(
            {"job": "0", "ranks": "2", "rank": "1", "task_cpus": "2"},
            2,
            id="and where they do not, each is one",
        ),
        pytest.param({"task_cpus": "1/1", "cpuset": "2-7"}, 6, id="a lone task: all it may use"),
        pytest.param(
            {"ranks": "4", "rank": "0", "task_cpus": "1/4", "cpuset": "2-7"}, 1, id="whole CPUs"
        ),
        pytest.param(
            {"task_cpus": "1/1", "cpuset": "2-7", "job_cpus": "3"}, 3, id="no more than the job's"
        ),
        pytest.param(
            {"task_cpus": "9", "cpuset": "2-7"}, 6, id="nor than there are, whatever is said"
        ),
        pytest.param({"task_cpus": "8"}, 8, id="unless that was asked for"),
        pytest.param(
            {"task_cpus": "1/1"}, 8, id="a node of its own: at most the node's cores a GPU"
        ),
        pytest.param(
            {"gpus": "0,0", "rank": "1", "task_cpus": "4"}, 4, id="a rank of a number not known"
        ),
        pytest.param(
            {
                "gpus": "0",
                "ranks": "2",
                "rank": "1",
                "gpu_bind": "gpu:closest",
                "cpu_bind": "0xf,0xf0",
                "cpuset": "4-7",
                "task_cpus": "1/2",
            },
            4,
            id="a task that stays on its slice",
        ),
        pytest.param({"cpus": "3"}, 3, id="cpus is each rank's as it stands"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_what_a_task_asked_for_is_told_for_each_rank(
    parameters: dict[str, str], each: int | None
) -> None:
    assert ask(PAIR, **parameters).request.options.cpus == each


@pytest.mark.parametrize(
    ("parameters", "each"),
    [
        pytest.param({}, 16, id="all of it"),
        pytest.param({"cpuset": "1-127,129-255"}, 16, id="all but a core that Slurm keeps"),
        pytest.param({"cpuset": "0-127"}, 16, id="one thread of each core"),
        pytest.param({"task_cpus": "64"}, 64, id="a number that was asked for"),
        pytest.param({"job_cpus": "64"}, 64, id="a pod with a request, among others"),
        pytest.param({"cpuset": "0-63"}, 64, id="a part of it was counted out"),
    ],
)
def test_a_node_of_its_own_is_not_taken_for_what_a_task_asked_for(
    parameters: dict[str, str], each: int
) -> None:
    dgx = machine("dgx-a100")  # 128 cores of two CPUs, 8 GPUs
    reply = ask(dgx, **{"gpus": "0", "mode": "node", "task_cpus": "1/1", **parameters})
    assert reply.request.options.cpus == each
    assert (each == 16) == (reply.ranks[0].locality == "local")


def test_what_a_task_and_what_its_ranks_asked_for_are_not_given_together() -> None:
    with pytest.raises(AffinityError, match=r"^cpus=2 is what each rank asked for, task_cpus what"):
        ask(PAIR, cpus="2", task_cpus="3")


# ------------------------------------------------------------------------ what holds for every plan

ASKED = st.integers(1, 9).map(str)


def widened(question: Question, cpus: str) -> Reply:
    """Return a reply; where there is none, it is no example."""
    reply = question.try_to_ask(cpus=cpus)
    assume(not isinstance(reply, AffinityError))
    assert isinstance(reply, Reply)
    return reply


def cores(rank: RankPlan, topology: Topology) -> frozenset[int]:
    """Return the places of the cores of which a rank has a CPU."""
    held = enumerate(topology.cores)
    return frozenset(place for place, core in held if not rank.cpus.isdisjoint(core.cpus))


@given(questions(tuple(set(UNIQUE) - {"single_unique"})), ASKED)
def test_no_rank_of_a_unique_mode_has_fewer_cpus_than_asked_for_while_allowed_ones_are_idle(
    question: Question, cpus: str
) -> None:
    question = question.but()
    question.parameters.pop("max_physical_cores", None)
    question.parameters.pop("rank", None)
    reply = widened(question, cpus)
    used = frozenset[int]().union(*(cores(rank, question.topology) for rank in reply.ranks))
    idle = [
        core
        for place, core in enumerate(question.topology.cores)
        if place not in used and not reply.allowed.isdisjoint(core.cpus)
    ]
    assert not idle or all(len(rank.cpus) >= int(cpus) for rank in reply.ranks)


@given(questions(UNIQUE), ASKED)
def test_widened_ranks_of_a_unique_mode_have_no_core_in_common(
    question: Question, cpus: str
) -> None:
    reply = widened(question, cpus)
    for one, other in combinations(reply.ranks, 2):
        assert not cores(one, question.topology) & cores(other, question.topology)


@given(questions(("node", "all", "socket")), ASKED)
def test_ranks_that_share_have_all_that_they_had_and_as_much_as_they_asked_for(
    question: Question, cpus: str
) -> None:
    question.parameters.pop("max_physical_cores", None)
    reply = widened(question, cpus)
    before = question.ask()
    for rank, had in zip(reply.ranks, before.ranks, strict=True):
        assert had.cpus <= rank.cpus <= reply.allowed
        assert (rank.cpus > had.cpus) == (rank.widening is not None)


@given(questions(), ASKED)
def test_what_is_not_near_is_mixed_and_warned_of(question: Question, cpus: str) -> None:
    reply = widened(question, cpus)
    warned = {it.rank for it in reply.warnings if it.code == "widened"}
    for rank in reply.ranks:
        assert (rank.rank in warned) == (rank.widening is not None)
        assert rank.widening is None or rank.locality != "local"
        assert rank.locality != "mixed" or rank.widening is not None
        if rank.widening is not None:
            assert rank.widening.cpus <= rank.cpus
            home = question.topology.cpus_of_node(rank.home_node)
            assert rank.widening.cpus.isdisjoint(home), format_list(home)


@given(questions(), ASKED)
def test_strict_plans_have_near_cpus_alone(question: Question, cpus: str) -> None:
    reply = widened(question.but(strict="true"), cpus)
    assert all(rank.locality in {"local", "unknown"} for rank in reply.ranks)
    assert not any(rank.widening for rank in reply.ranks)


@given(questions(tuple(set(UNIQUE) - {"even"})), ASKED)
def test_no_rank_of_a_unique_mode_loses_a_cpu_by_asking_for_more(
    question: Question, cpus: str
) -> None:
    question.parameters.pop("rank", None)
    narrow, wide = question.try_to_ask(), widened(question, cpus)
    assume(isinstance(narrow, Reply) and narrow.plan.share == wide.plan.share)
    assert isinstance(narrow, Reply)
    for before, after in zip(narrow.ranks, wide.ranks, strict=True):
        assert before.cpus <= after.cpus
