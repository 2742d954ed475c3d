"""Jobs of a real Slurm, pinned from outside: their cgroups, their environment, their life.

No script of ours is installed: the tasks run where Slurm has put them until the daemon sees them.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.cpuset import CpuSet, parse_list
from affinityd.linux.processes import mask_of
from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.support.enforcing_node import enforcing
from tests.support.puppets import GROWN_UP
from tests.support.tiny import FAR, NEAR

NEAR_CPU, FAR_CPU = parse_list(NEAR), parse_list(FAR)
BOTH_CPUS = NEAR_CPU | FAR_CPU

#: What a task does: it says its pid, with its label before that, and waits.
TASK = ("/bin/sh", "-c", "echo $$; exec sleep 600")


@contextmanager
def job(cluster: Slurm, tasks: int, *words: str) -> Iterator[list[int]]:
    """Run a job of so many tasks until the block ends; yield their pids, by their numbers."""
    command = ["srun", "--label", f"--ntasks={tasks}", *words, *TASK]
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(cluster.folder / "slurm.conf")}
    with subprocess.Popen(
        cluster.command(*command), env=env, cwd="/", stdout=subprocess.PIPE, text=True
    ) as srun:
        assert srun.stdout is not None
        said = dict(srun.stdout.readline().split(":") for _ in range(tasks))
        try:
            yield [int(said[number]) for number in sorted(said)]
        finally:
            srun.terminate()
            srun.communicate()


def masks(pids: Sequence[int]) -> list[CpuSet | None]:
    return [mask_of(pid) for pid in pids]


def users(pids: Sequence[int]) -> dict[int, list[int]]:
    """Return who uses which GPU: the first task one near NEAR, the second one near FAR."""
    return {gpu: [pid] for gpu, pid in zip((0, 2), pids, strict=False)}


def far_gpu(mask: CpuSet | None) -> int:
    """Return a GPU that is far from one CPU."""
    assert mask in {NEAR_CPU, FAR_CPU}
    return 2 if mask == NEAR_CPU else 0


@contextmanager
def running(setup: Setup, *words: str, tasks: int = 2) -> Iterator[list[int]]:
    """Run a job that is grown up, on a cluster of its own."""
    with slurm(setup, USER) as cluster, job(cluster, tasks, *words) as pids:
        time.sleep(GROWN_UP)
        yield pids


@pytest.fixture(scope="module")
def confined(release: str) -> Iterator[list[int]]:
    """Run a job whose cpuset is its allocation: the whole node."""
    with running(Setup(task_plugin="task/cgroup", release=release), "--account=bio") as pids:
        yield pids


def test_the_tasks_of_a_job_are_pinned_and_the_job_is_told_by_its_number(
    confined: list[int],
) -> None:
    assert masks(confined) == [BOTH_CPUS] * 2
    with enforcing("observe", users=users(confined)) as node:
        node.wait_until("drifted", *confined)
        (told,) = node.enforce()["jobs"]
        assert (told["scheduler"], {it["pid"] for it in told["processes"]}) == (
            "slurm",
            {*confined},
        )
    assert masks(confined) == [BOTH_CPUS] * 2


@pytest.mark.parametrize(
    ("rule", "becomes"),
    [
        ('partition = "all"\nleave = true', "policy"),
        (f'user = "{USER}"\npartition = "al?"\nleave = true', "policy"),
        ('partition = "other"\nleave = true', "drifted"),
        ('account = "b*"\nleave = true', "policy"),
    ],
    ids=["its partition", "its user", "another partition", "its account"],
)
def test_rules_know_what_slurm_calls_a_job(
    confined: list[int], tmp_path: Path, rule: str, becomes: str
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f"[[rule]]\n{rule}\n")
    with enforcing("observe", "--enforce-policy", f"{policy}", users=users(confined)) as node:
        node.wait_until(becomes, *confined)


def test_each_task_gets_the_cpus_near_its_gpu(confined: list[int]) -> None:
    with enforcing("pin", users=users(confined)) as node:
        node.wait_until("fits", *confined)
        assert masks(confined) == [NEAR_CPU, FAR_CPU]


def test_a_job_that_has_one_far_cpu_is_left_and_told_what_gres_conf_lacks(release: str) -> None:
    with (
        running(Setup(task_plugin="task/cgroup", release=release), tasks=1) as pids,
        enforcing("pin", users={}) as node,
    ):
        before = masks(pids)
        node.say({far_gpu(*before): pids})
        node.wait_until("allocation", *pids)
        why = node.processes()[pids[0]]["why"]
        assert "gres.conf" in why
        assert "--gres-flags=enforce-binding" in why
        assert masks(pids) == before


def test_where_slurm_confines_by_masks_alone_nobody_gets_other_jobs_cpus(release: str) -> None:
    """Its job has one CPU of two, and its cpuset has both."""
    setup = Setup(
        task_plugin="task/affinity", by_cgroup=True, constrain_cores=False, release=release
    )
    with running(setup, tasks=1) as pids, enforcing("pin", users={}) as node:
        before = masks(pids)
        node.say({far_gpu(*before): pids})
        node.wait_until("unknown_cpuset", *pids)
        (told,) = node.enforce()["jobs"]
        assert told["scheduler"] == "slurm"
        assert "ConstrainCores=yes" in told["processes"][0]["why"]
        node.wait_for_scans(1)
        assert masks(pids) == before
        assert node.pins() == 0


def test_processes_of_a_cluster_without_cgroups_are_in_no_job(release: str) -> None:
    with (
        running(Setup(release=release), tasks=1) as pids,
        enforcing("pin", users={0: pids}) as node,
    ):
        node.wait_until("no_job", *pids)
        assert masks(pids) == [BOTH_CPUS]
