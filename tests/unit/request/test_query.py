"""What follows from the raw variables that scripts pass on with `env`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.request.parameters import Request, parse_request
from affinityd.request.query import PASSED, parse_query
from tests.support.tables import rows, words

TASK = "SLURM_JOB_ID=1"
STEP = "SLURM_STEP_ID=0 SLURM_GTIDS=4,5 SLURM_LOCALID=1"
NVIDIA, AMD = "granted=minor:0,minor:1", "granted=drm:128,drm:129"
ONE = "CUDA_VISIBLE_DEVICES=1"
SECOND = "visible=1 ranks=2 rank=1 task_cpus=1/2"


def read(environ: Mapping[str, str], stated: str = "") -> tuple[Request, ...]:
    variables = [("env", f"{name}={value}") for name, value in environ.items()]
    return parse_query([*words(stated).items(), *variables])


def requests(*questions: Mapping[str, str]) -> tuple[Request, ...]:
    return tuple(parse_request(question.items()) for question in questions)


@pytest.mark.parametrize(
    ("environ", "expected"),
    rows(f"""
a task of a job without a note | {STEP} {ONE} SLURMD_TRES_BIND=gpu:single:1 | \
{SECOND} gpu_bind=gpu:single:1 share=node
one that sees what all see | {STEP} CUDA_VISIBLE_DEVICES=0,1 SLURM_GPUS_ON_NODE=2 | \
visible=0,1 ranks=2 rank=1 step_gpus=2 task_cpus=1/2 share=node
slices of the CPUs, a share that was chosen | {STEP} {ONE} SLURM_GPUS_ON_NODE=2 \
SLURM_CPU_BIND_LIST=0x1,0x2 AFFINITYD_SHARE=requested | \
{SECOND} step_gpus=2 gpu_bind=gpu:per_task:1 cpu_bind=0x1,0x2 share=requested
all that can be chosen | {ONE} AFFINITYD_MODE=exclusive AFFINITYD_SCOPE=socket \
AFFINITYD_MULTITHREADING=single_logical AFFINITYD_BALANCED=no AFFINITYD_STRICT=yes \
AFFINITYD_MIN_PHYSICAL_CORES=2 AFFINITYD_MAX_PHYSICAL_CORES=4 AFFINITYD_CPUS=3 | \
visible=1 mode=exclusive scope=socket multithreading=single_logical balanced=no strict=yes \
min_physical_cores=2 max_physical_cores=4 task_cpus=3
what is empty is not | {ONE} AFFINITYD_SCOPE=socket AFFINITYD_MODE= | \
visible=1 mode=all scope=socket
whatever other launchers say | {STEP} {ONE} LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 | \
{SECOND} gpu_bind=gpu:per_task:1 share=node
no numbers     | {ONE} SLURM_CPUS_PER_TASK=many SLURM_NTASKS=$(id) | visible=1
no number of GPUs | {ONE} SLURM_GPUS_ON_NODE=0 | visible=1
"""),
)
def test_a_task_of_slurm_is_known_by_its_variables(environ: str, expected: str) -> None:
    meant = words(f"mode=node task_cpus=1/1 {expected}")
    assert read(words(f"{TASK} {environ}")) == requests(meant)


@pytest.mark.parametrize(
    ("granted", "own"), [(NVIDIA, "1"), (AMD, "ROCR_VISIBLE_DEVICES=0;HIP_VISIBLE_DEVICES=1")]
)
def test_the_variable_counts_of_the_vendor_whose_files_were_granted(granted: str, own: str) -> None:
    visible = read(words(f"ROCR_VISIBLE_DEVICES=0 {ONE}"), granted)
    assert visible == requests(words(f"mode=node visible={own} {granted}"))


def test_what_is_visible_is_taken_to_the_letter() -> None:
    odd = "MIG-1a/2 &visible=3#\n4"
    assert read({"CUDA_VISIBLE_DEVICES": odd}) == requests({"visible": odd, "mode": "node"})


def test_the_gpus_of_a_job_count_unless_they_are_others() -> None:
    noted, without = read(words(f"{TASK} {STEP} {ONE}"), "job=0,1")
    assert (noted.job, noted.options.share) == (("0", "1"), "auto")
    assert without == replace(noted, job=None, options=replace(without.options, share="node"))


def test_a_task_that_is_not_bound_has_its_step_s_devices_else_its_job_s() -> None:
    for environ, granted in (
        ("SLURM_GPUS_ON_NODE=1", "2,3"),
        ("SLURM_GPUS_ON_NODE=2", "minor:0,minor:1"),
        (f"SLURM_GPUS_ON_NODE=1 {ONE}", "minor:0,minor:1"),
    ):
        request, *_ = read(words(f"{TASK} {environ}"), f"job=2,3 {NVIDIA}")
        assert request.granted == granted


@pytest.mark.parametrize(
    ("environ", "expected"),
    rows(f"""
a GPU of its own each | LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 {ONE} | visible=1 share=node
a mode that divides by numbers | LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 {ONE} AFFINITYD_MODE=core-complex \
| visible=1 ranks=2 rank=1 mode=core-complex
its part of the CPU request | AFFINITYD_JOB_CPUS=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 | \
ranks=2 rank=1 job_cpus=8 task_cpus=1/2
the mask of an earlier pin is no limit | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | cpuset=0-7
"""),
)
def test_a_container_s_process_is_known_by_its_launcher_and_devices(
    environ: str, expected: str
) -> None:
    container = f"{NVIDIA} cpuset=0-3"
    assert read(words(environ), container) == requests(words(f"mode=node {container} {expected}"))


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["HOME=/root"], "'HOME' is not read; known are AFFINITYD_ALLOWED, "),
        (["LOCAL_RANK"], "'LOCAL_RANK' is not NAME=VALUE"),
        (["LOCAL_RANK=1", "LOCAL_RANK=2"], "LOCAL_RANK is given twice"),
        (["CUDA_VISIBLE_DEVICES=\0"], "CUDA_VISIBLE_DEVICES: "),
        ([f"CUDA_VISIBLE_DEVICES={'1' * 40000}"], "40000 characters are too many"),
        (["AFFINITYD_MODE=fast"], "mode: 'fast' is not one of all"),
    ],
)
def test_what_is_no_variable_of_a_plan_s_is_refused(texts: list[str], told: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse_query([("env", text) for text in texts])
    assert told in str(error.value)


@given(
    environ=st.dictionaries(st.sampled_from(sorted(PASSED)), st.text(max_size=8)),
    stated=st.dictionaries(st.sampled_from(["granted", "job", "cpuset"]), st.text("0123,-")),
)
def test_any_environment_is_read_or_refused(
    environ: Mapping[str, str], stated: Mapping[str, str]
) -> None:
    try:
        assert parse_query([*stated.items(), *(("env", f"{n}={it}") for n, it in environ.items())])
    except AffinityError:
        return


def test_without_variables_a_query_is_its_parameters() -> None:
    assert parse_query([("gpus", "0"), ("rank", "0")]) == requests({"gpus": "0", "rank": "0"})
