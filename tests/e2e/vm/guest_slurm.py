"""Runs in the virtual machine: Slurm on cgroup v2, with the scripts of slurm/, and its jobs."""

import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.slurm.rig import USER, Setup, slurm
from tests.e2e.vm.hardware import GPU_NODES
from tests.e2e.vm.inside import AFFINITYD, GROUPS, Document, bring, hold_gpus, output, stage
from tests.support.daemons import eventually, running

#: Of /dev/nvidiaN, which is not the GPU's index, nor on its node.
MINORS = tuple(reversed(range(len(GPU_NODES))))

NODE, UNIQUE = "node", "unique-contiguous"


@dataclass(frozen=True)
class Job:
    words: str  #: srun's options
    modes: tuple[str, ...] = (NODE, UNIQUE)  #: AFFINITYD_MODE: it runs once in each
    cpus: str = "none"  #: AFFINITYD_CPUS: near ones alone, however few; "": Slurm says it
    asked: int = 0  #: CPUs that each task keeps, more than are near
    gpus: int = 0  #: of the job, where its tasks see all of them and share out the machine

    @property
    def tasks(self) -> int:
        """How many there are, by -n."""
        return int(self.words.partition(" ")[0].removeprefix("-n"))

    def env(self, mode: str) -> Mapping[str, str]:
        return {"AFFINITYD_MODE": mode} | ({"AFFINITYD_CPUS": self.cpus} if self.cpus else {})


#: A NUMA node has two cores, and two GPUs: hence so many CPUs for so few tasks.
JOBS = {
    "tasks that deal out GPUs of two packages": Job("-n2 --gres=gpu:2 -c16"),
    "tasks that deal out GPUs, some without a near CPU": Job("-n4 --gres=gpu:4 -c7", (UNIQUE,)),
    "too few CPUs for a choice": Job("-n2 --gres=gpu:2", (NODE,)),
    "a GPU for each task": Job("-n4 --gpus-per-task=1 -c4"),
    "a GPU for two tasks": Job("-n4 --gres=gpu:2 --gpu-bind=single:2 -c7"),
    "all GPUs for all": Job("-n2 --gres=gpu:2 --gpu-bind=none -c8", (UNIQUE,)),
    "a map": Job("-n2 --gres=gpu:2 --gpu-bind=map_gpu:1,0 -c8 --cpu-bind=cores"),
    "a map of one GPU": Job("-n2 --gres=gpu:2 --gpu-bind=map_gpu:0,0 -c12", (UNIQUE,)),
    "a lone task": Job("-n1 --gres=gpu:2 -c16"),
    "all that its job has": Job("-n2 --gres=gpu:2 -c8", cpus="", asked=8),
    "a part of what its job has": Job("-n1 --gres=gpu:1 -c16", cpus="6", asked=6),
}

#: Jobs that have as many CPUs as they asked for, most of them the whole machine.
JOBS |= {
    "blocks of all GPUs": Job("-n2 --gres=gpu:8 -c16", cpus="", asked=16, gpus=8),
    "smaller blocks of all GPUs": Job("-n4 --gres=gpu:8 -c8", cpus="", asked=8, gpus=8),
    "two GPUs of an exclusive node": Job(
        "-n2 --gres=gpu:2 --exclusive -c16", cpus="", asked=16, gpus=2
    ),
    "a GPU of an exclusive node": Job(
        "-n1 --gres=gpu:1 --exclusive -c32", cpus="", asked=32, gpus=1
    ),
    "a task a GPU of an exclusive node": Job("-n8 --gres=gpu:8 --exclusive", cpus="", gpus=8),
    "a lone task with all GPUs": Job("-n1 --gres=gpu:8 -c4", cpus="", asked=4, gpus=8),
}

INSTALLED = "/etc/slurm/affinityd"
SCRIPTS = Path("/checkout/slurm")
RUN = Path("/tmp/affinityd")  # noqa: S108 - nobody else is here; jobs find it at /run/affinityd

#: What a task says: its mask, its job's CPUs, its variables, and the device files that it can open.
#: No driver serves them: ENXIO, where it may, and EPERM, where it may not.
#: It starts few programs, which take long here.
LOOK = r"""
while read -r name value; do
    [ "$name" != Cpus_allowed_list: ] || echo "$name $value"
done </proc/self/status
IFS=: read -r _ _ group </proc/self/cgroup
read -r cpus <"/sys/fs/cgroup$group/cpuset.cpus.effective"
echo "cpuset $cpus"
{ env; cat /dev/nvidia* 2>&1; } | grep -E "^AFFINITYD_|No such device"
"""


def main() -> Document:
    bring("31", online=True)
    furnish()
    hold_gpus(MINORS)
    stage("the daemon starts")
    with running(RUN):
        return all_of(output(*AFFINITYD, "slurm", "gres-conf"))


def furnish() -> None:
    """Make what a node has that an unpacked image has not."""
    Path("/etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\n{USER}:x:5:60::/:/bin/sh\n")
    Path("/etc/group").write_text(f"root:x:0:\n{USER}:x:60:\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 {socket.gethostname()}\n")
    for name in ("slurmctld", "slurmd", "slurmstepd"):
        Path(f"/usr/sbin/{name}").symlink_to(f"{name}-wlm")  # which Debian has alternatives do
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        Path(f"/dev/{name}").symlink_to(f"/proc/self/{target}")
    for name in ("pts", "shm"):
        Path(f"/dev/{name}").mkdir()
    output("ip", "address", "add", "10.0.0.1", "dev", "lo")  # getaddrinfo(3), AI_ADDRCONFIG
    slice_ = GROUPS / "system.slice"  # where slurmd has its jobs
    slice_.mkdir()
    for folder in (GROUPS, slice_):
        # Slurm 22.05 overlooks the last of a cgroup's controllers, which pids is then.
        (folder / "cgroup.subtree_control").write_text("+cpuset +pids")
    have_patience()


def have_patience(root: Path = Path("/")) -> None:
    """Let curl wait longer than the scripts say: an emulated CPU is slow."""
    curl = root / "usr/bin/curl"
    curl.rename(root / "usr/bin/curl.debian")
    curl.write_text('#!/bin/sh\nexec /usr/bin/curl.debian "$@" --max-time 60\n')
    curl.chmod(0o755)


def all_of(gres_conf: str) -> dict[str, dict[str, str]]:
    """Return what the tasks of each job say, in each mode, on a Slurm that has the whole machine.

    They may open their own GPUs alone.
    """
    scripts = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog"}
    copy = shutil.copytree(SCRIPTS, RUN / "scripts")
    (RUN / "jobs").mkdir()
    setup = Setup(
        gpus=[f"{minor}" for minor in MINORS],
        task_plugin="task/affinity,task/cgroup",
        constrain_devices=True,
        # Messages may take long where an emulated CPU has little time.
        conf=[
            "MessageTimeout=100",
            *(f"{cluster}={INSTALLED}/{scripts[cluster]}.sh" for cluster in scripts),
        ],
        topology="Sockets=2 CoresPerSocket=8 ThreadsPerCore=2",
        gres_conf=gres_conf,
        binds={RUN: "/run/affinityd", RUN / "jobs": "/run/affinityd-jobs", copy: INSTALLED},
    )
    stage("Slurm starts")
    with slurm(setup, USER) as cluster:
        seen = {
            name: {
                mode: cluster.srun(*job.words.split(), "sh", "-c", LOOK, env=job.env(mode))
                for mode in job.modes
            }
            for name, job in JOBS.items()
        }
        eventually(lambda: not any((RUN / "jobs").iterdir()), "the epilog has forgotten the jobs")
    return seen
