"""What a process's environment makes of a plan request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from affinityd.cpuset import parse_list
from affinityd.errors import (
    AffinityError,
    DaemonError,
    InvalidRequestError,
    NoSuchGpuError,
    UnsatisfiableError,
)
from affinityd.linux.files import environment_of
from affinityd.request import environment, launchers
from tests.support.children import program, sleeping

TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
MPIRUN = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
BATCH = {"SLURM_JOB_ID": "9", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}
SRUN = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "1",
    "SLURM_GTIDS": "4,5,6,7",
    "SLURM_GPUS_ON_NODE": "4",
}
FLUX_ON_MANY_NODES = {"FLUX_TASK_LOCAL_ID": "5", "FLUX_JOB_SIZE": "16", "FLUX_JOB_NNODES": "2"}
ALL_FOUR = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
ONE = {"CUDA_VISIBLE_DEVICES": "2"}
SLICES = {"SLURM_CPU_BIND_LIST": "0x3,0x3,0xc,0xc"}

SECOND_OF_FOUR = {"ranks": "4", "rank": "1"}
TASK = {**SECOND_OF_FOUR, "step_gpus": "4"}
APART = {**TASK, "gpu_bind": "gpu:per_task:1", "share": "node"}  # where Slurm does not say how


def asked(
    environ: Mapping[str, str],
    parent: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """Return the requests of a unique mode, but for what is the same in each."""
    chosen = {"mode": "exclusive", **(given or {})}
    made = [
        dict(it) for it in environment.process_questions(chosen, environ, frozenset({0, 1}), parent)
    ]
    for question in made:
        assert question.pop("mode") == chosen["mode"]
        question.pop("task_cpus", None)  # tests of its own
        assert question.pop("cpuset") == "0-1"
        assert question.pop("visible", None) == environment.visible(environ)
    return made


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, {}, id="without a scheduler nothing"),
        pytest.param(TORCHRUN, {}, id="nor of a launcher"),
        pytest.param(
            {**SRUN, "SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "12"},
            {"task_cpus": "3", "job_cpus": "12"},
            id="srun -c3",
        ),
        pytest.param(SRUN, {"task_cpus": "1/4"}, id="srun: a part of the step's CPUs"),
        pytest.param(
            {**BATCH, "SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS": "2"},
            {"task_cpus": "6"},
            id="a batch script has what all of its tasks asked for",
        ),
        pytest.param(BATCH, {"task_cpus": "1/1"}, id="or what they may use"),
        pytest.param(
            {**BATCH, **TORCHRUN, "SLURM_CPUS_PER_TASK": "3"},
            {"task_cpus": "1/4"},
            id="which torchrun's workers in it divide",
        ),
        pytest.param(
            {**SRUN, "SLURM_STEP_ID": f"{0xFFFFFFFA}", "SLURM_LOCALID": "0"}
            | {"SLURM_CPUS_PER_TASK": "3"},
            {"task_cpus": "3"},
            id="so has an interactive step",
        ),
        pytest.param(
            {**SRUN, **TORCHRUN, "LOCAL_WORLD_SIZE": "8", "SLURM_CPUS_PER_TASK": "64"},
            {"task_cpus": "1/8"},
            id="torchrun's workers divide the CPUs of srun's task",
        ),
        pytest.param(
            {"AFFINITYD_JOB_CPUS": "6"}, {"task_cpus": "1/1", "job_cpus": "6"}, id="a pod's request"
        ),
        pytest.param(
            {"AFFINITYD_JOB_CPUS": "6", **TORCHRUN},
            {"task_cpus": "1/4", "job_cpus": "6"},
            id="which its ranks divide",
        ),
        pytest.param({"AFFINITYD_JOB_CPUS": "0"}, {}, id="a pod without one"),
        pytest.param(
            {**SRUN, "SLURM_CPUS_PER_TASK": "many", "SLURM_CPUS_ON_NODE": "?"},
            {"task_cpus": "1/4"},
            id="what is no number is not said",
        ),
    ],
)
def test_the_scheduler_says_how_many_cpus_a_task_asked_for(
    environ: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    assert launchers.asked_cpus(environ) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, {"task_cpus": "1/4"}, id="as the scheduler says"),
        pytest.param({"task_cpus": "2"}, {"task_cpus": "2"}, id="else as somebody chose"),
        pytest.param({"cpus": "2"}, {"cpus": "2"}, id="for a task or for a rank"),
        pytest.param({"task_cpus": "none"}, {}, id="or chose that nothing was asked for"),
    ],
)
def test_how_many_cpus_were_asked_for_can_be_said_otherwise(
    given: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    for question in environment.process_questions(given, SRUN, frozenset({0, 1})):
        said = {name: text for name, text in question.items() if name in {"cpus", "task_cpus"}}
        assert said == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(
            {**SRUN, **TORCHRUN, **ONE},
            {"share": "node"},
            id="srun --gpus-per-task=1, and a framework's LOCAL_RANK: its own GPU",
        ),
        pytest.param(
            {**TORCHRUN, **ONE}, SECOND_OF_FOUR, id="torchrun in a pod of one GPU: they share it"
        ),
    ],
)
def test_a_lone_granted_gpu_is_a_task_s_own_under_slurm_and_a_pod_s_ranks_share_it(
    environ: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    granted = {"granted": "minor:2"}
    (question, *_) = asked(environ, {}, granted | {"mode": "exclusive"})
    assert question == {**granted, **expected}


@pytest.mark.parametrize(
    ("environ", "parent", "expected"),
    [
        pytest.param({}, None, [{}], id="no launcher: all that are visible"),
        pytest.param(BATCH, None, [{}], id="a batch script: all that are visible"),
        pytest.param(TORCHRUN, {}, [SECOND_OF_FOUR], id="a rank of as many as are said"),
        pytest.param(
            {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
            {},
            [{"ranks": "1", "rank": "0"}],
            id="torchrun's lone worker: the first GPU",
        ),
        pytest.param(
            {**SRUN, "SLURM_LOCALID": "0", "SLURM_GTIDS": "4", **ALL_FOUR},
            None,
            [{}],
            id="srun's lone task: all that are visible",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            {},
            [{}],
            id="mpirun's lone rank: all that are visible",
        ),
        pytest.param(
            FLUX_ON_MANY_NODES,
            None,
            [{"rank": "5"}, {"rank": "5", "ranks": "6"}],
            id="nobody says how many: as many as GPUs, else as many as there must be",
        ),
        pytest.param({**SRUN, **ALL_FOUR}, None, [TASK], id="srun: all see the step's"),
        pytest.param(SRUN, None, [TASK], id="srun --gpu-bind=none: all see everything"),
        pytest.param({**SRUN, **ONE}, None, [APART], id="srun --gpus-per-task=1"),
        pytest.param(
            {**SRUN, "SLURM_GTIDS": "4,5", "CUDA_VISIBLE_DEVICES": "2,3"},
            None,
            [{**APART, "ranks": "2", "gpu_bind": "gpu:per_task:2"}],
            id="srun --gpus-per-task=2",
        ),
        pytest.param(
            {**SRUN, **ONE, "SLURM_GPUS_ON_NODE": "2"},
            None,
            [{**APART, "step_gpus": "2", "gpu_bind": "gpu:single:2"}],
            id="srun --ntasks-per-gpu=2: neighbours share a GPU",
        ),
        pytest.param(
            {**SRUN, **ONE, "SLURMD_TRES_BIND": "gpu:map_gpu:2,2"},
            None,
            [{**APART, "gpu_bind": "gpu:map_gpu:2,2"}],
            id="srun --gpu-bind=map_gpu: all on one of the step's GPUs",
        ),
        pytest.param(
            {**SRUN, **ALL_FOUR, "SLURMD_TRES_BIND": "gpu:mask_gpu:0xf"},
            None,
            [{**TASK, "gpu_bind": "gpu:mask_gpu:0xf"}],
            id="srun --gpu-bind=mask_gpu: all of them bound to all",
        ),
        pytest.param(
            {**SRUN, **ONE, "SLURM_GPUS_ON_NODE": "2", "SLURMD_TRES_BIND": "gpu:single:1"},
            None,
            [{**APART, "step_gpus": "2", "gpu_bind": "gpu:single:1"}],
            id="srun --gpu-bind=single:1: more tasks than GPUs, by turns",
        ),
        pytest.param(
            {**SRUN, **ONE, **SLICES, "SLURMD_TRES_BIND": "gpu:closest"},
            None,
            [{**APART, "gpu_bind": "gpu:closest", "cpu_bind": SLICES["SLURM_CPU_BIND_LIST"]}],
            id="srun --gpu-bind=closest: tasks of a slice have the same GPUs",
        ),
        pytest.param(
            {**SRUN, **ONE, "SLURM_CPU_BIND_LIST": "0,8", "SLURMD_TRES_BIND": "gpu:closest"},
            None,
            [{**APART, "gpu_bind": "gpu:closest"}],
            id="which CPUs that the user named are not",
        ),
        pytest.param(
            {**SRUN, **ONE, **SLICES}, None, [APART], id="a process stays within its slice"
        ),
        pytest.param(
            {**SRUN, **ONE, "SLURM_JOB_GPUS": "0,1,2,3"},
            None,
            [APART],
            id="a step inherits the script's SLURM_JOB_GPUS, on other nodes, too",
        ),
        pytest.param(
            {**SRUN, **ONE, "AFFINITYD_JOB_GPUS": "0,1,2,3"},
            None,
            [{**TASK, "gpu_bind": "gpu:per_task:1", "job": "0,1,2,3"}, APART],
            id="a site says the job's GPUs",
        ),
        pytest.param(
            {**SRUN, **TORCHRUN, **ALL_FOUR}, ALL_FOUR, [SECOND_OF_FOUR], id="torchrun under srun"
        ),
        pytest.param({**MPIRUN, **ALL_FOUR}, ALL_FOUR, [SECOND_OF_FOUR], id="mpirun: inherited"),
        pytest.param(
            {**MPIRUN, **ALL_FOUR}, {}, [SECOND_OF_FOUR], id="mpirun -x: set for all of its ranks"
        ),
        pytest.param(
            {**MPIRUN, **ALL_FOUR}, None, [SECOND_OF_FOUR], id="several, the parent is unreadable"
        ),
        pytest.param({**MPIRUN, **ONE}, {}, [{"share": "node"}], id="a wrapper gave it its own"),
        pytest.param(
            {**MPIRUN, **ONE}, ALL_FOUR, [{"share": "node"}], id="a wrapper chose one of the job's"
        ),
        pytest.param({**MPIRUN, **ONE}, ONE, [SECOND_OF_FOUR], id="all ranks inherit the same one"),
        pytest.param(
            {**BATCH, **MPIRUN, **ONE, "SLURM_JOB_GPUS": "2,3,4,5"},
            ALL_FOUR,
            [{"job": "2,3,4,5"}, {"share": "node"}],
            id="mpirun in a batch script, a wrapper gave it its own",
        ),
        pytest.param(
            {**BATCH, **MPIRUN, **ONE, "SLURM_JOB_GPUS": "2,3"},
            ALL_FOUR,
            [{"ranks": "2", "rank": "0", "share": "node"}],
            id="a wrapper deals out fewer GPUs than ranks by turns",
        ),
        pytest.param(
            {**BATCH, **MPIRUN, **ONE, "SLURM_JOB_GPUS": "2,3"},
            ALL_FOUR,
            [{"ranks": "2", "rank": "0", "share": "node"}],
            id="a wrapper deals GPUs to twice as many ranks",
        ),
    ],
)
def test_the_launcher_and_the_visible_devices_say_who_divides_the_cores(
    environ: Mapping[str, str], parent: Mapping[str, str] | None, expected: list[dict[str, str]]
) -> None:
    assert asked(environ, parent) == expected


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    [
        pytest.param({}, {"rank": "2"}, [{"rank": "2"}, {"rank": "2", "ranks": "3"}], id="a rank"),
        pytest.param(
            TORCHRUN, {"rank": "2"}, [{"rank": "2", "ranks": "4"}], id="a rank, of a known number"
        ),
        pytest.param(TORCHRUN, {"rank": "0,1"}, [{"rank": "0,1", "ranks": "4"}], id="ranks"),
        pytest.param(
            {**SRUN, **ONE}, {"rank": "1"}, [SECOND_OF_FOUR], id="a rank, whatever is visible"
        ),
        pytest.param(
            {**SRUN, **ONE},
            {"gpus": "4,5"},
            [{**SECOND_OF_FOUR, "gpus": "4,5"}],
            id="GPUs, of which each rank drives one",
        ),
        pytest.param(
            TORCHRUN, {"job": "0,1"}, [{"job": "0,1"}, SECOND_OF_FOUR], id="the job's GPUs"
        ),
        pytest.param(
            {**SRUN, **ONE},
            {"share": "requested"},
            [{**APART, "share": "requested"}],
            id="who shares: then by its number, as if all had its GPU",
        ),
        pytest.param({**SRUN, **ONE}, {"share": "auto"}, [APART], id="auto says nothing"),
    ],
)
def test_what_somebody_chose_counts(
    environ: Mapping[str, str], given: Mapping[str, str], expected: list[dict[str, str]]
) -> None:
    assert asked(environ, None, given) == expected


@pytest.mark.parametrize("environ", [{}, TORCHRUN, {**SRUN, **ONE}, {**SRUN, **ALL_FOUR}])
def test_unless_somebody_chose_a_mode_it_is_the_one_that_takes_no_cpus_away(
    environ: Mapping[str, str],
) -> None:
    """What delivers a plan to jobs defaults to `node`."""
    for question in environment.process_questions({}, environ, frozenset({0, 1})):
        assert question["mode"] == "node"


def test_a_scope_without_a_mode_is_not_in_vain() -> None:
    (question,) = environment.process_questions({"scope": "socket"}, {}, frozenset({0, 1}))
    assert (question["mode"], question["scope"]) == ("all", "socket")


def test_the_cpus_and_devices_that_somebody_names_replace_the_process_s() -> None:
    (question,) = environment.process_questions(
        {"cpuset": "4", "visible": "1"}, ONE, frozenset({0, 1})
    )
    assert (question["cpuset"], question["visible"]) == ("4", "1")


# The visible devices.


@pytest.mark.parametrize(
    ("vendors", "environ", "visible"),
    [
        ("", {}, None),
        ("", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("", {"CUDA_VISIBLE_DEVICES": " 1,x\udcff"}, " 1,x\udcff"),
        ("", {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "2"}, "1"),
        ("", {"ROCR_VISIBLE_DEVICES": "2"}, "ROCR_VISIBLE_DEVICES=2"),
        ("", {"ASCEND_RT_VISIBLE_DEVICES": "3"}, "3"),
        ("nvidia", {"ROCR_VISIBLE_DEVICES": "2"}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}, "1"),
        ("amd", {"HIP_VISIBLE_DEVICES": "0"}, "HIP_VISIBLE_DEVICES=0"),
        (
            "amd",
            {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "2"},
            "ROCR_VISIBLE_DEVICES=2;HIP_VISIBLE_DEVICES=0",
        ),
        ("amd", {"CUDA_VISIBLE_DEVICES": "1"}, "HIP_VISIBLE_DEVICES=1"),
        (
            "amd",
            {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"},
            "HIP_VISIBLE_DEVICES=0",
        ),
        ("huawei", {"CUDA_VISIBLE_DEVICES": "1"}, None),
        ("huawei", {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, "0,1"),
        ("nvidia amd", {"ROCR_VISIBLE_DEVICES": "2"}, "ROCR_VISIBLE_DEVICES=2"),
    ],
)
def test_the_variables_of_the_vendor_count_whose_driver_is_here(
    vendors: str, environ: Mapping[str, str], visible: str | None
) -> None:
    """HIP reads CUDA_VISIBLE_DEVICES where it has none of its own."""
    assert environment.visible(environ, vendors.split()) == visible


# The CPUs to plan on.


@pytest.mark.parametrize(
    ("pinned", "allowed", "mask", "cpus"),
    [
        pytest.param("0-3", "0-7", "0-3", "0-7", id="the mask is the pin: what it was planned on"),
        pytest.param("0-3", "0-7", "0-1", "0-1", id="somebody narrowed it since"),
        pytest.param("0-3", "0-7", "0-7", "0-7", id="somebody widened it since"),
        pytest.param("0-3", "4-7", "0-3", "0-3", id="a pin that was not planned on that"),
        pytest.param("0-3", None, "0-3", "0-3", id="half of what a pin says"),
        pytest.param("0-3", "x", "0-3", "0-3", id="what is no cpulist"),
        pytest.param(None, None, "0-3", "0-3", id="no pin"),
    ],
)
def test_a_mask_that_an_earlier_pin_set_is_no_limit(
    pinned: str | None, allowed: str | None, mask: str, cpus: str
) -> None:
    said = {"AFFINITYD_CPULIST": pinned, "AFFINITYD_ALLOWED": allowed}
    environ = {name: text for name, text in said.items() if text is not None}
    assert launchers.cpus_to_plan_on(environ, parse_list(mask)) == parse_list(cpus)


# Asking.


@pytest.mark.parametrize("refusal", [InvalidRequestError, NoSuchGpuError, UnsatisfiableError])
def test_the_next_question_is_asked_where_it_may_know_better(refusal: type[AffinityError]) -> None:
    def ask(question: environment.Question) -> str:
        if question["rank"] == "0":
            raise refusal("rank: there is no rank 0")
        return question["rank"]

    assert environment.first_answer([{"rank": "0"}, {"rank": "1"}, {"rank": "2"}], ask) == "1"


@pytest.mark.parametrize(
    ("error", "begin", "told"),
    [
        (NoSuchGpuError, "job: ", "the last"),
        (NoSuchGpuError, "", "the first"),
        (DaemonError, "job: ", "the first"),
    ],
)
def test_the_last_refusal_is_told_and_any_other_error_at_once(
    error: type[AffinityError], begin: str, told: str
) -> None:
    def ask(question: environment.Question) -> str:
        raise error(begin + question["rank"])

    with pytest.raises(error, match=told):
        environment.first_answer([{"rank": "the first"}, {"rank": "the last"}], ask)


def test_without_a_question_there_is_no_answer() -> None:
    ask: Callable[[environment.Question], str] = dict.__repr__
    with pytest.raises(NoSuchGpuError):
        environment.first_answer([], ask)


# A process's environment.


def test_a_process_is_known_by_the_environment_that_it_was_started_with() -> None:
    code = "import os; os.environ['LATER'] = '1'; print('ready', flush=True); input()"
    with program(code, env={"NAME": "a=b\n\udcff", "EMPTY": ""}) as child:
        environ = environment_of(child.pid)
    assert environ is not None
    assert (environ["NAME"], environ["EMPTY"]) == ("a=b\n\udcff", "")
    assert "LATER" not in environ


def test_what_is_no_variable_is_left_out_of_an_environment() -> None:
    """execve(2) takes any text; Python's own starts with variables alone."""
    code = """
import ctypes
texts = ctypes.c_char_p * 4
words = texts(b"sh", b"-c", b"echo ready; read line", None)
ctypes.CDLL(None).execve(b"/bin/sh", words, texts(b"A=1", b"none", b"=", None))"""
    with program(code) as child:
        assert environment_of(child.pid) == {"A": "1", "": ""}


def test_an_environment_that_cannot_be_read_is_none() -> None:
    code = """
import os, sys
from affinityd.linux.files import environment_of
os.setuid(65534)
print(environment_of(int(sys.argv[1])))"""
    with sleeping() as child:
        command = [sys.executable, "-c", code, str(child.pid)]
        path = os.pathsep.join(sys.path)
        assert subprocess.check_output(command, env={"PYTHONPATH": path}) == b"None\n"
        assert environment_of(child.pid) is not None
    assert environment_of(child.pid) is None
