"""A real Slurm on cgroup v2, on a machine with many NUMA nodes: where its tasks run.

The scripts of slurm/ are its prolog, its epilog and its task prolog. What its jobs printed
(guest_slurm.py) is judged here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import pytest

from affinityd.cpuset import CpuSet, parse_list
from tests.e2e.slurm.node import read_tasks
from tests.e2e.vm.hardware import GPU_NODES, NODES, cpus_of, distance
from tests.e2e.vm.jobs import ASKING, JOBS, MINORS, NODE, OPEN_JOBS, UNIQUE
from tests.e2e.vm.reading import Document

#: Of which step tasks see which of its GPUs: what Slurm's binding makes of them.
BOUND = {
    "tasks that deal out GPUs of two packages": ((0, 1), (0, 1)),
    "all GPUs for all": ((0, 1), (0, 1)),
    "a GPU for each task": ((0,), (1,), (2,), (3,)),
    "a map": ((1,), (0,)),
    "a map of one GPU": ((0,), (0,)),
}

RUNS = {
    f"{name}, {mode}{how}": (group, name, mode)
    for group, jobs, how in (("jobs", JOBS, ""), ("open jobs", OPEN_JOBS, ", every GPU open"))
    for name, job in jobs.items()
    for mode in job.modes
}

#: Slurm's `single` chooses among the GPUs near a task's slice of the CPUs: any two of these tasks
#: may have one GPU, and for four there are too few cores near it.
CROWDED = f"a GPU for two tasks, {UNIQUE}"
PLANNED = [name for name in RUNS if name != CROWDED]


@dataclass(frozen=True)
class Task:
    """Where a task was, and what it was told."""

    mask: CpuSet
    cpuset: CpuSet
    sees: tuple[int, ...]  #: GPUs
    drives: tuple[int, ...]  #: its own among them
    told: Mapping[str, str]  #: AFFINITYD_*, without the prefix
    rest: str = ""  #: what it printed beside these


def tasks_of(printed: str, count: int, *, is_open: bool = False) -> list[Task]:
    """Return what the tasks of a step say; there must be so many.

    `is_open`: they can open every GPU, and CUDA_VISIBLE_DEVICES says which they have.
    """
    read = read_tasks(printed)
    assert len(read) == count, printed
    tasks = []
    for number, task in enumerate(read):
        facts = dict(line.partition(" ")[::2] for line in task.rest)
        opened = re.findall(r"/dev/nvidia(\d+): No such device", "\n".join(task.rest))
        sees = (
            tuple(map(int, facts["visible"].split(",")))
            if is_open
            else tuple(sorted(MINORS.index(int(minor)) for minor in opened))
        )
        # Tasks deal out what they see; one that is alone has it all.
        drives = sees if count == 1 else (sees[number % len(sees)],)
        mask, cpuset = parse_list(task.cpus), parse_list(facts["cpuset"])
        tasks.append(Task(mask, cpuset, sees, drives, task.variables, "\n".join(task.rest)))
    return tasks


def run(seen: Document, name: str) -> list[Task]:
    """Return the tasks of one of RUNS."""
    group, job, mode = RUNS[name]
    return tasks_of(seen[group][job][mode], JOBS[job].tasks, is_open=group == "open jobs")


def places(task: Task) -> set[CpuSet]:
    """Return the CPUs of its job that are nearest to a task's GPUs: several sets, if nodes tie."""
    choices = [nearest(gpu, task.cpuset) for gpu in task.drives]
    return {frozenset().union(*choice) for choice in product(*choices)}


def nearest(gpu: int, cpuset: CpuSet) -> list[CpuSet]:
    allowed = {node: parse_list(cpus_of(node)) & cpuset for node in range(NODES)}
    away = {node: distance(GPU_NODES[gpu], node) for node, cpus in allowed.items() if cpus}
    return [allowed[node] for node in away if away[node] == min(away.values())]


def package(gpu: int) -> CpuSet:
    """Return the CPUs of a GPU's package."""
    home = GPU_NODES[gpu]
    within = (node for node in range(NODES) if distance(home, node) <= distance(0, 1))
    return frozenset().union(*(parse_list(cpus_of(node)) for node in within))


def are_disjoint(tasks: Sequence[Task]) -> bool:
    return all(one.mask.isdisjoint(other.mask) for one, other in combinations(tasks, 2))


def check(tasks: Sequence[Task]) -> None:
    """Hold that tasks divide CPUs near their GPUs, and are told which."""
    assert are_disjoint(tasks)
    for task in tasks:
        assert task.mask
        assert any(task.mask <= place for place in places(task))
        assert parse_list(task.told["CPULIST"]) == task.mask


