"""A real Slurm on cgroup v2, on a machine with many NUMA nodes: where its tasks run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import pytest

from affinityd.cpuset import CpuSet, parse_list
from tests.e2e.slurm.node import read_tasks
from tests.e2e.vm.guest_slurm import JOBS, MINORS, NODE, UNIQUE
from tests.e2e.vm.hardware import CPUS_PER_NODE, GPU_NODES, NODES, cpus_of, distance
from tests.e2e.vm.inside import Document

#: Of which step tasks see which of its GPUs: what Slurm's binding makes of them.
BOUND = {
    "tasks that deal out GPUs of two packages": ((0, 1), (0, 1)),
    "all GPUs for all": ((0, 1), (0, 1)),
    "a GPU for each task": ((0,), (1,), (2,), (3,)),
    "a map": ((1,), (0,)),
    "a map of one GPU": ((0,), (0,)),
}

#: A job, and its mode.
Run = tuple[str, str]
RUNS: list[Run] = [(name, mode) for name, job in JOBS.items() for mode in job.modes]
SHARING = [it for it in RUNS if JOBS[it[0]].gpus]
ASKING = [it for it in RUNS if JOBS[it[0]].asked and it not in SHARING]

PLANNED = [it for it in RUNS if it not in (*ASKING, *SHARING)]


@dataclass(frozen=True)
class Task:
    mask: CpuSet
    cpuset: CpuSet
    sees: tuple[int, ...]  #: GPUs
    drives: tuple[int, ...]  #: its own among them
    told: Mapping[str, str]  #: AFFINITYD_*, without the prefix


def tasks_of(seen: Document, run: Run) -> list[Task]:
    """Return what the tasks of a job say; there must be as many as it has."""
    name, mode = run
    read = read_tasks(seen[name][mode])
    assert len(read) == JOBS[name].tasks, read
    tasks = []
    for number, task in enumerate(read):
        (cpuset,) = (line.split()[1] for line in task.rest if line.startswith("cpuset "))
        opened = re.findall(r"/dev/nvidia(\d+): No such device", "\n".join(task.rest))
        sees = tuple(sorted(MINORS.index(int(minor)) for minor in opened))
        # Tasks deal out what they see; one that is alone has it all.
        drives = sees if len(read) == 1 else (sees[number % len(sees)],)
        mask = parse_list(task.cpus)
        tasks.append(Task(mask, parse_list(cpuset), sees, drives, task.variables))
    return tasks


def away(gpu: int, cpuset: CpuSet) -> dict[int, int]:
    return {cpu: distance(GPU_NODES[gpu], cpu // CPUS_PER_NODE) for cpu in sorted(cpuset)}


def nearest(gpu: int, cpuset: CpuSet) -> list[CpuSet]:
    """Return the CPUs that are nearest to a GPU: several sets, if nodes tie."""
    far = away(gpu, cpuset)
    near = {cpu for cpu in far if far[cpu] == min(far.values())}
    nodes = (near & parse_list(cpus_of(node)) for node in range(NODES))
    return [frozenset(cpus) for cpus in nodes if cpus]


def places(task: Task) -> set[CpuSet]:
    """Return the CPUs of its job that are nearest to a task's GPUs: several sets, if nodes tie."""
    choices = [nearest(gpu, task.cpuset) for gpu in task.drives]
    return {frozenset().union(*choice) for choice in product(*choices)}


def are_disjoint(tasks: Sequence[Task]) -> bool:
    pairs = combinations(tasks, 2)
    apart = (pair for pair in pairs if {*pair[0].drives}.isdisjoint(pair[1].drives))
    return all(one.mask.isdisjoint(other.mask) for one, other in apart)


@pytest.mark.parametrize("run", PLANNED, ids=", ".join)
def test_tasks_are_on_their_job_s_cpus_near_their_gpus(seen: Document, run: Run) -> None:
    """In a unique mode they divide these; each is told where it is."""
    name, mode = run
    tasks = tasks_of(seen, run)
    assert mode == NODE or are_disjoint(tasks)
    for task in tasks:
        assert task.mask
        near = places(task)
        assert task.mask in near if mode == NODE else any(task.mask <= place for place in near)
        is_local = all(task.mask & parse_list(cpus_of(GPU_NODES[gpu])) for gpu in task.drives)
        lists = [parse_list(task.told["CPULIST"]), parse_list(task.told["ALLOWED"])]
        assert lists == [task.mask, task.cpuset]
        assert task.told["LOCALITY"] == ("local" if is_local else "remote")
    gpus = sorted({gpu for task in tasks for gpu in task.sees})
    bound = tuple(tuple(gpus.index(gpu) for gpu in task.sees) for task in tasks)
    assert bound == BOUND.get(name, bound)


@pytest.mark.parametrize("run", ASKING, ids=", ".join)
def test_tasks_keep_as_many_of_the_nearest_cpus_as_they_asked_for(seen: Document, run: Run) -> None:
    """All other jobs here have AFFINITYD_CPUS=none."""
    asked, tasks = JOBS[run[0]].asked, tasks_of(seen, run)
    for task in tasks:
        assert len(task.mask) >= asked
        assert ("not_unique" in task.told["WARNINGS"]) == (run[1] == UNIQUE and len(tasks) > 1)
        assert any(task.mask & place for place in places(task))
        assert parse_list(task.told["CPULIST"]) == task.mask
        assert task.told["LOCALITY"] == "mixed"
        assert "widened" in task.told["WARNINGS"].split(",")
    (home,) = {GPU_NODES[gpu] for task in tasks for gpu in task.drives}
    far = away(tasks[0].drives[0], tasks[0].cpuset)
    expected = sorted(far, key=lambda cpu: (far[cpu], cpu))[: asked * len(tasks)]
    assert frozenset().union(*(task.mask for task in tasks)) == {*expected}
    assert parse_list(cpus_of(home)) <= {*expected}


@pytest.mark.parametrize("run", SHARING, ids=", ".join)
def test_tasks_that_see_all_gpus_have_what_they_asked_for_near_their_own(
    seen: Document, run: Run
) -> None:
    """With fewer tasks than GPUs each has a block of them, in order."""
    job, tasks = JOBS[run[0]], tasks_of(seen, run)
    granted = tasks[0].sees
    assert len(granted) == job.gpus
    each = max(len(granted) // len(tasks), 1)
    for number, task in enumerate(tasks):
        own = granted[number * each : (number + 1) * each]
        homes = frozenset().union(*(parse_list(cpus_of(GPU_NODES[gpu])) for gpu in own))
        near = homes & task.cpuset
        assert len(task.mask) >= job.asked, (number, task)
        assert task.mask & near or not near, (number, task)
        assert task.told["LOCALITY"] != "remote" or not near
        if run[1] == NODE and len(near) <= job.asked:
            assert near <= task.mask
    together = frozenset().union(*(task.mask for task in tasks))
    assert len(together) >= job.asked * len(tasks), "they share out the CPUs of their job"
