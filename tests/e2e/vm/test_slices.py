"""A real Slurm with task/affinity: affinityd deals the CPUs that Slurm gave out, and no others."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import pytest

from affinityd.cpuset import CpuSet, parse_list
from tests.e2e.vm.guest_slices import LAUNCHES, MODES
from tests.e2e.vm.inside import Document
from tests.e2e.vm.two_nodes import GPU_NODES, cpus_of

Run = tuple[str, str]  #: a launch, and its mode
RUNS = [*product(LAUNCHES, MODES)]


@dataclass(frozen=True)
class Task:
    before: CpuSet  #: the task's mask, as Slurm made it
    after: CpuSet
    near: CpuSet  #: CPUs near the GPUs that the task should use
    is_bound: bool  #: Slurm gave the task only some of the step's GPUs


def tasks_of(seen: Document, run: Run) -> list[Task]:
    """Return the tasks of a launch; all of them must be there."""
    name, mode = run
    reports: dict[str, dict[str, list[str]]] = {}
    for line in seen[name][mode].splitlines():
        number, _, said = line.strip().partition(": ")
        if number.isdigit():
            word, *values = said.split()
            reports.setdefault(number, {}).setdefault(word, []).extend(values)
    assert len(reports) == int(LAUNCHES[name].split()[0].removeprefix("-n")), seen[name][mode]
    tasks = []
    for report in reports.values():
        local, of_node, gpus_on_node = report["task"]
        gpus: Sequence[int] = [int(minor) for minor in report["gpu"]]
        is_bound = len(gpus) < int(gpus_on_node)
        if not is_bound:
            gpus = own_gpus(gpus, int(local), len(of_node.split(",")))
        near = frozenset[int]().union(*(parse_list(cpus_of(GPU_NODES[gpu])) for gpu in gpus))
        before, after = (parse_list(report[moment][0]) for moment in ("before", "after"))
        tasks.append(Task(before, after, near, is_bound))
    return tasks


def own_gpus(gpus: Sequence[int], number: int, tasks: int) -> Sequence[int]:
    """Return the GPUs that a task is assumed to use, of those that all tasks of its step see."""
    if tasks >= len(gpus):
        return [gpus[number % len(gpus)]]
    each, more = divmod(len(gpus), tasks)
    first = number * each + min(number, more)
    return gpus[first : first + each + (number < more)]


@pytest.mark.parametrize("run", RUNS, ids=", ".join)
def test_every_task_keeps_its_number_of_cpus_and_no_cpu_is_shared(seen: Document, run: Run) -> None:
    tasks = tasks_of(seen, run)
    assert not are_overlapping([task.before for task in tasks]), "Slurm made slices"
    assert [len(task.after) for task in tasks] == [len(task.before) for task in tasks]
    assert not are_overlapping([task.after for task in tasks])
    before = frozenset[int]().union(*(task.before for task in tasks))
    assert frozenset[int]().union(*(task.after for task in tasks)) == before


@pytest.mark.parametrize("run", RUNS, ids=", ".join)
def test_tasks_with_a_near_slice_or_own_gpus_keep_their_cpus(seen: Document, run: Run) -> None:
    tasks = [task for task in tasks_of(seen, run) if task.is_bound or task.before <= task.near]
    assert [task.after for task in tasks] == [task.before for task in tasks]


@pytest.mark.parametrize("run", RUNS, ids=", ".join)
def test_as_many_cpus_are_near_as_possible(seen: Document, run: Run) -> None:
    dealing = [t for t in tasks_of(seen, run) if not t.is_bound and not t.before <= t.near]
    pool = frozenset[int]().union(*(task.before for task in dealing))
    for near in {task.near for task in dealing}:
        tasks = [task for task in dealing if task.near == near]
        wanted = sum(len(task.before) for task in tasks)
        given = sum(len(task.after & near) for task in tasks)
        assert given == min(wanted, len(pool & near))


@pytest.mark.parametrize(
    ("name", "cpus", "gpus"),
    [
        ("masks by hand", "16-19 20-23 24-27 28-31 0-3 4-7 8-11 12-15", "01234567"),
        ("in the order of cores", "0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31", "45670123"),
    ],
)
def test_tasks_keep_their_cpus_and_get_the_gpus_near_them(
    seen: Document, name: str, cpus: str, gpus: str
) -> None:
    tasks = [line.split()[1:] for line in sorted(seen[name].splitlines()) if line]
    assert tasks == [[*task, "local"] for task in zip(cpus.split(), gpus, strict=True)]


def are_overlapping(sets: Sequence[CpuSet]) -> bool:
    return any(one & other for one, other in combinations(sets, 2))
