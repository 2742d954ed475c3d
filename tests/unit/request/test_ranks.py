"""Which GPU each rank drives, and which ranks are answered for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd import machines
from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.topology.model import MigInstance
from tests.support.asking import ask, lists, try_to_ask
from tests.support.tables import rows, words

DGX = machines.load("dgx-a100")  # GPUs in pairs on nodes 3, 1, 7, 5


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ("gpus=0,1", [0, 1]),
        ("gpus=all ranks=2", [0, 1]),
        ("gpus=all ranks=10", [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]),
        ("gpus=all ranks=10 rank=9", [1]),
        ("gpus=4,5 ranks=4", [4, 5, 4, 5]),
        ("visible=6,7 ranks=3", [6, 7, 6]),
        ("job=2,3 visible=3", [3]),
        ("job=2,3 visible=2,3 gpus=0", [2]),
        ("job=2,3,4 granted=3,4", [3, 4]),
        ("job=2,3,2,3 visible=3", [3, 3]),
    ],
)
def test_a_rank_drives_its_gpu(asked: str, gpus: list[int]) -> None:
    assert [rank.gpu.index for rank in ask(DGX, **words(asked)).ranks] == gpus


def test_ranks_on_one_gpu_divide_its_cores() -> None:
    assert lists(DGX, "gpus=0 ranks=2 share=requested") == "48-55,176-183 56-63,184-191"


@pytest.mark.parametrize(
    ("own", "rank"),
    [("MIG-a1", [0]), ("MIG-a2", [1]), ("GPU-0", [0, 1])],
)
def test_tasks_on_instances_of_one_gpu_have_a_part_of_its_cores_each(
    own: str, rank: list[int]
) -> None:
    first = replace(DGX.gpus[0], uuid="GPU-0", mig=(MigInstance("MIG-a1"), MigInstance("MIG-a2")))
    node = replace(DGX, gpus=(first, *DGX.gpus[1:]))
    reply = ask(node, job="MIG-a1,MIG-a2", visible=own)
    assert [one.rank for one in reply.ranks] == rank


@pytest.mark.parametrize(
    ("asked", "message"),
    rows("""
no ranks           | ranks=0                      | ranks: '0' is not a whole number from 1
too many           | ranks=257                    | ranks: 257 ranks are too many; the most is 256
beyond them        | ranks=2 rank=2               | there is no rank 2
no ranks of a job  | job=0 rank=0                 | job needs ranks and rank
none of a job's    | job=0 ranks=1                | job takes one rank: which of the 1
several of a job's | job=0 ranks=2 rank=0-1       | job takes one rank
beyond a job's     | job=0 ranks=2 rank=2         | there is no rank 2
whose GPUs         | gpu_bind=gpu:none            | gpu_bind needs ranks and rank
of which task      | job=0 gpu_bind=gpu:none      | gpu_bind needs ranks and
whose CPUs         | cpu_bind=0x1                 | cpu_bind needs ranks and rank
no mask            | cpu_bind=0xg                 | mask '0xg' is not hexadecimal
no name            | job=foo                      | job: gpus: 'foo' is not an index
whose CPUs are meant | whose=node cpuset=0        | whose=node plans on all of the node, cpuset on
"""),
)
def test_what_is_wrong_is_said(asked: str, message: str) -> None:
    error = try_to_ask(DGX, **words(asked))
    assert isinstance(error, InvalidRequestError)
    assert message in str(error)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("job=8", "job: no GPU 8"),
        (
            "job=0,1 visible=2",
            "job: the caller's GPU 0 (0000:47:00.0) is not among the job's: 0 (0",
        ),
    ],
)
def test_a_job_s_gpu_that_is_not_here_or_a_caller_s_that_is_not_the_job_s_is_told(
    asked: str, message: str
) -> None:
    error = try_to_ask(DGX, **words(asked))
    assert isinstance(error, NoSuchGpuError)
    assert str(error).startswith(message)
