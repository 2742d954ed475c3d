"""Every way to start tasks, under every way in which Slurm confines them.

Each task prints its own mask. With task/affinity a task has its own CPU, which stays or is
exchanged; without this plugin a task gets the CPUs near its GPU.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from tests.e2e.slurm.node import HOME, LOOK, Node, Task, node, read_tasks
from tests.e2e.slurm.rig import HOST, Setup
from tests.support.tiny import BOTH

PLUGINS = ("task/none", "task/affinity", "task/cgroup", "task/affinity,task/cgroup")
#: Id → a plugin, and whether jobs can open only the files of their own GPUs.
ROWS = {
    f"{plugin} {word}": Setup(task_plugin=plugin, constrain_devices=constrains)
    for plugin, (constrains, word) in product(PLUGINS, ((False, "open"), (True, "constrained")))
}
#: The row that the page recommends, and the most different row; the other rows run nightly.
EVERY_CHANGE = ("task/affinity,task/cgroup constrained", "task/none open")
MODES = ("node", "unique-contiguous")
TWO = ("--ntasks=2", "--gres=gpu:small:2")
GPU = dict(enumerate(HOME))
LATE = "no answer in time from /run/affinityd/affinityd.sock"

#: How tasks are started → srun's words, and the CPUs of each task. In maps `{0}` and `{1}` stand
#: for GPUs 2 and 3, in masks `{2}` and `{3}` do.
APART = {
    "tasks see all GPUs": ([*TWO], [GPU[2], GPU[3]]),
    "one GPU for each task": (["--ntasks=2", "--gpus-per-task=1"], [GPU[0], GPU[1]]),
    "one typed GPU for each task": (["--ntasks=2", "--gpus-per-task=small:1"], [GPU[2], GPU[3]]),
    "single": ([*TWO, "--gpu-bind=single:1"], [GPU[2], GPU[3]]),
    "one task for each GPU": (["--ntasks=2", "--gpus=2", "--ntasks-per-gpu=1"], [GPU[0], GPU[1]]),
    "unbound GPUs": ([*TWO, "--gpu-bind=none"], [GPU[2], GPU[3]]),
    "a map": ([*TWO, "--gpu-bind=map_gpu:{0},{1}"], [GPU[2], GPU[3]]),
    "a map the other way round": ([*TWO, "--gpu-bind=map_gpu:{1},{0}"], [GPU[3], GPU[2]]),
    "a mask": ([*TWO, "--gpu-bind=mask_gpu:{2},{3}"], [GPU[2], GPU[3]]),
    "Slurm prints how it binds": (
        [*TWO, "--cpu-bind=verbose", "--gpu-bind=verbose,single:1"],
        [GPU[2], GPU[3]],
    ),
    "a lone task has two GPUs": (["--ntasks=1", "--cpus-per-task=2", TWO[1]], [BOTH]),
    "chosen slices": ([*TWO, "--cpu-bind=cores"], [GPU[2], GPU[3]]),
    "no environment": ([*TWO, "--export=NONE"], [GPU[2], GPU[3]]),
}
#: Two tasks on a GPU that is near a single CPU.
TOGETHER = {
    "one GPU for all": ["--ntasks=2", "--gres=gpu:small:1"],
    "tasks per GPU": ["--ntasks=2", "--gpus=1", "--ntasks-per-gpu=2"],
}
#: Both tasks have the same GPU. The job's other CPU is near the other GPU, for another step.
ONTO_ONE = [*TWO, "--gpu-bind=map_gpu:{1},{1}"]
BINDS = ("map_cpu:0,1", "mask_cpu:0x1,0x2", "rank_ldom")
#: Tasks that affinityd leaves as they are.
ALONE = {
    "no GPU": ["--ntasks=2"],
    "--cpu-bind=none": [*TWO, "--cpu-bind=none"],
    **{f"--cpu-bind={kind}": [*TWO, f"--cpu-bind={kind}"] for kind in BINDS},
}
#: Styles in which all tasks see the same GPUs: with task/affinity these tasks exchange CPUs.
ASSUMED = ("tasks see all GPUs", "unbound GPUs", "chosen slices", "no environment")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rows = [*ROWS] if metafunc.config.getoption("nightly") else EVERY_CHANGE
    metafunc.parametrize("row", rows, indirect=True, scope="module")


@pytest.fixture(scope="module")
def row(request: pytest.FixtureRequest, release: str) -> Iterator[tuple[Node, Setup]]:
    setup = replace(ROWS[request.param], release=release)
    with node(setup) as made:
        yield made, setup


def placed(made: Node, words: list[str], mode: str) -> list[Task]:
    """Return a launch's tasks; repeat it if a busy machine let an answer come too late."""
    for _ in range(5):
        tasks = made.tasks(*words, env={"AFFINITYD_MODE": mode})
        if not any(task.unpinned == LATE for task in tasks):
            break
    return tasks


def has_slices(setup: Setup) -> bool:
    return "affinity" in setup.task_plugin


