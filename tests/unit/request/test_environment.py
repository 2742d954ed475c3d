"""What a process's environment makes of a plan request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from affinityd.cpuset import parse_list
from affinityd.errors import (
    AffinityError,
    DaemonError,
    InvalidRequestError,
    NoSuchGpuError,
    UnsatisfiableError,
)
from affinityd.request import environment, launchers
from tests.support.tables import rows, words

CPUS = frozenset({0, 1})
CUDA, ROCR, HIP, ASCEND = (
    f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "ROCR", "HIP", "ASCEND_RT")
)

TORCHRUN = "LOCAL_RANK=1 LOCAL_WORLD_SIZE=4"
MPIRUN = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4"
BATCH = "SLURM_JOB_ID=9 SLURM_LOCALID=0 SLURM_GTIDS=0"
SRUN = f"{BATCH} SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_GTIDS=4,5,6,7 SLURM_GPUS_ON_NODE=4"
ALL_FOUR, ONE = f"{CUDA}=0,1,2,3", f"{CUDA}=2"
BIND, PER_TASK = "SLURMD_TRES_BIND", "SLURM_CPUS_PER_TASK"
SLICES = "SLURM_CPU_BIND_LIST=0x3,0x3,0xc,0xc"

SECOND = "ranks=4 rank=1"
TASK = f"{SECOND} step_gpus=4"
APART = f"{TASK} gpu_bind=gpu:per_task:1 share=node"  # where Slurm does not say how


def questions(
    environ: str, given: str = "mode=exclusive", parent: str | None = None
) -> list[dict[str, str]]:
    """Return the requests of a process on two CPUs."""
    its = None if parent is None else words(parent)
    made = environment.process_questions(words(given), words(environ), CPUS, its)
    return [dict(it) for it in made]


def asked(environ: str, given: str = "mode=exclusive", parent: str | None = None) -> list[str]:
    """Return the requests of a unique mode, but for what is the same in each; names in order."""
    made = questions(environ, f"mode=exclusive {given}", parent)
    for question in made:
        assert question.pop("mode") == "exclusive"
        question.pop("task_cpus", None)  # tests of its own
        assert question.pop("cpuset") == "0-1"
        assert question.pop("visible", None) == environment.visible(words(environ))
    return [in_order(question) for question in made]


def in_order(question: Mapping[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in sorted(question.items()))


@pytest.mark.parametrize(
    ("environ", "expected"),
    rows(f"""
no scheduler             | {TORCHRUN} |
srun -c3                 | {SRUN} {PER_TASK}=3 SLURM_CPUS_ON_NODE=12 | task_cpus=3 job_cpus=12
a batch script's tasks   | {BATCH} {PER_TASK}=3 SLURM_NTASKS=2 | task_cpus=6
or what they may use     | {BATCH} | task_cpus=1/1
torchrun's workers in it | {BATCH} {TORCHRUN} {PER_TASK}=3 | task_cpus=1/4
an interactive step      | {BATCH} SLURM_STEP_ID=4294967290 {PER_TASK}=3 | task_cpus=3
and in srun's task       | {SRUN} {TORCHRUN} LOCAL_WORLD_SIZE=8 {PER_TASK}=64 | task_cpus=1/8
a pod's request          | AFFINITYD_JOB_CPUS=6 | task_cpus=1/1 job_cpus=6
a pod without one        | AFFINITYD_JOB_CPUS=0 |
the job's on each node   | {BATCH} SLURM_JOB_CPUS_PER_NODE=8(x2) | task_cpus=1/1 job_cpus=8
where nodes do not differ | {BATCH} SLURM_JOB_CPUS_PER_NODE=8,4 | task_cpus=1/1
"""),
)
def test_the_scheduler_says_how_many_cpus_a_task_asked_for(environ: str, expected: str) -> None:
    assert launchers.asked_cpus(words(environ)) == words(expected)


def test_how_many_cpus_were_asked_for_can_be_said_otherwise() -> None:
    for given, meant in ("", "task_cpus=1/4"), ("cpus=2", "cpus=2"), ("task_cpus=none", ""):
        for question in questions(SRUN, given):
            said = {name: text for name, text in question.items() if name.endswith("cpus")}
            assert said == words(meant)


@pytest.mark.parametrize(
    ("environ", "parent", "expected"),
    rows(f"""
