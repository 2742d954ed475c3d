"""`cpus`: a rank that asked for more CPUs than are near its GPU gets the nearest others, too."""

from __future__ import annotations

import pytest

from affinityd.errors import AffinityError, UnsatisfiableError
from affinityd.request.formats import document
from tests.support.asking import ask, codes, cpulists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import rows, words

#: Two nodes of four CPUs, a GPU on the first.
PAIR = made({0: "0-3", 1: "4-7"})
NODES = {
    "pair": PAIR,
    "both": made({0: "0-3", 1: "4-7"}, gpus=[0, 1]),
    # Node 1 is nearer to node 0 than node 2 is; cores of two CPUs: 0 and 6, 1 and 7, …
    "chain": made(
        {0: "0-1,6-7", 1: "2-3,8-9", 2: "4-5,10-11"},
        threads=2,
        distances=[("0", "1", 40), ("0", "2", 20), ("1", "2", 20)],
    ),
    "caches": made({0: "0-3", 1: "4-7"}, cores_per_llc=2),
    "socket": made({0: "0-1", 1: "2-3", 2: "4-5"}, packages={0: "0-3", 1: "4-5"}),
}


@pytest.mark.parametrize(
    ("node", "asked", "expected"),
    rows("""
tasks on CPUs of two nodes share both  | pair | gpus=0,0 mode=node cpuset=3-4 cpus=1  | 3-4~ 3-4~
in a unique mode each has one          | pair | gpus=0,0 cpuset=3-4 cpus=1            | 3 4~
no more are added than were asked for  | pair | mode=node cpuset=3-6 cpus=2           | 3-4~
where enough are near nothing changes  | pair | mode=node cpuset=0-7 cpus=2           | 0-3
or as many as there are                | pair | mode=node cpus=99                     | 0-7~
the nearest node's cores, whole ones   | chain | mode=node cpus=5                    | 0-1,4,6-7,10~
CPUs that are given count | chain | mode=node cpus=4 multithreading=single_logical    | 0-1,4-5~
ranks that share leave others' near CPUs | both | mode=node cpuset=0-1,4-7 cpus=4     | 0-1 4-7
as ranks that do not, while these use them | both | cpuset=0-1,4-7 cpus=3 balanced=no | 0-1 4-7
what balanced leaves idle is taken     | both | cpuset=0-1,4-7 cpus=3                 | 0-1,6~ 4-5,7
so is the rest of an equal division    | pair | gpus=0,0 cpuset=0-2 cpus=2            | 0,2 1
cores are not cut in two               | chain | gpus=0,0 cpus=3             | 0,4,6,10~ 1,5,7,11~
near cores stay with the rank of old   | chain | gpus=0,0 cpus=4             | 0,4,6,10~ 1,5,7,11~
one core a rank | pair | gpus=0,0 mode=single_unique cpuset=3-5 cpus=2                | 3 4~
the maximum cuts all the same          | pair | cpus=6 max_physical_cores=5           | 0-4~
caches do not grow | caches | gpus=0,0 mode=core_complex cpuset=2,4-7 cpus=2          | 2 2
all is far: remote, not widened        | pair | cpuset=4-7 mode=node cpus=2           | 4-7!
a socket is widened beyond itself      | socket | mode=socket cpus=5                  | 0-4~
what the mode has anyway is no widening | socket | mode=socket cpus=4                 | 0-3
"""),
)
def test_where_too_few_cpus_are_near_the_nearest_others_are_added(
    node: str, asked: str, expected: str
) -> None:
    """`~` marks ranks that are mixed, `!` those that are remote."""
    ranks = zip(cpulists(reply := ask(NODES[node], **words(asked))), reply.ranks, strict=True)
    marks = {"local": "", "mixed": "~", "remote": "!"}
    assert " ".join(f"{cpus}{marks[rank.locality]}" for cpus, rank in ranks) == expected


def test_a_rank_says_how_many_were_near_and_how_many_were_asked_for() -> None:
    reply = ask(PAIR, gpus="0,0", mode="node", cpuset="2-5", cpus="2")
    lack = "2 allowed CPUs are near, and 4 were asked for"
    assert [it.message for it in reply.warnings if it.code == "widened"] == [
        f"rank {rank} has CPUs 4-5 away from node 0, its home: {lack}" for rank in (0, 1)
    ]
    added = "2 allowed CPUs, and 4 were asked for: CPUs 4-5 of other nodes were added"
    assert all(f"node 0 has {added}" in rank.reasons for rank in reply.ranks)
    assert document(reply).request.cpus == 2