def sees_all(setup: Setup, style: str) -> bool:
    """Return whether all tasks see the same GPUs; Slurm 22.05 does not bind GPUs of a type."""
    return style in ASSUMED or (setup.release == HOST and style == "one typed GPU for each task")


def words_for(setup: Setup, words: list[str]) -> list[str]:
    """Return options with Slurm's numbers of GPUs, or, if devices are constrained, the job's."""
    is_constrained = setup.constrain_devices and "cgroup" in setup.task_plugin
    names = (0, 1, "0x1", "0x2") if is_constrained else (2, 3, "0x4", "0x8")
    return [word.format(*names) for word in words]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", APART)
def test_each_task_has_its_slice_or_is_near_its_gpu(
    row: tuple[Node, Setup], style: str, mode: str
) -> None:
    made, setup = row
    words, expected = APART[style]
    words = words_for(setup, words)
    exchanges = sees_all(setup, style)
    if has_slices(setup) and not exchanges and style != "a lone task has two GPUs":
        expected = [task.cpus for task in made.tasks(*words, env={"AFFINITYD": "off"})]
    tasks = placed(made, words, mode)
    assert [task.cpus for task in tasks] == expected
    assert [task.variables["CPULIST"] for task in tasks] == expected
    if not has_slices(setup) or exchanges:
        assert {task.variables["LOCALITY"] for task in tasks} == {"local"}
        is_assumed = ["assumed_gpu" in task.variables.get("WARNINGS", "") for task in tasks]
        assert is_assumed == [exchanges] * len(tasks)


@pytest.mark.parametrize("style", TOGETHER)
def test_two_tasks_at_one_near_cpu_keep_both_cpus(row: tuple[Node, Setup], style: str) -> None:
    made, setup = row
    words = words_for(setup, TOGETHER[style])
    shared, unique = (placed(made, words, mode) for mode in ("node", "exclusive"))
    if has_slices(setup):
        for tasks in shared, unique:
            assert sorted(task.cpus for task in tasks) == sorted(HOME[:2])
            assert {task.variables["LOCALITY"] for task in tasks} == {"local", "remote"}
        return
    assert [task.cpus for task in (*shared, *unique)] == [BOTH] * 4
    assert {task.variables["LOCALITY"] for task in (*shared, *unique)} == {"mixed"}
    assert all("widened" in task.variables["WARNINGS"] for task in (*shared, *unique))
    assert all("not_unique" in task.variables["WARNINGS"] for task in unique)


def test_tasks_on_one_gpu_leave_the_cpus_near_the_other_gpu(row: tuple[Node, Setup]) -> None:
    """Neither task knows that the other one has the same GPU."""
    made, setup = row
    for mode in "node", "exclusive":
        tasks = placed(made, words_for(setup, ONTO_ONE), mode)
        if has_slices(setup):
            assert sorted(task.cpus for task in tasks) == sorted(HOME[:2])
        else:
            assert [task.cpus for task in tasks] == [GPU[3]] * 2
            assert {task.variables["LOCALITY"] for task in tasks} == {"local"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, BOTH), ({"AFFINITYD_CPUS": "none"}, GPU[2]), ({"AFFINITYD_CPUS": "1"}, GPU[2])],
)
def test_a_task_with_two_cpus_keeps_both(
    row: tuple[Node, Setup], asked: dict[str, str], expected: str
) -> None:
    made, _ = row
    words = ("--ntasks=1", "--cpus-per-task=2", "--gres=gpu:small:1")
    (pinned,) = made.tasks(*words, env=asked)
    assert pinned.cpus == expected


@pytest.mark.parametrize("style", ALONE)
def test_bound_and_gpu_less_tasks_keep_their_cpus(row: tuple[Node, Setup], style: str) -> None:
    made, _ = row
    tasks = made.tasks(*ALONE[style])
    as_slurm_has_it = made.tasks(*ALONE[style], env={"AFFINITYD": "off"})
    assert [task.cpus for task in tasks] == [task.cpus for task in as_slurm_has_it]
    for task in tasks:
        if style == "no GPU":
            assert task.unpinned is None
        else:
            assert style.partition(":")[0] in str(task.unpinned)


def test_steps_of_a_batch_script_have_their_own_cpus(row: tuple[Node, Setup]) -> None:
    made, setup = row
    look = shlex.join(LOOK)
    steps = f"srun --label --gpu-bind=single:1 {look}", f"srun --label --gres=none {look}"
    printed = made.cluster.sbatch("\necho next\n".join([look, *steps]), *TWO)
    script, bound, without = map(read_tasks, printed.split("next\n"))
    assert [task.cpus for task in script] == [BOTH]
    cpus = [task.cpus for task in bound]
    assert sorted(cpus) == sorted(HOME[:2])
    assert has_slices(setup) or cpus == [GPU[2], GPU[3]]
    assert [task.variables["CPULIST"] for task in bound] == cpus
    # A step that is not pinned must not have the script's variables.
    assert [dict(task.variables) for task in without] == [{}] * 2
