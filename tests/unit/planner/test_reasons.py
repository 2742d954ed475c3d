"""The reasons that come with a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.asking import ask
from tests.support.machines.by_hand import made
from tests.support.tables import rows, words


@pytest.mark.parametrize(
    ("asked", "reason"),
    rows("""
where the GPU is    |                     | GPU 0 is on NUMA node 0
how many cores      |                     | unique_contiguous: 8 cores of the 8 of node 0
reserved CPUs       | reserved=0-1,8      | CPUs 0-1,8 of node 0 are reserved
the cpuset          | cpuset=0-5          | CPUs 6-15 of node 0 are outside the cpuset or mask
of a socket         | cpuset=0-15 mode=socket | \
CPUs 16-31 of node 0's socket are outside the cpuset or mask
of the machine      | cpuset=0-15 mode=even | \
CPUs 16-31 of the machine are outside the cpuset or mask
the maximum         | max_physical_cores=3 | max_physical_cores leaves out 5 cores
one CPU a core      | multithreading=single_logical | \
single_logical leaves out the siblings 1,3,5,7,9,11,13,15
below the maximum   | multithreading=single_logical max_physical_cores=1 | \
single_logical leaves out the siblings 1
balanced            | gpus=0,0,0          | balanced leaves 2 cores of node 0 unused
a remainder         | gpus=0,0,0 balanced=false | an equal division leaves 2 cores of node 0 unused
blocks              | share=node          | \
share=node: each GPU of node 0 has its own block; balanced may leave cores of it unused
not balanced        | share=node mode=exclusive | share=node: each GPU of node 0 has its own block
other ranks         | gpus=0,0 mode=node  | node: 8 cores of the 8 of node 0, shared by 2 ranks
another home        | cpuset=16-31        | \
that node has no allowed CPU; node 1 is the nearest that has one (distance 20)
unknown             | gpus=1              | \
the machine does not say on which NUMA node GPU 1 is
spread              | gpus=0,1            | node 1 was home to the fewest ranks
no CPUs             | gpus=2              | \
that node has no CPU; node 0 is the nearest that has one (distance unknown)
even                | mode=even           | even: 16 cores of the 16 of node 0 and node 1
even, elsewhere     | mode=even gpus=0,2  | its block begins on node 1
"""),
)
def test_reasons_explain_the_cpus_and_what_was_left_out(asked: str, reason: str) -> None:
    topology = made(
        {0: "0-15", 1: "16-31", 2: ""},
        gpus=[0, None, 2],
        threads=2,
        siblings="adjacent",
        distances=[("0", "1", 20)],
    )
    reply = ask(topology, **words(f"gpus=0 share=requested {asked}"))
    assert reason in reply.ranks[-1].reasons


def test_a_reason_names_the_source_of_the_gpu_s_node() -> None:
    topology = made({0: "", 1: "0-3"}, gpus=[0])
    gpu = replace(topology.gpus[0], numa_source="NVML")
    (rank,) = ask(replace(topology, gpus=(gpu,))).ranks
    assert rank.reasons[:2] == ("GPU 0 is on NUMA node 0 (by NVML)", "only node 1 has CPUs")
