"""Which GPU each rank drives, and which ranks an answer is for."""

from dataclasses import replace

import pytest

from affinityd.errors import AffinityError, InvalidRequestError, NoSuchGpuError, UnsatisfiableError
from affinityd.machines import load
from affinityd.topology.model import MigInstance
from tests.support.asking import ask, lists
from tests.support.tables import words

DGX = load("dgx-a100")  # GPUs in pairs on nodes 3, 1, 7, 5


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ("gpus=all ranks=2", [0, 1]),
        ("gpus=all ranks=10", [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]),
        ("gpus=all ranks=10 rank=9", [1]),
        ("visible=6,7 ranks=3", [6, 7, 6]),
        ("job=2,3 visible=2,3 gpus=0", [2]),
        ("job=2,3,4 granted=3,4", [3, 4]),
        ("job=2,3,2,3 visible=3", [3, 3]),
    ],
)
def test_a_rank_drives_its_gpu(asked: str, gpus: list[int]) -> None:
    assert [rank.gpu.index for rank in ask(DGX, **words(asked)).ranks] == gpus


def test_ranks_on_one_gpu_divide_its_cores() -> None:
    assert lists(DGX, "gpus=0 ranks=2 share=requested") == "48-55,176-183 56-63,184-191"
    tasks = [lists(DGX, f"gpus=0,1 job=0,1 ranks=4 rank={rank}") for rank in range(4)]
    assert tasks == ["48-51,176-179", "56-59,184-187", "52-55,180-183", "60-63,188-191"]


@pytest.mark.parametrize(
    ("asked", "cpus"),
    [
        ("AFFINITYD_CPUS=32 LOCAL_RANK=1", "8-15,56-63,136-143,184-191"),
        ("AFFINITYD_CPUS=32 visible=0,1", "48-55,176-183 56-63,184-191"),
    ],
)
def test_stated_cpus_are_the_rank_s_or_are_divided_among_its_gpus(asked: str, cpus: str) -> None:
    """The rank's launcher does not tell the number of ranks."""
    assert lists(DGX, asked) == cpus


def test_tasks_on_instances_of_one_gpu_have_a_part_of_its_cores_each() -> None:
    first = replace(DGX.gpus[0], uuid="GPU-0", mig=(MigInstance("MIG-a1"), MigInstance("MIG-a2")))
    node = replace(DGX, gpus=(first, *DGX.gpus[1:]))
    for own, ranks in ("MIG-a1", [0]), ("MIG-a2", [1]), ("GPU-0", [0, 1]):
        reply = ask(node, job="MIG-a1,MIG-a2", visible=own)
        assert [one.rank for one in reply.ranks] == ranks


RESERVED = "reserved=0-255 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_GTIDS=0,1 mode=node"
NOT_THE_JOB_S = "job: the caller's GPU 0 (0000:47:00.0) is not among the job's: 0 (0"


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ("ranks=0", InvalidRequestError, "ranks: '0' is not a whole number from 1"),
        ("ranks=2 rank=2", InvalidRequestError, "rank: there is no rank 2; the request has"),
        ("job=0 rank=0", InvalidRequestError, "job needs ranks"),
        ("job=0 ranks=1", InvalidRequestError, "job needs ranks"),
        ("job=0 ranks=2 rank=0-1", InvalidRequestError, "job needs ranks"),
        ("job=0 gpus=0 ranks=2 rank=2", InvalidRequestError, "rank: there is no rank 2"),
        ("job=foo", InvalidRequestError, "job: gpus: 'foo' is not an index"),
        ("whose=node cpuset=0", InvalidRequestError, "whose=node plans on the whole node, cpuset"),
        ("job=8", NoSuchGpuError, "job: no GPU 8"),
        ("job=0,1 visible=2", NoSuchGpuError, NOT_THE_JOB_S),
        ("AFFINITYD_SLICE=x", InvalidRequestError, "env: AFFINITYD_SLICE: "),
        ("AFFINITYD_SLICE=", UnsatisfiableError, "no CPU is allowed: the launcher's mask has none"),
        (RESERVED, UnsatisfiableError, "no CPU is allowed: the cpuset holds none of the CPUs"),
    ],
)
def test_ranks_that_do_not_fit_the_gpus_are_refused(
    asked: str, kind: type[AffinityError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        ask(DGX, **words(asked))
    assert str(caught.value).startswith(message)