no launcher: all that are visible | | - |
a batch script: all that are visible | {BATCH} | - |
a rank of as many as are said   | {TORCHRUN} | | {SECOND}
torchrun's lone worker: one GPU | LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 | | ranks=1 rank=0
srun's lone task: all           | {SRUN} SLURM_LOCALID=0 SLURM_GTIDS=4 {ALL_FOUR} | - |
mpirun's lone rank: all | OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 | |
as many as GPUs, else as there must be | FLUX_TASK_LOCAL_ID=5 FLUX_JOB_SIZE=16 FLUX_JOB_NNODES=2 \
| - | rank=5 ; rank=5 ranks=6
srun: all see the step's        | {SRUN} {ALL_FOUR} | - | {TASK}
srun --gpu-bind=none            | {SRUN} | - | {TASK}
srun --gpus-per-task=1          | {SRUN} {ONE} | - | {APART}
srun --gpus-per-task=2          | {SRUN} SLURM_GTIDS=4,5 {CUDA}=2,3 | - | \
{APART} ranks=2 gpu_bind=gpu:per_task:2
srun --ntasks-per-gpu=2         | {SRUN} {ONE} SLURM_GPUS_ON_NODE=2 | - | \
{APART} step_gpus=2 gpu_bind=gpu:single:2
srun --gpu-bind=map_gpu         | {SRUN} {ONE} {BIND}=gpu:map_gpu:2,2 | - | \
{APART} gpu_bind=gpu:map_gpu:2,2
srun --gpu-bind=mask_gpu to all | {SRUN} {ALL_FOUR} {BIND}=gpu:mask_gpu:0xf | - | \
{TASK} gpu_bind=gpu:mask_gpu:0xf
srun --gpu-bind=closest         | {SRUN} {ONE} {SLICES} {BIND}=gpu:closest | - | \
{APART} gpu_bind=gpu:closest cpu_bind=0x3,0x3,0xc,0xc
with CPUs that the user named   | {SRUN} {ONE} SLURM_CPU_BIND_LIST=0,8 {BIND}=gpu:closest | - | \
{APART} gpu_bind=gpu:closest
a process stays within its slice | {SRUN} {ONE} {SLICES} | - | {APART}
the script's job GPUs, inherited | {SRUN} {ONE} SLURM_JOB_GPUS=0,1,2,3 | - | {APART}
a site says the job's GPUs      | {SRUN} {ONE} AFFINITYD_JOB_GPUS=0,1,2,3 | - | \
{TASK} gpu_bind=gpu:per_task:1 job=0,1,2,3 ; {APART}
torchrun under srun             | {SRUN} {TORCHRUN} {ALL_FOUR} | {ALL_FOUR} | {SECOND}
mpirun: inherited               | {MPIRUN} {ALL_FOUR} | {ALL_FOUR} | {SECOND}
mpirun -x: set for all          | {MPIRUN} {ALL_FOUR} | | {SECOND}
a wrapper gave it its own       | {MPIRUN} {ONE} | | share=node
or chose one of the job's       | {MPIRUN} {ONE} | {ALL_FOUR} | share=node
all ranks inherit the same one  | {MPIRUN} {ONE} | {ONE} | {SECOND}
a wrapper in a batch script     | {BATCH} {MPIRUN} {ONE} SLURM_JOB_GPUS=2,3,4,5 | {ALL_FOUR} | \
job=2,3,4,5 ; share=node
that deals GPUs out by turns    | {BATCH} {MPIRUN} {ONE} SLURM_JOB_GPUS=2,3 | {ALL_FOUR} | \
ranks=2 rank=0 share=node
"""),
)
def test_the_launcher_and_the_visible_devices_say_who_divides_the_cores(
    environ: str, parent: str, expected: str
) -> None:
    """The parent's environment is `-` where it cannot be read."""
    found = asked(environ, "", None if parent == "-" else parent)
    assert found == [in_order(words(question)) for question in expected.split(";")]


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    rows(f"""
a rank                        |               | rank=2    | rank=2 ; rank=2 ranks=3
ranks                         | {TORCHRUN}    | rank=0,1  | rank=0,1 ranks=4
a rank, whatever is visible   | {SRUN} {ONE}  | rank=1    | {SECOND}
GPUs, one a rank              | {SRUN} {ONE}  | gpus=4,5  | {SECOND} gpus=4,5
the job's GPUs                | {TORCHRUN}    | job=0,1   | job=0,1 ; {SECOND}
who shares                    | {SRUN} {ONE}  | share=requested | {APART} share=requested
auto says nothing             | {SRUN} {ONE}  | share=auto | {APART}
a share that goes by ranks     | {MPIRUN} {ONE} | share=requested | {SECOND} share=requested
a task's own, that was granted | {SRUN} {TORCHRUN} {ONE} | granted=minor:2 | \
granted=minor:2 share=node
as it is to all ranks of a pod | {TORCHRUN} {ONE} | granted=minor:2 | granted=minor:2 {SECOND}
"""),
)
def test_what_was_chosen_or_granted_counts(environ: str, given: str, expected: str) -> None:
    """Under Slurm a framework's LOCAL_RANK may be there beside srun --gpus-per-task=1."""
    assert asked(environ, given) == [in_order(words(it)) for it in expected.split(";")]


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    [
        ("", "", "mode=node cpuset=0-1"),
        ("", "scope=socket", "mode=all scope=socket cpuset=0-1"),  # which is not in vain
        (ONE, "cpuset=4 visible=1", "mode=node cpuset=4 visible=1"),
    ],
)
def test_unless_a_mode_was_chosen_it_is_the_one_that_takes_no_cpus_away(
    environ: str, given: str, expected: str
) -> None:
    """What delivers a plan to jobs defaults to `node`."""
    assert questions(environ, given) == [words(expected)]


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
        ("amd", {CUDA: "1", ROCR: "1"}, f"{ROCR}=1"),  # Slurm sets both to the same
        ("huawei", {ASCEND: "0,1"}, "0,1"),
        ("nvidia amd", {ROCR: "2"}, f"{ROCR}=2"),
    ],
)
def test_the_variables_of_the_vendor_count_whose_driver_is_here(
    vendors: str, environ: Mapping[str, str], visible: str | None
) -> None:
    """HIP reads CUDA_VISIBLE_DEVICES where it has none of its own."""
    assert environment.visible(environ, vendors.split()) == visible


