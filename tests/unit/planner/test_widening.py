"""`cpus`: a rank that asked for more CPUs than are near its GPU gets the nearest others, too."""

from __future__ import annotations

import pytest

from affinityd.errors import UnsatisfiableError
from affinityd.request.document import document
from tests.support.asking import ask, cpulists
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
    "dgx": machine("dgx-a100"),  # 128 cores of two CPUs, 8 GPUs
}


@pytest.mark.parametrize(
    ("node", "asked", "expected"),
    rows("""
tasks on CPUs of two nodes share both  | pair | gpus=0,0 mode=node cpuset=3-4 cpus=1  | 3-4~ 3-4~
in a unique mode each has one          | pair | gpus=0,0 cpuset=3-4 cpus=1            | 3 4~
no more are added than were asked for  | pair | mode=node cpuset=3-6 cpus=2           | 3-4~
where enough are near nothing changes  | pair | mode=node cpuset=0-7 cpus=2           | 0-3
or as many as there are                | pair | mode=node cpus=99                     | 0-7~
each core counts once                  | pair | mode=node cpus=7                      | 0-6~
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
a GPU's block is enough                | dgx | gpus=0 cpus=16                        | 48-55,176-183
it is left where it is too small       | dgx | gpus=0 cpus=20                        | 48-63,176-191
but not by ranks that plan by themselves | dgx | gpus=0 cpus=40 share=node           | 48-55,176-183
"""),
)
def test_where_too_few_cpus_are_near_the_nearest_others_are_added(
    node: str, asked: str, expected: str
) -> None:
    """`~` marks ranks that are mixed, `!` those that are remote."""
    ranks = zip(cpulists(reply := ask(NODES[node], **words(asked))), reply.ranks, strict=True)
    marks = {"local": "", "mixed": "~", "remote": "!"}
    assert " ".join(f"{cpus}{marks[rank.locality]}" for cpus, rank in ranks) == expected


@pytest.mark.parametrize(
    ("node", "asked", "code", "part"),
    rows("""
all ranks of a node together | pair | gpus=0,0 rank=1 mode=node cpuset=2-5 cpus=2 | widened | \
rank 1 has CPUs 4-5 away from node 0, its home: 2 allowed CPUs are near, and 4 were asked for
enough        | dgx | gpus=0 cpus=16            | parameter_ignored |
a small block | dgx | gpus=0 cpus=40 share=node | parameter_ignored | cpus=40 is more than the 16
no more are allowed | pair | mode=node cpus=99 | parameter_ignored |
left          | dgx | gpus=0 cpus=20            | share_unavailable | fewer allowed cores than GPUs
idle: of no GPU's node | pair | mode=node cpuset=2-7 cpus=2 | idle_cpus | 4 allowed CPUs (4-7)
less those that came in | pair | mode=node cpuset=2-7 cpus=3 | idle_cpus | 3 allowed CPUs (5-7)
not where nothing was asked for | pair | mode=node cpuset=2-7        | idle_cpus |
nor near ones                   | pair | mode=single cpuset=0-3 cpus=1 | idle_cpus |
"""),
)
def test_cpus_that_are_lacking_or_stay_idle_are_warned_of(
    node: str, asked: str, code: str, part: str
) -> None:
    warnings = ask(NODES[node], **words(asked)).warnings
    messages = [warning.message for warning in warnings if warning.code == code]
    assert len(messages) == bool(part)
    assert all(part in message for message in messages)


def test_a_widened_rank_s_reason_counts_near_and_requested_cpus() -> None:
    reply = ask(PAIR, gpus="0,0", mode="node", cpuset="2-5", cpus="2")
    added = "2 allowed CPUs, and 4 were asked for: CPUs 4-5 of other nodes were added"
    assert all(f"node 0 has {added}" in rank.reasons for rank in reply.ranks)
    assert document(reply).request.cpus == 2


def test_strict_refuses_a_rank_that_would_be_widened() -> None:
    with pytest.raises(UnsatisfiableError, match=r"^strict: rank 0 has CPUs 4 away from node 0"):
        ask(PAIR, mode="node", cpuset="3-4", cpus="2", strict="true")


@pytest.mark.parametrize(
    ("node", "asked", "each"),
    rows("""
a task with one GPU              | pair | AFFINITYD_CPUS=4 cpuset=0-7                    | 4
a task's GPUs divide them        | pair | gpus=0,0 AFFINITYD_CPUS=4                      | 2
none gets less than its part     | pair | gpus=0,0 AFFINITYD_CPUS=3                      | 2
two tasks on a GPU               | pair | gpus=0 ranks=2 rank=1 AFFINITYD_CPUS=2         | 2
tasks on a GPU of the job's        | pair | job=0 ranks=2 rank=1 AFFINITYD_CPUS=2          | 2
a lone task: all it may use      | pair | SLURM_JOB_ID=1 cpuset=2-7                  | 6
whole CPUs                       | pair | ranks=4 rank=0 SLURM_JOB_ID=1 cpuset=2-7   | 1
no more than the job's           | pair | SLURM_JOB_ID=1 cpuset=2-7 SLURM_CPUS_ON_NODE=3       | 3
nor than there are               | pair | AFFINITYD_CPUS=9 cpuset=2-7                    | 6
a node of its own, by a number   | pair | AFFINITYD_CPUS=8                               | 8
by a part: the node's cores a GPU | pair | SLURM_JOB_ID=1                            | 8
a rank of an unknown number      | pair | gpus=0,0 rank=1 AFFINITYD_CPUS=4               | 4
cpus is each rank's as it stands | pair | cpus=3                                    | 3
nothing                          | pair |                                           | None
all of a node: its GPU's part    | dgx | SLURM_JOB_ID=1                              | 16
all but a core that Slurm keeps  | dgx | SLURM_JOB_ID=1 cpuset=1-127,129-255         | 16
one thread of each core          | dgx | SLURM_JOB_ID=1 cpuset=0-127                 | 16
a number that was asked for      | dgx | AFFINITYD_CPUS=64                               | 64
a pod's request, among others    | dgx | SLURM_JOB_ID=1 SLURM_CPUS_ON_NODE=64                  | 64
a part of a node was counted out | dgx | SLURM_JOB_ID=1 cpuset=0-63                  | 64
"""),
)
def test_each_rank_asks_for_its_part_of_a_task_s_cpus(node: str, asked: str, each: str) -> None:
    how = words(f"gpus=0 mode=node {asked}" if node == "dgx" else asked)
    assert str(ask(NODES[node], **how).request.options.cpus) == each
