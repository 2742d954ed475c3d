"""The local rank, read from environments as launchers really set them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.request.launchers import LAUNCHERS, local_rank, number

#: What a job's script has, which everything that it starts inherits (Slurm 22.05).
BATCH = (
    "SLURM_JOB_ID=9 SLURM_LOCALID=0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_GTIDS=0 "
    "SLURM_NTASKS=4 SLURM_JOB_GPUS=0,1 SLURM_GPUS_ON_NODE=2"
)
#: What srun adds for task 5 of 3 + 3 on the second node.
STEP = (
    "SLURM_STEP_ID=0 SLURM_LOCALID=2 SLURM_PROCID=5 SLURM_NODEID=1 SLURM_GTIDS=3,4,5 "
    "SLURM_STEP_TASKS_PER_NODE=3(x2) SLURM_TASKS_PER_NODE=3(x2)"
)
#: What srun adds where it only starts another launcher's helper on a node.
HELPER = "SLURM_STEP_ID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=1"
TORCHRUN = "LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 RANK=6 WORLD_SIZE=8 GROUP_RANK=1 ROLE_RANK=6"
OPEN_MPI = (
    "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=3 "
    "OMPI_COMM_WORLD_NODE_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_UNIVERSE_SIZE=4 PMIX_RANK=3"
)
HYDRA = "MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_RANK=3 PMI_SIZE=4 PMI_FD=6"
FLUX = "FLUX_TASK_LOCAL_ID=1 FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_JOB_ID=f1"


def environment(*texts: str) -> dict[str, str]:
    """Return `A=1 B=2` as a mapping; a later text counts before an earlier one."""
    return dict(word.split("=", 1) for text in texts for word in text.split())


def read(*texts: str) -> tuple[int, int | None, str] | None:
    rank = local_rank(environment(*texts))
    return None if rank is None else (rank.number, rank.size, rank.variable)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param((TORCHRUN,), (2, 4, "LOCAL_RANK"), id="torchrun"),
        pytest.param((BATCH, STEP), (2, 3, "SLURM_LOCALID"), id="srun"),
        pytest.param((OPEN_MPI,), (1, 2, "OMPI_COMM_WORLD_LOCAL_RANK"), id="Open MPI"),
        pytest.param((HYDRA,), (1, 2, "MPI_LOCALRANKID"), id="MPICH's hydra, and Intel MPI's"),
        pytest.param(
            ("PMI_LOCAL_RANK=3 PMI_LOCAL_SIZE=12 PMI_RANK=15 PALS_LOCAL_RANKID=3 PALS_RANKID=15",),
            (3, 12, "PMI_LOCAL_RANK"),
            id="Cray PALS",
        ),
        pytest.param((FLUX,), (1, 2, "FLUX_TASK_LOCAL_ID"), id="flux run"),
        pytest.param(
            (FLUX, "FLUX_JOB_NNODES=2"),
            (1, None, "FLUX_TASK_LOCAL_ID"),
            id="flux run over nodes, which does not say how many there are on each",
        ),
        pytest.param((BATCH, STEP, TORCHRUN), (2, 4, "LOCAL_RANK"), id="torchrun under srun"),
        pytest.param(
            (BATCH, OPEN_MPI), (1, 2, "OMPI_COMM_WORLD_LOCAL_RANK"), id="mpirun in a batch script"
        ),
        pytest.param(
            (BATCH, HELPER, OPEN_MPI),
            (1, 2, "OMPI_COMM_WORLD_LOCAL_RANK"),
            id="mpirun, on a node where srun started its helper",
        ),
        pytest.param(
            (BATCH, HELPER, HYDRA),
            (1, 2, "MPI_LOCALRANKID"),
            id="mpiexec, on a node where srun started its helper",
        ),
        pytest.param(
            (OPEN_MPI, TORCHRUN), (2, 4, "LOCAL_RANK"), id="a torchrun that mpirun started"
        ),
        pytest.param(
            (BATCH, STEP, "LOCAL_RANK=-1"),
            (2, 3, "SLURM_LOCALID"),
            id="a LOCAL_RANK of -1, as trainers set where there is none",
        ),
        pytest.param((), None, id="no launcher"),
        pytest.param((BATCH,), None, id="a batch script"),
        pytest.param(("SLURM_JOB_ID=10 SLURM_NTASKS=2",), None, id="salloc's shell, where it runs"),
        pytest.param(
            (BATCH, "SLURM_STEP_ID=4294967290"), None, id="salloc's shell as an interactive step"
        ),
        pytest.param((BATCH, "SLURM_STEP_ID=4294967291"), None, id="the batch step by its number"),
        pytest.param(
            (BATCH, "SLURM_STEP_ID=0"),
            (0, 1, "SLURM_LOCALID"),
            id="srun's lone task",
        ),
        pytest.param(
            (BATCH, "SLURM_LOCALID=3"), (3, None, "SLURM_LOCALID"), id="another than the first task"
        ),
        pytest.param(
            ("SLURM_JOB_ID=9 SLURM_LOCALID=1 SLURM_STEP_ID=0",),
            (1, None, "SLURM_LOCALID"),
            id="srun without a word of how many",
        ),
    ],
)
def test_the_nearest_launcher_says_the_rank(
    texts: tuple[str, ...], expected: tuple[int, int | None, str] | None
) -> None:
    assert read(*texts) == expected


@pytest.mark.parametrize("variable", LAUNCHERS)
@pytest.mark.parametrize(
    "text", ["", " 0", "-1", "+1", "1.0", "0x1", "one", "١", "1" * 11, "\udcff", "²"]
)
def test_what_is_no_number_is_no_rank(variable: str, text: str) -> None:
    assert local_rank({variable: text}) is None


@pytest.mark.parametrize("size", ["2", "0", "-4", "", "four"])
def test_a_number_of_ranks_that_the_rank_is_not_among_is_not_known(size: str) -> None:
    rank = local_rank({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": size})
    assert rank is not None
    assert (rank.number, rank.size) == (2, None)


def test_deepspeed_says_how_many_in_its_own_way() -> None:
    assert read("LOCAL_RANK=1 LOCAL_SIZE=4") == (1, 4, "LOCAL_RANK")


def test_a_launcher_s_lone_task_tells_nothing_of_what_it_started() -> None:
    """Deepspeed, under a lone task of srun."""
    lone = "SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_GTIDS=0"
    assert read(lone, "LOCAL_RANK=0") == (0, None, "LOCAL_RANK")


def test_where_the_nearest_says_no_size_another_that_says_the_same_rank_does() -> None:
    """A script under srun that exports LOCAL_RANK=$SLURM_LOCALID for a framework."""
    assert read(BATCH, STEP, "LOCAL_RANK=1") == (1, None, "LOCAL_RANK")
    assert read(BATCH, STEP, "LOCAL_RANK=2") == (2, 3, "SLURM_LOCALID")


SIZES = (
    *("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    *("FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "SLURM_GTIDS"),
)


@given(
    st.dictionaries(
        st.sampled_from([*LAUNCHERS, *SIZES]),
        st.sampled_from(["0", "1", "2", "3", "x", ""]),
        min_size=4,
    )
)
def test_whatever_the_variables_are_a_rank_is_within_its_size(environ: dict[str, str]) -> None:
    rank = local_rank(environ)
    if rank is not None:
        assert str(rank.number) == environ[rank.variable]
        assert rank.size is None or rank.number < rank.size


@given(st.integers(0, 2**32 - 1))
def test_a_number_is_read_as_it_is_written(value: int) -> None:
    assert number(str(value)) == value