@pytest.mark.parametrize("name", PLANNED)
def test_tasks_are_on_the_cpus_of_their_job_near_the_gpus_that_slurm_bound_them_to(
    seen: Document, name: str
) -> None:
    """All of them have all, or they divide them; each is told where it is."""
    _, job, mode = RUNS[name]
    tasks = run(seen, name)
    if mode == UNIQUE:
        check(tasks)
    for task in tasks:
        assert mode == UNIQUE or task.mask in places(task)
        is_local = all(task.mask & parse_list(cpus_of(GPU_NODES[gpu])) for gpu in task.drives)
        told = [parse_list(task.told["CPULIST"]), parse_list(task.told["ALLOWED"])]
        assert told == [task.mask, task.cpuset]
        assert task.told["LOCALITY"] == ("local" if is_local else "remote")
    gpus = sorted({gpu for task in tasks for gpu in task.sees})
    bound = tuple(tuple(gpus.index(gpu) for gpu in task.sees) for task in tasks)
    assert bound == BOUND.get(job, bound)


def test_tasks_without_cores_of_their_own_stay_where_slurm_put_them(seen: Document) -> None:
    tasks = run(seen, CROWDED)
    assert are_disjoint(tasks)
    assert all("fewer than 1" in task.told["UNPINNED"] for task in tasks)


def test_jobs_are_on_both_packages_and_short_of_near_cpus(seen: Document) -> None:
    """Else what is said of them would be said of few cases."""
    tasks = [task for name in PLANNED for task in run(seen, name)]
    assert {task.told["LOCALITY"] for task in tasks} == {"local", "remote"}
    assert {package(gpu) for task in tasks for gpu in task.drives} == {package(0), package(4)}


def test_in_socket_scope_the_cores_of_the_package_come_along(seen: Document) -> None:
    tasks = tasks_of(seen["socket"], 2)
    assert are_disjoint(tasks)
    for task in tasks:
        (near,) = nearest(task.drives[0], task.cpuset)
        assert task.mask & near
        assert task.mask - near
        assert task.mask <= package(task.drives[0])


def test_a_user_who_binds_cpus_keeps_them(seen: Document) -> None:
    tasks = tasks_of(seen["user's"], 2)
    assert [task.mask for task in tasks] == [{0}, {2}]
    assert all("--cpu-bind" in task.told["UNPINNED"] for task in tasks)


def test_a_batch_script_is_near_all_gpus_of_its_job_and_its_tasks_near_their_own(
    seen: Document,
) -> None:
    of_script, of_step = seen["batch"].split("and its step\n")
    check(tasks_of(of_script, 1))
    check(tasks_of(of_step, 2))


def test_two_jobs_at_once_are_disjoint(seen: Document) -> None:
    one, other = (tasks_of(printed, 2) for printed in seen["together"])
    check([*one, *other])
    first, second = ({gpu for task in job for gpu in task.sees} for job in (one, other))
    assert first.isdisjoint(second)


# Tasks that keep as many CPUs as they asked for: all others here have AFFINITYD_CPUS=none.

ASKED = [(name, mode) for name, job in ASKING.items() for mode in job.modes]


def nearest_first(gpu: int, cpuset: CpuSet) -> list[int]:
    """Return the CPUs of a job by how near they are to a GPU, then by number."""
    away = {
        cpu: distance(GPU_NODES[gpu], node)
        for node in range(NODES)
        for cpu in parse_list(cpus_of(node)) & cpuset
    }
    return sorted(away, key=lambda cpu: (away[cpu], cpu))


@pytest.mark.parametrize(("name", "mode"), ASKED)
def test_tasks_keep_as_many_cpus_as_they_asked_for_the_nearest_and_are_told(
    seen: Document, name: str, mode: str
) -> None:
    """`verify` names an allocation to them, and no pin."""
    job = ASKING[name]
    tasks = tasks_of(seen["asking"][name][mode], job.tasks)
    assert are_disjoint(tasks) or mode == NODE
    for task in tasks:
        assert len(task.mask) >= job.asked
        assert any(task.mask & place for place in places(task))
        assert parse_list(task.told["CPULIST"]) == task.mask
        assert task.told["LOCALITY"] == "mixed"
        assert "widened" in task.told["WARNINGS"].split(",")
        assert task.rest.endswith("verify 1")
        (mismatch,) = re.findall(r"^.*: mismatch: .*$", task.rest, re.MULTILINE)
        assert "has only 4 CPUs there: no pin fixes that; an allocation an allocation" in mismatch
        assert "affinityd exec" not in task.rest
    (home,) = {GPU_NODES[gpu] for task in tasks for gpu in task.drives}
    expected = nearest_first(tasks[0].drives[0], tasks[0].cpuset)[: job.asked * job.tasks]
    assert frozenset().union(*(task.mask for task in tasks)) == {*expected}
    assert parse_list(cpus_of(home)) <= {*expected}
