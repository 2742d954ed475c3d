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

TASK = {"SLURM_JOB_ID": "1"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "4,5", "SLURM_LOCALID": "1"}
NVIDIA = {"granted": "minor:0,minor:1"}
AMD = {"granted": "drm:128,drm:129"}
ONE = {"CUDA_VISIBLE_DEVICES": "1"}
SECOND = {"visible": "1", "ranks": "2", "rank": "1", "task_cpus": "1/2"}


def read(environ: Mapping[str, str], stated: Mapping[str, str] = {}) -> tuple[Request, ...]:
    variables = [("env", f"{name}={value}") for name, value in environ.items()]
    return parse_query([*stated.items(), *variables])


def requests(*questions: Mapping[str, str]) -> tuple[Request, ...]:
    return tuple(parse_request(question.items()) for question in questions)


@pytest.mark.parametrize(
    ("environ", "stated", "expected"),
    [
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "0"}, NVIDIA, {"visible": "0", **NVIDIA}, id="NVIDIA"
        ),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "1"},
            AMD,
            {"visible": "ROCR_VISIBLE_DEVICES=1", **AMD},
            id="AMD",
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"},
            AMD,
            {"visible": "ROCR_VISIBLE_DEVICES=1", **AMD},
            id="AMD: Slurm sets both to the same",
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "MIG-1a/2 &visible=3#\n4"},
            {},
            {"visible": "MIG-1a/2 &visible=3#\n4"},
            id="whatever is visible, to the letter",
        ),
        pytest.param(
            {**STEP, **ONE, "SLURMD_TRES_BIND": "gpu:single:1"},
            {},
            {**SECOND, "gpu_bind": "gpu:single:1", "share": "node"},
            id="a task among others, of a job without a note",
        ),
        pytest.param(
            {
                **STEP,
                **ONE,
                "SLURM_GPUS_ON_NODE": "2",
                "SLURM_CPU_BIND_LIST": "0x1,0x2",
                "AFFINITYD_SHARE": "requested",
            },
            {},
            {
                **SECOND,
                "step_gpus": "2",
                "gpu_bind": "gpu:per_task:1",
                "cpu_bind": "0x1,0x2",
                "share": "requested",
            },
            id="with slices of the CPUs, and a share that somebody chose",
        ),
        pytest.param(
            {
                **ONE,
                "AFFINITYD_MODE": "exclusive",
                "AFFINITYD_SCOPE": "socket",
                "AFFINITYD_MULTITHREADING": "single_logical",
                "AFFINITYD_BALANCED": "no",
                "AFFINITYD_STRICT": "yes",
                "AFFINITYD_MIN_PHYSICAL_CORES": "2",
                "AFFINITYD_MAX_PHYSICAL_CORES": "4",
            },
            {},
            {
                "visible": "1",
                "mode": "exclusive",
                "scope": "socket",
                "multithreading": "single_logical",
                "balanced": "no",
                "strict": "yes",
                "min_physical_cores": "2",
                "max_physical_cores": "4",
            },
            id="all that can be chosen",
        ),
        pytest.param(
            {**ONE, "AFFINITYD_SCOPE": "socket", "AFFINITYD_MODE": ""},
            {},
            {"visible": "1", "mode": "all", "scope": "socket"},
            id="a scope without a mode",
        ),
        pytest.param(
            {**STEP, **ONE, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"},
            {},
            {**SECOND, "gpu_bind": "gpu:per_task:1", "share": "node"},
            id="whatever other launchers say",
        ),
        pytest.param(
            {"HIP_VISIBLE_DEVICES": "1"},
            AMD,
            {"visible": "HIP_VISIBLE_DEVICES=1", **AMD},
            id="by any variable of its GPUs' vendor",
        ),
        pytest.param(
            {**ONE, "SLURM_STEP_ID": "3", "SLURM_CPUS_PER_TASK": "6"},
            {},
            {"visible": "1", "task_cpus": "6"},
            id="how many CPUs a task of srun asked for",
        ),
        pytest.param(
            {**ONE, "SLURM_CPUS_PER_TASK": "6", "SLURM_NTASKS": "4"},
            {},
            {"visible": "1", "task_cpus": "24"},
            id="a batch script has what all of its tasks asked for",
        ),
        pytest.param(
            {**ONE, "SLURM_STEP_ID": "4294967290", "SLURM_CPUS_PER_TASK": "6"},
            {},
            {"visible": "1", "task_cpus": "6"},
            id="and an interactive step",
        ),
        pytest.param(
            {**ONE, "SLURM_CPUS_PER_TASK": "many", "SLURM_NTASKS": "$(id)"},
            {},
            {"visible": "1"},
            id="what is no number asks for nothing",
        ),
        pytest.param(
            {**ONE, "AFFINITYD_CPUS": "3"}, {}, {"visible": "1", "task_cpus": "3"}, id="a number"
        ),
        pytest.param(
            {**ONE, "SLURM_JOB_CPUS_PER_NODE": "8(x2)"},
            {},
            {"visible": "1", "job_cpus": "8"},
            id="the CPUs of the job on each of its nodes",
        ),
        pytest.param(
            {**ONE, "SLURM_JOB_CPUS_PER_NODE": "8,4"},
            {},
            {"visible": "1"},
            id="which says nothing where nodes differ",
        ),
        pytest.param(
            {**ONE, "SLURM_GPUS_ON_NODE": "0"}, {}, {"visible": "1"}, id="no number of GPUs"
        ),
    ],
)
def test_a_task_of_slurm_is_known_by_its_variables(
    environ: Mapping[str, str], stated: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    expected = {"mode": "node", "task_cpus": "1/1", **expected}
    assert read({**TASK, **environ}, stated) == requests(expected)


def test_near_cpus_alone_is_a_choice() -> None:
    (request,) = read({**TASK, **ONE, "AFFINITYD_CPUS": "none"})
    assert request.task_cpus is None


def test_the_gpus_of_a_job_count_unless_they_are_others() -> None:
    noted, without = read({**TASK, **STEP, **ONE}, {"job": "0,1"})
    assert (noted.job, noted.options.share) == (("0", "1"), "auto")
    assert without == replace(noted, job=None, options=replace(without.options, share="node"))


@pytest.mark.parametrize(
    ("environ", "granted"),
    [
        ({"SLURM_GPUS_ON_NODE": "1"}, "2,3"),
        ({"SLURM_GPUS_ON_NODE": "2"}, "minor:0,minor:1"),
        ({"SLURM_GPUS_ON_NODE": "1", **ONE}, "minor:0,minor:1"),
    ],
)
def test_a_task_that_is_not_bound_has_its_step_s_devices_else_its_job_s(
    environ: Mapping[str, str], granted: str
) -> None:
    request, *_ = read({**TASK, **environ}, {"job": "2,3", **NVIDIA})
    assert request.granted == granted


CONTAINER = {"granted": "minor:0,minor:1", "cpuset": "0-3"}


@pytest.mark.parametrize(
    ("environ", "stated", "expected"),
    [
        pytest.param({}, {}, [{}], id="no launcher: all that are visible"),
        pytest.param(
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            {},
            [{"ranks": "2", "rank": "1"}],
            id="torchrun",
        ),
        pytest.param(
            {"LOCAL_RANK": "08", "LOCAL_WORLD_SIZE": "09"},
            {},
            [{"ranks": "9", "rank": "8"}],
            id="zeros before a number are no octal",
        ),
        pytest.param(
            {"FLUX_TASK_LOCAL_ID": "3"},
            {},
            [{"rank": "3"}, {"rank": "3", "ranks": "4"}],
            id="a rank of an unknown number: as many as GPUs, else one shares a GPU",
        ),
        pytest.param(
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **ONE},
            {},
            [{"visible": "1", "share": "node"}],
            id="a GPU of its own each",
        ),
        pytest.param(
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0"},
            {"granted": "minor:0"},
            [{"visible": "0", "ranks": "2", "rank": "1", "granted": "minor:0"}],
            id="the container's only GPU, which its ranks share",
        ),
        pytest.param(
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **ONE, "AFFINITYD_MODE": "core-complex"},
            {},
            [{"visible": "1", "ranks": "2", "rank": "1", "mode": "core-complex"}],
            id="a mode that divides by numbers",
        ),
        pytest.param(
            {"AFFINITYD_JOB_CPUS": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            {},
            [{"ranks": "2", "rank": "1", "job_cpus": "8", "task_cpus": "1/2"}],
            id="its part of the container's CPU request",
        ),
        pytest.param(
            {"AFFINITYD_CPULIST": "0-3", "AFFINITYD_ALLOWED": "0-7"},
            {},
            [{"cpuset": "0-7"}],
            id="a mask that an earlier pin set is no limit",
        ),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
            AMD,
            [{"visible": "ROCR_VISIBLE_DEVICES=1;HIP_VISIBLE_DEVICES=0", **AMD}],
            id="AMD: HIP reads CUDA's variable, too",
        ),
    ],
)
def test_a_container_s_process_is_known_by_its_launcher_and_devices(
    environ: Mapping[str, str], stated: Mapping[str, str], expected: list[dict[str, str]]
) -> None:
    common = {"mode": "node", **CONTAINER}
    passed = environ or {"AFFINITYD_MODE": "node"}
    assert read(passed, {**CONTAINER, **stated}) == requests(*({**common, **it} for it in expected))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CUDA_VISIBLE_DEVICES", "3"),
        ("ROCR_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES=3"),
        ("HIP_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES=3"),
        ("ASCEND_RT_VISIBLE_DEVICES", "3"),
    ],
)
def test_of_no_granted_gpus_any_vendor_s_variable_counts(name: str, said: str) -> None:
    (request,) = read({name: "3"})
    assert request.visible == requests({"visible": said})[0].visible


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["HOME=/root"], "'HOME=/root' is no NAME=VALUE; names are AFFINITYD_ALLOWED, "),
        (["LOCAL_RANK"], "'LOCAL_RANK' is no NAME=VALUE"),
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
        found = read(environ, stated)
    except AffinityError:
        return
    assert found


def test_without_variables_a_query_is_its_parameters() -> None:
    assert parse_query([("gpus", "0"), ("rank", "0")]) == requests({"gpus": "0", "rank": "0"})