@pytest.mark.parametrize(
    ("environ", "mask", "cpus"),
    rows("""
what it was planned on      | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-3 | 0-7
narrowed since              | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-1 | 0-1
widened since               | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-7 | 0-7
not planned on that         | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=4-7 | 0-3 | 0-3
half of what a pin says     | AFFINITYD_CPULIST=0-3                       | 0-3 | 0-3
what is no cpulist          | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=x   | 0-3 | 0-3
no pin                      |                                             | 0-3 | 0-3
"""),
)
def test_a_mask_that_an_earlier_pin_set_is_no_limit(environ: str, mask: str, cpus: str) -> None:
    assert launchers.cpus_to_plan_on(words(environ), parse_list(mask)) == parse_list(cpus)


# Asking.


@pytest.mark.parametrize("refusal", [InvalidRequestError, NoSuchGpuError, UnsatisfiableError])
def test_the_next_question_is_asked_where_it_may_know_better(refusal: type[AffinityError]) -> None:
    def ask(question: environment.Question) -> str:
        if question["rank"] == "0":
            raise refusal("rank: there is no rank 0")
        return question["rank"]

    assert environment.first_answer([{"rank": "0"}, {"rank": "1"}, {"rank": "2"}], ask) == "1"


@pytest.mark.parametrize(
    ("error", "begin", "questions", "told"),
    [
        (NoSuchGpuError, "job: ", ["first", "last"], "last"),
        (NoSuchGpuError, "", ["first", "last"], "first"),
        (DaemonError, "job: ", ["first", "last"], "first"),
        (NoSuchGpuError, "", [], "nothing was asked for"),
    ],
)
def test_the_last_refusal_is_told_and_any_other_error_at_once(
    error: type[AffinityError], begin: str, questions: list[str], told: str
) -> None:
    def ask(question: environment.Question) -> str:
        raise error(begin + question["rank"])

    with pytest.raises(error, match=f"{told}$"):
        environment.first_answer([{"rank": it} for it in questions], ask)
