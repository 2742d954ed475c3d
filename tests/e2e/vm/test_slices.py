"""A real Slurm with task/affinity: affinityd deals the CPUs that Slurm gave out, and no others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import pytest

from affinityd.cpuset import CpuSet, parse_list
from tests.e2e.vm.guest_slices import (
    EXEC,
    LAUNCHES,
    NODE,
    OFF,
    OTHERS,
    SLICES,
    TWO_NODES,
)
from tests.e2e.vm.inside import Document
from tests.e2e.vm.two_nodes import GPU_NODES, cpus_of

#: A launch, and the mode in which it ran with affinityd.
Run = tuple[str, str]
WITH_SLICES: list[Run] = [
    (name, mode)
    for name, launch in (SLICES | TWO_NODES).items()
    for mode in launch.modes
    if mode != OFF
]
IN_STEP = [name for name, mode in WITH_SLICES if mode == EXEC]

#: What tasks without slices get, by their order.
SHARED_CPUS = {
    "sockets": ["0-15", "16-31"] * 4,
    "a node of its own": ["16-31"] * 4,
    "memory of its own node": ["0-3", "4-7", "8-11", "12-15"],
    "no binding": ["0-15"] * 4,
    "a lone task": ["0-15"],
}


@dataclass(frozen=True)
class Task:
    step: tuple[str, str, str]  #: job, step and node
    before: CpuSet  #: its mask, as Slurm made it
    after: CpuSet
    near: CpuSet  #: to the GPUs that it is to use
    is_bound: bool  #: Slurm gave it some of the step's GPUs


def tasks_of(seen: Document, run: Run) -> list[Task]:
    """Return the tasks of a launch, by job, step and rank."""
    name, mode = run
    tasks = []
    for task in seen[name][mode]:
        prolog = task["prolog"]
        variables, devices = prolog["variables"], prolog["devices"]
        step = tuple(variables[f"SLURM_{word}"] for word in ("JOB_ID", "STEP_ID", "NODEID"))
        is_bound = len(devices) < int(variables["SLURM_GPUS_ON_NODE"])
        gpus = devices
        if not is_bound:
            count = len(variables["SLURM_GTIDS"].split(","))
            gpus = own_gpus(devices, int(variables["SLURM_LOCALID"]), count)
        near = frozenset[int]().union(*(parse_list(cpus_of(GPU_NODES[gpu])) for gpu in gpus))
        masks = parse_list(prolog["mask"]), parse_list(task["default"]["mask"])
        tasks.append(Task(step, *masks, near, is_bound))
    return tasks


def own_gpus(gpus: Sequence[int], number: int, tasks: int) -> Sequence[int]:
    """Return the GPUs that a task is assumed to use, of those that all tasks of its step see."""
    if tasks >= len(gpus):
        return [gpus[number % len(gpus)]]
    each, more = divmod(len(gpus), tasks)
    first = number * each + min(number, more)
    return gpus[first : first + each + (number < more)]


def steps(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Yield the tasks of each step on each node."""
    for _, group in groupby(sorted(tasks, key=lambda task: task.step), lambda task: task.step):
        yield list(group)


@pytest.mark.parametrize("run", WITH_SLICES, ids=", ".join)
def test_no_slice_changes_its_size_and_none_overlap(seen: Document, run: Run) -> None:
    for step in steps(tasks_of(seen, run)):
        assert not overlapping([task.before for task in step]), "Slurm made slices"
        assert [len(task.after) for task in step] == [len(task.before) for task in step]
        assert not overlapping([task.after for task in step])
        before = frozenset[int]().union(*(task.before for task in step))
        assert frozenset[int]().union(*(task.after for task in step)) == before


@pytest.mark.parametrize("run", WITH_SLICES, ids=", ".join)
def test_a_near_slice_stays_and_those_of_tasks_with_gpus_of_their_own(
    seen: Document, run: Run
) -> None:
    tasks = [task for task in tasks_of(seen, run) if task.is_bound or task.before <= task.near]
    assert [task.after for task in tasks] == [task.before for task in tasks]


@pytest.mark.parametrize("run", WITH_SLICES, ids=", ".join)
def test_as_many_cpus_are_near_as_can_be(seen: Document, run: Run) -> None:
    for step in steps(tasks_of(seen, run)):
        dealing = [t for t in step if not t.is_bound and not t.before <= t.near]
        pool = frozenset[int]().union(*(task.before for task in dealing))
        for near in {task.near for task in dealing}:
            tasks = [task for task in dealing if task.near == near]
            wanted = sum(len(task.before) for task in tasks)
            given = sum(len(task.after & near) for task in tasks)
            assert given == min(wanted, len(pool & near))


@pytest.mark.parametrize("name", OTHERS)
def test_tasks_without_slices_get_what_is_near_of_what_they_share(
    seen: Document, name: str
) -> None:
    masks = [task["default"]["mask"] for task in seen[name][NODE]]
    assert masks == SHARED_CPUS[name]


@pytest.mark.parametrize("kind", ["default", "bound"])
@pytest.mark.parametrize("name", LAUNCHES | TWO_NODES)
def test_threads_of_ranks_share_a_cpu_only_where_they_do_without_affinityd(
    seen: Document, name: str, kind: str
) -> None:
    """OpenMP starts as many threads as the mask has CPUs, or binds four to the first places."""
    without = overlapping(cpus_of_threads(seen[name][OFF], kind))
    for mode, tasks in seen[name].items():
        assert overlapping(cpus_of_threads(tasks, kind)) <= without, mode


@pytest.mark.parametrize("name", SLICES | TWO_NODES)
def test_a_rank_starts_as_many_threads_as_without_affinityd(seen: Document, name: str) -> None:
    counts = {
        mode: [len(task["default"]["threads"]) for task in tasks]
        for mode, tasks in seen[name].items()
    }
    assert counts == dict.fromkeys(counts, counts[OFF])


@pytest.mark.parametrize("name", IN_STEP)
def test_exec_in_a_step_leaves_what_the_prolog_or_the_user_has_set(
    seen: Document, name: str
) -> None:
    for task in seen[name][EXEC]:
        assert task["exec"]["mask"] == task["default"]["mask"]
        assert told(task["exec"]) == told(task["default"])
        assert parse_list(task["narrowed"]["mask"]) == {min(parse_list(task["default"]["mask"]))}


def told(report: Document) -> tuple[str, str]:
    variables = report["variables"]
    return variables["AFFINITYD_CPULIST"], variables["AFFINITYD_LOCALITY"]


def cpus_of_threads(tasks: Sequence[Document], kind: str) -> list[CpuSet]:
    """Return the CPUs of each task's threads; those of nodes are told apart."""
    cpus = []
    for task in tasks:
        first = 1000 * int(task["prolog"]["variables"]["SLURM_NODEID"])
        threads = [parse_list(thread) for thread in task[kind]["threads"]]
        cpus.append(frozenset(first + cpu for thread in threads for cpu in thread))
    return cpus


def overlapping(sets: Sequence[CpuSet]) -> set[tuple[int, int]]:
    """Return which two of these sets have a CPU in common, by their places."""
    pairs = combinations(range(len(sets)), 2)
    return {(one, other) for one, other in pairs if sets[one] & sets[other]}
