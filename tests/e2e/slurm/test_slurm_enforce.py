"""Jobs of a real Slurm, pinned from outside: their cgroups, their environment, their life.

No script of ours is installed: the tasks run where Slurm has put them until the daemon sees them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cpuset import CpuSet, parse_list
from affinityd.linux.processes import mask_of
from tests.e2e.slurm.rig import USER, Setup, slurm
from tests.support.enforcing_node import enforcing
from tests.support.puppets import GROWN_UP
from tests.support.tiny import FAR, NEAR

NEAR_CPU, FAR_CPU = parse_list(NEAR), parse_list(FAR)

BY_CPUSET = Setup(task_plugin="task/cgroup")
BY_MASK = Setup(task_plugin="task/affinity", by_cgroup=True, constrain_cores=False)
#: Jobs, each of a cluster of its own: how that confines them, the job's tasks, and its options.
JOBS: dict[str, tuple[Setup, int, Sequence[str]]] = {
    "whole node": (BY_CPUSET, 2, ["--account=bio"]),
    "one CPU": (BY_CPUSET, 1, []),
    "masks alone": (BY_MASK, 1, []),  # the job has one CPU of two, and its cpuset has both
}

#: The tasks of each job.
Jobs = Mapping[str, list[int]]


@pytest.fixture(scope="module")
def jobs(release: str) -> Iterator[Jobs]:
    with ExitStack() as stack:
        running = {}
        for name, (setup, tasks, words) in JOBS.items():
            cluster = stack.enter_context(slurm(replace(setup, release=release), USER))
            running[name] = stack.enter_context(cluster.job(tasks, *words))
        time.sleep(GROWN_UP)
        yield running


def masks(pids: Sequence[int]) -> list[CpuSet | None]:
    return [mask_of(pid) for pid in pids]


def users(pids: Sequence[int]) -> dict[int, list[int]]:
    """Return who uses which GPU: the first task one near NEAR, the second one near FAR."""
    return {gpu: [pid] for gpu, pid in zip((0, 2), pids, strict=False)}


OTHERS = 'partition = "other"\nleave = true'
ITS_NAMES = f'user = "{USER}"\npartition = "al?"\naccount = "b*"\nleave = true'


@pytest.mark.parametrize(("rule", "becomes"), [(OTHERS, "drifted"), (ITS_NAMES, "policy")])
def test_rules_know_the_names_of_a_job(jobs: Jobs, tmp_path: Path, rule: str, becomes: str) -> None:
    policy, pids = tmp_path / "policy.toml", jobs["whole node"]
    policy.write_text(f"[[rule]]\n{rule}\n")
    with enforcing("observe", "--enforce-policy", f"{policy}", users=users(pids)) as node:
        node.wait_until(becomes, *pids)
        (job_report,) = node.enforce()["jobs"]
    assert job_report["scheduler"] == "slurm"
    assert {it["pid"] for it in job_report["processes"]} == {*pids}
    assert masks(pids) == [NEAR_CPU | FAR_CPU] * 2


def test_each_task_gets_the_cpus_near_its_gpu(jobs: Jobs) -> None:
    pids = jobs["whole node"]
    with enforcing("pin", users=users(pids)) as node:
        node.wait_until("fits", *pids)
        assert masks(pids) == [NEAR_CPU, FAR_CPU]


@pytest.mark.parametrize(
    ("job", "becomes", "lacks"),
    [
        ("one CPU", "allocation", "--gres-flags=enforce-binding"),
        ("masks alone", "unknown_cpuset", "ConstrainCores=yes"),
    ],
)
def test_a_confined_job_is_left_alone(jobs: Jobs, job: str, becomes: str, lacks: str) -> None:
    (pid,) = jobs[job]
    before = masks([pid])
    far_gpu = {NEAR_CPU: 2, FAR_CPU: 0}[before[0] or NEAR_CPU]
    with enforcing("pin", users={far_gpu: [pid]}) as node:
        node.wait_until(becomes, pid)
        (job_report,) = node.enforce()["jobs"]
        assert job_report["scheduler"] == "slurm"
        assert lacks in job_report["processes"][0]["why"]
        node.wait_for_scans(1)
        assert (masks([pid]), node.pins()) == (before, 0)
