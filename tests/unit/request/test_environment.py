"""The visible devices and the CPUs of a process, from its environment."""

from collections.abc import Mapping

import pytest

from affinityd.cpuset import parse_list
from affinityd.errors import InvalidRequestError
from affinityd.request import environment
from affinityd.request.environment import LAUNCHERS, is_alone, local_rank, number
from tests.support.tables import cases, rows, words

CUDA, ROCR, HIP, ASCEND = (
    f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "ROCR", "HIP", "ASCEND_RT")
)


@pytest.mark.parametrize(
    ("vendors", "environ", "visible"),
    [
        ("", {}, None),
        ("", {CUDA: ""}, ""),
        ("", {CUDA: " 1,x\udcff"}, " 1,x\udcff"),
        ("", {ROCR: "2"}, f"{ROCR}=2"),
        ("", {ASCEND: "3"}, "3"),
        ("nvidia", {ROCR: "2"}, None),
        ("amd", {HIP: "0", ROCR: "2"}, f"{ROCR}=2;{HIP}=0"),
        ("amd", {CUDA: "1"}, f"{HIP}=1"),
        ("amd", {CUDA: "1", HIP: "0"}, f"{HIP}=0"),
        ("amd", {CUDA: "0", ROCR: "1"}, f"{ROCR}=1;{HIP}=0"),
        ("amd", {CUDA: "1", ROCR: "1"}, f"{ROCR}=1"),  # Slurm sets both variables alike
        ("huawei", {ASCEND: "0,1"}, "0,1"),
        ("nvidia amd", {ROCR: "2"}, f"{ROCR}=2"),
    ],
)
def test_only_variables_of_a_vendor_with_a_driver_count(
    vendors: str, environ: Mapping[str, str], visible: str | None
) -> None:
    """HIP reads CUDA_VISIBLE_DEVICES if its own variable is not set."""
    assert environment.visible(environ, vendors.split()) == visible


@pytest.mark.parametrize(
    ("environ", "mask", "cpus"),
    rows("""
the CPUs of the earlier plan | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-3 | 0-7
the mask was narrowed since  | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-1 | 0-1
the mask was widened since   | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-7 | 0-7
a plan on other CPUs         | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=4-7 | 0-3 | 0-3
only one of the variables    | AFFINITYD_CPULIST=0-3                       | 0-3 | 0-3
a malformed cpulist          | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=x   | 0-3 | 0-3
no earlier pin               |                                             | 0-3 | 0-3
"""),
)
def test_a_mask_that_an_earlier_pin_set_is_no_limit(environ: str, mask: str, cpus: str) -> None:
    assert environment.cpus_to_plan_on(words(environ), parse_list(mask)) == parse_list(cpus)


#: Variables in tests/data/local_ranks.tsv. BATCH: a job's script, whose programs inherit them
#: (Slurm 22.05). STEP: task 5 of srun, the last of the second node's three tasks. HELPER: the only
#: task of srun on its node, which may be another launcher's helper.
SAID = {
    "BATCH": (
        "SLURM_JOB_ID=9 SLURM_LOCALID=0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_GTIDS=0 "
        "SLURM_NTASKS=4 SLURM_JOB_GPUS=0,1 SLURM_GPUS_ON_NODE=2"
    ),
    "STEP": (
        "SLURM_STEP_ID=0 SLURM_LOCALID=2 SLURM_PROCID=5 SLURM_NODEID=1 SLURM_GTIDS=3,4,5 "
        "SLURM_STEP_TASKS_PER_NODE=3(x2) SLURM_TASKS_PER_NODE=3(x2)"
    ),
    "HELPER": "SLURM_STEP_ID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=1",
    "TORCHRUN": "LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 RANK=6 WORLD_SIZE=8 GROUP_RANK=1 ROLE_RANK=6",
    "OPEN_MPI": (
        "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=3 "
        "OMPI_COMM_WORLD_NODE_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_UNIVERSE_SIZE=4 PMIX_RANK=3"
    ),
    "OPEN_MPI_ALONE": "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
    "HYDRA": "MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_RANK=3 PMI_SIZE=4 PMI_FD=6",
    "PALS": "PMI_LOCAL_RANK=3 PMI_LOCAL_SIZE=12 PMI_RANK=15 PALS_LOCAL_RANKID=3 PALS_RANKID=15",
    "FLUX": (
        "FLUX_TASK_LOCAL_ID=1 FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_JOB_ID=f1"
    ),
}


def read(environ: dict[str, str]) -> str:
    """Return a local rank as `number/size variable`."""
    rank = local_rank(environ)
    return "" if rank is None else f"{rank.number}/{rank.size} {rank.variable}"


@pytest.mark.parametrize(("environ", "expected"), cases("local_ranks.tsv", **SAID))
def test_the_nearest_launcher_gives_the_rank(environ: str, expected: str) -> None:
    assert read(words(environ)) == expected


def test_a_rank_that_is_no_number_is_refused() -> None:
    for text in (" 0", "-2", "+1", "1.0", "0x1", "one", "١", "1" * 11, "\udcff", "²"):
        for variable in LAUNCHERS:
            with pytest.raises(
                InvalidRequestError, match=f"^{variable}=.* is no number: unset it$"
            ):
                local_rank({variable: text})
    for text in ("", "-1"):
        assert [read({variable: text}) for variable in LAUNCHERS] == [""] * len(LAUNCHERS)
    assert (number("0"), number(str(2**32 - 1))) == (0, 2**32 - 1)


TWO = "{} and {} are of two launchers, and it is not known which is nearer: unset one variable"
OTHERS = "PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ("LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2, but there are 2 ranks here: unset it"),
        ("MPI_LOCALRANKID=0 MPI_LOCALNRANKS=four", "MPI_LOCALNRANKS='four' is no number: unset it"),
        (
            "OMPI_COMM_WORLD_LOCAL_RANK=1 PMI_LOCAL_RANK=0",
            TWO.format("OMPI_COMM_WORLD_LOCAL_RANK=1", "PMI_LOCAL_RANK=0"),
        ),
        (OTHERS, TWO.format("PMI_LOCAL_RANK=1", "PALS_LOCAL_RANKID=1")),
        (
            f"LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 {SAID['OPEN_MPI']}",
            TWO.format("LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=1"),
        ),
        (
            f"{SAID['HYDRA']} FLUX_TASK_LOCAL_ID=0 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1",
            TWO.format("MPI_LOCALRANKID=1", "FLUX_TASK_LOCAL_ID=0"),
        ),
    ],
)
def test_launchers_that_contradict_each_other_name_no_rank(environ: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        local_rank(words(environ))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", True),
        ("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none", False),
        ("LOCAL_RANK=0", True),
        ("LOCAL_RANK=1", False),
        ("LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", False),
        ("SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=9", True),
        ("SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=9 SLURM_GTIDS=0,1", False),
        ("PALS_LOCAL_RANKID=0 PALS_LOCAL_SIZE=1", True),
        (SAID["OPEN_MPI_ALONE"], True),
    ],
)
def test_a_task_is_alone_if_no_launcher_says_that_there_are_others(
    environ: str, *, expected: bool
) -> None:
    rank = local_rank(words(environ))
    assert rank is not None
    assert is_alone(words(environ), rank) == expected
