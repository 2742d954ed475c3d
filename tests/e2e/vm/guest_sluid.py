"""Runs in the virtual machine: Slurm 26.05 on cgroup v2, jobs' folders by SLUID and by number.

NVIDIA's library says from facts who uses which GPU; Slurm, its processes and cgroups are real.
"""

import os
import signal
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from affinityd.linux.processes import stat_of
from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.e2e.vm.guest_slurm import furnish
from tests.e2e.vm.hardware import GPU_NODES
from tests.e2e.vm.inside import RELEASE, Document, bring, have_driver, stage, tell
from tests.e2e.vm.warm import affinityd, serving
from tests.support.daemons import Daemon, eventually

BY_SLUID, BY_NUMBER = "no", "yes"  #: settings of CgroupJobIdPaths
GPUS = (2, 6)  #: of the tasks: each is near some of the job's CPUs, which are of both packages


def main() -> Document:
    bring("31", online=True)
    furnish()
    have_driver()
    return {setting: with_setting(setting) for setting in (BY_SLUID, BY_NUMBER)}


def with_setting(setting: str) -> Document:
    stage(f"Slurm starts with CgroupJobIdPaths={setting}")
    setup = Setup(
        gpus=[f"{minor}" for minor in range(len(GPU_NODES))],
        task_plugin="task/cgroup",
        # Messages take long on an emulated CPU; srun need not wait long for a step that is lost.
        conf=["MessageTimeout=100", "KillWait=1"],
        cgroup_conf=[f"CgroupJobIdPaths={setting}"],
        topology="Sockets=2 CoresPerSocket=8 ThreadsPerCore=2",
        release="26.05",
        root=Path("/", RELEASE),
    )
    with slurm(setup, USER) as cluster, cluster.job(2, "--gres=gpu:2", "-c8") as pids:
        tell({pid: [gpu] for pid, gpu in zip(pids, GPUS, strict=True)})
        try:
            return judged(cluster, pids)
        finally:
            for pid in pids:  # which are Slurm's no more
                os.kill(pid, signal.SIGKILL)


def judged(cluster: Slurm, pids: Sequence[int]) -> Document:
    """Return what is said of a job's tasks while it runs, and when it has left them behind."""
    number = cluster.run("squeue", "-h", "--format=%i").strip()
    report: Document = {
        "pids": pids,
        "number": number,
        "cgroups": [Path(f"/proc/{pid}/cgroup").read_text() for pid in pids],
        "audit": affinityd("audit", "--json"),
    }
    stage("a daemon scans")
    daemon = serving("--scan-interval", "1")
    try:
        eventually(lambda: len(processes(daemon)) == len(pids), "it has seen the tasks")
        report["living"] = processes(daemon)
        stage("the job ends, and its slurmstepd has ended before its tasks")
        os.kill(parent(pids[0]), signal.SIGKILL)
        cluster.run("scancel", number)
        eventually(lambda: not cluster.run("squeue", "-h"), "the job has ended")
        eventually(lambda: all(it["orphan"] for it in processes(daemon)), "the daemon has seen it")
        report["left"] = processes(daemon)
    finally:
        daemon.stop()
    return report


def parent(pid: int) -> int:
    stat = stat_of(pid)
    assert stat is not None, "a task has ended"
    return stat.parent


def processes(daemon: Daemon) -> list[Document]:
    """Return the processes of the daemon's last scan; none before the first."""
    reply = daemon.get("/audit")
    return list(reply.json["processes"]) if reply.status == HTTPStatus.OK else []