def test_strict_refuses_a_rank_that_would_be_widened() -> None:
    with pytest.raises(UnsatisfiableError, match=r"^strict: rank 0 has CPUs 4 away from node 0"):
        ask(PAIR, mode="node", cpuset="3-4", cpus="2", strict="true")


@pytest.mark.parametrize(
    ("asked", "idle"),
    rows("""
those of no GPU's node         | cpuset=2-7 cpus=2 | 4 allowed CPUs (4-7)
less those that came in        | cpuset=2-7 cpus=3 | 3 allowed CPUs (5-7)
not where nothing was asked for | cpuset=2-7       |
nor near ones                  | cpuset=0-3 cpus=1 mode=single |
"""),
)
def test_allowed_cpus_that_stay_idle_for_being_far_are_counted(asked: str, idle: str) -> None:
    warnings = ask(PAIR, **words(f"mode=node {asked}")).warnings
    assert [it.message for it in warnings if it.code == "idle_cpus"] == (
        [f"{idle} will stay idle, near none of these GPUs"] if idle else []
    )


def test_a_gpu_s_block_that_is_too_small_is_left_unless_ranks_plan_by_themselves() -> None:
    dgx = machine("dgx-a100")
    enough = ask(dgx, gpus="0", cpus="16")
    assert (cpulists(enough), enough.plan.share) == (["48-55,176-183"], "node")
    assert "parameter_ignored" not in codes(enough)
    apart = ask(dgx, gpus="0", cpus="40", share="node")
    assert (cpulists(apart), apart.plan.share) == (["48-55,176-183"], "node")
    (said,) = (it.message for it in apart.warnings if it.code == "parameter_ignored")
    assert said.startswith("rank 0: cpus=40 is more than the 16 CPUs of its GPU's block")
    more = ask(dgx, gpus="0", cpus="20")
    assert (cpulists(more), more.plan.share) == (["48-63,176-191"], "requested")
    assert "share_unavailable" in codes(more)


@pytest.mark.parametrize(
    ("asked", "each"),
    rows("""
a task with one GPU                 | task_cpus=4 cpuset=0-7                          | 4
a task's GPUs divide them           | gpus=0,0 task_cpus=4                            | 2
none gets less than its part        | gpus=0,0 task_cpus=3                            | 2
two tasks on a GPU                  | gpus=0 ranks=2 rank=1 task_cpus=2               | 2
sharing, a rank is both tasks       | job=0 ranks=2 rank=1 task_cpus=2 mode=node      | 4
else each is one                    | job=0 ranks=2 rank=1 task_cpus=2                | 2
a lone task: all it may use         | task_cpus=1/1 cpuset=2-7                        | 6
whole CPUs                          | ranks=4 rank=0 task_cpus=1/4 cpuset=2-7         | 1
no more than the job's              | task_cpus=1/1 cpuset=2-7 job_cpus=3             | 3
nor than there are                  | task_cpus=9 cpuset=2-7                          | 6
a node of its own, by a number      | task_cpus=8                                     | 8
by a part: the node's cores a GPU   | task_cpus=1/1                                   | 8
a rank of an unknown number         | gpus=0,0 rank=1 task_cpus=4                     | 4
on its slice: gpu:closest           | cpuset=4-7 task_cpus=1/2 gpus=0 ranks=2 rank=1 \
gpu_bind=gpu:closest cpu_bind=0xf,0xf0                                                | 4
cpus is each rank's as it stands    | cpus=3                                          | 3
nothing                             |                                                 | None
"""),
)
def test_what_a_task_asked_for_is_told_for_each_rank(asked: str, each: str) -> None:
    assert str(ask(PAIR, **words(asked)).request.options.cpus) == each


@pytest.mark.parametrize(
    ("asked", "each"),
    rows("""
all of it                            |                       | 16
all but a core that Slurm keeps      | cpuset=1-127,129-255  | 16
one thread of each core              | cpuset=0-127          | 16
a number that was asked for          | task_cpus=64          | 64
a pod with a request, among others   | job_cpus=64           | 64
a part of it was counted out         | cpuset=0-63           | 64
"""),
)
def test_a_node_of_its_own_is_not_taken_for_what_a_task_asked_for(asked: str, each: str) -> None:
    dgx = machine("dgx-a100")  # 128 cores of two CPUs, 8 GPUs
    reply = ask(dgx, **words(f"gpus=0 mode=node task_cpus=1/1 {asked}"))
    assert reply.request.options.cpus == int(each)
    assert (each == "16") == (reply.ranks[0].locality == "local")


def test_what_a_task_and_what_its_ranks_asked_for_are_not_given_together() -> None:
    with pytest.raises(AffinityError, match=r"^cpus=2 is what each rank asked for, task_cpus what"):
        ask(PAIR, cpus="2", task_cpus="3")
