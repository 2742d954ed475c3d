"""The effect of a process's variables on its plan."""

from collections.abc import Mapping
from typing import Any

import pytest

from affinityd.cpuset import format_list
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import Request, parse_query
from affinityd.request.task_cpus import TaskCpus
from tests.support.tables import cases, rows, words

TORCHRUN = "LOCAL_RANK=1 LOCAL_WORLD_SIZE=4"
MPIRUN = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4"
BATCH = "SLURM_JOB_ID=9 SLURM_LOCALID=0 SLURM_GTIDS=0"
SRUN = f"{BATCH} SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_GTIDS=4,5,6,7 SLURM_GPUS_ON_NODE=4"
BOUND, UNLISTED = "SLURM_CPU_BIND_TYPE", "SLURM_GTIDS= SLURM_STEP_TASKS_PER_NODE"
CUDA, PER_TASK = "CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK"
ALL_FOUR, ONE = f"{CUDA}=0,1,2,3", f"{CUDA}=2"
NVIDIA, AMD = "granted=minor:0,minor:1", "granted=drm:128,drm:129"
SECOND = "rank=1/4"


def read(environ: Mapping[str, str], stated: str = "") -> Request:
    variables = [("env", f"{name}={value}") for name, value in environ.items()]
    return parse_query([*words(stated).items(), *variables])


def told(request: Request) -> str:
    """Return the parts of a request that are not the default, as the tables write them."""
    process = request.task
    rank = "" if process.rank is None else format_list(process.rank)
    ranks = "" if process.ranks is None else f"/{process.ranks}"
    share = request.options.share
    task = process.slurm
    parts = {
        "gpus": process.gpus and ",".join(process.gpus),
        "job": process.job and ",".join(process.job),
        "rank": rank + ranks,
        "share": share if share != "auto" else "",
        "task": task and f"{task.number}/{task.tasks}",
        "of": task and task.step_gpus,
        "masks": task and "+".join(map(format_list, task.masks)),
        "bound": process.bound and process.bound.partition("=")[2].partition(",")[0].split()[0],
    }
    return " ".join(f"{name}={text}" for name, text in parts.items() if text)


@pytest.mark.parametrize(
    ("environ", "expected"),
    cases("task_cpus.tsv", BATCH=BATCH, PER_TASK=PER_TASK, SRUN=SRUN, TORCHRUN=TORCHRUN),
)
def test_the_scheduler_s_variables_tell_how_many_cpus_a_task_asked_for(
    environ: str, expected: str
) -> None:
    numbers: dict[str, Any] = {name: int(text) for name, text in words(expected).items()}
    assert read(words(environ)).task.cpus == (TaskCpus(**numbers) if numbers else None)


@pytest.mark.parametrize(
    ("environ", "expected"),
    cases(
        "tasks.tsv",
        ALL_FOUR=ALL_FOUR,
        BATCH=BATCH,
        BOUND=BOUND,
        CUDA=CUDA,
        MPIRUN=MPIRUN,
        ONE=ONE,
        SECOND=SECOND,
        SRUN=SRUN,
        TORCHRUN=TORCHRUN,
        UNLISTED=UNLISTED,
    ),
)
def test_launcher_and_visible_devices_decide_which_ranks_divide_the_cores(
    environ: str, expected: str
) -> None:
    assert told(read(words(environ))) == expected


@pytest.mark.parametrize(
    ("environ", "stated", "expected"),
    rows(f"""
a rank                        | {CUDA}=0      | rank=2    | rank=2
ranks                         | {TORCHRUN}    | rank=0,1  | rank=0-1/4
a rank, whatever is visible   | {SRUN} {ONE}  | rank=1    | {SECOND}
GPUs, one for each rank       | {SRUN} {ONE}  | gpus=4,5  | gpus=4,5 {SECOND}
the job's GPUs                | {TORCHRUN}    | job=0,1   | {SECOND}
a note of the job's GPUs      | {SRUN} {ONE}  | job=0,1   | job=0,1 task=1/4 of=4
a container with one GPU      | {TORCHRUN} {ONE} | granted=minor:2 | {SECOND}
"""),
)
def test_a_parameter_overrides_the_corresponding_variable(
    environ: str, stated: str, expected: str
) -> None:
    assert told(read(words(environ), stated)) == expected


@pytest.mark.parametrize(
    ("stated", "mode"),
    [("", "node"), ("scope=socket", "all"), ("mode=exclusive scope=socket", "exclusive")],
)
def test_the_default_mode_takes_no_cpus_away(stated: str, mode: str) -> None:
    """Mode node ignores the scope, so a stated scope selects mode all."""
    for query in [("env", "LOCAL_RANK=0")], []:
        request = parse_query([*words(stated).items(), *query])
        assert request.options.mode == mode


@pytest.mark.parametrize(
    ("granted", "own"), [(NVIDIA, "1"), (AMD, "ROCR_VISIBLE_DEVICES=0;HIP_VISIBLE_DEVICES=1")]
)
def test_only_the_variable_of_the_vendor_with_granted_files_counts(granted: str, own: str) -> None:
    request = read(words(f"ROCR_VISIBLE_DEVICES=0 {CUDA}=1"), granted)
    assert request.task.visible == own
    assert len({request}) == 1  # it can be hashed: the daemon keeps plans by their requests


def test_an_unbound_task_has_the_devices_of_its_step_or_else_its_job() -> None:
    for environ, granted in (
        ("SLURM_GPUS_ON_NODE=1", "2,3"),
        ("SLURM_GPUS_ON_NODE=2", "minor:0,minor:1"),
        (f"SLURM_GPUS_ON_NODE=1 {ONE}", "minor:0,minor:1"),
    ):
        request = read(words(f"{BATCH} {environ}"), f"job=2,3 {NVIDIA}")
        assert request.task.granted == granted


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["HOME=/root"], "'HOME' is not read; known are AFFINITYD_ALLOWED, "),
        (["LOCAL_RANK"], "'LOCAL_RANK' is not NAME=VALUE"),
        (["LOCAL_RANK=1", "LOCAL_RANK=2"], "LOCAL_RANK is given twice"),
        (["CUDA_VISIBLE_DEVICES=\0"], "CUDA_VISIBLE_DEVICES: "),
        ([f"CUDA_VISIBLE_DEVICES={'1' * 50000}"], "50000 characters are too many"),
        ([f"SLURM_GTIDS={'1,' * 256}1"], "SLURM_GTIDS: 257 entries are too many"),
        (["AFFINITYD_MODE=fast"], "mode: 'fast' is not one of all"),
    ],
)
def test_a_variable_that_no_plan_reads_is_refused(texts: list[str], told: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse_query([("env", text) for text in texts])
    assert told in str(error.value)


@pytest.mark.parametrize(
    "environ",
    [
        "LOCAL_RANK=4294967294",
        "LOCAL_RANK=0 LOCAL_WORLD_SIZE=4294967295",
        "SLURM_LOCALID=300 SLURM_STEP_ID=0",
        "SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=1000000",
    ],
)
def test_more_ranks_than_a_node_may_have_are_refused(environ: str) -> None:
    with pytest.raises(InvalidRequestError, match="at most 256 ranks"):
        read(words(environ))
