"""The processes that use the virtual machine's GPUs, and where they are."""

from __future__ import annotations

from dataclasses import dataclass

POD = "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01"
CONTAINER = "3f1a" * 16

SLURM = "system.slice/slurmstepd.scope"
PODS = "kubepods.slice/kubepods-burstable.slice"
POD_SLICE = f"{PODS}/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
TASK = "user/task_0"

#: The cpusets of a pod, one after the other, and where its process is to run: near GPU 4.
PLACES = {"8-11,28-31": "28-31", "8-11,30-31": "30-31", "0-31": "28-31"}


@dataclass(frozen=True)
class Rank:
    """A process that uses a GPU."""

    gpu: int  #: index; GPUs are on nodes 3, 3, 1, 1, 7, 7, 5, 5, four CPUs each
    group: str  #: its cgroup
    cpus: str | None = None  #: its mask
    cpuset: str | None = None  #: its cgroup's
    program: str = "train"
    has_child: bool = False
    keeper: bool = False  #: a slurmstepd is with its step


#: By what is to be found of each.
RANKS = {
    "near": Rank(0, f"{SLURM}/job_7/step_0/{TASK}", cpus="12-13", has_child=True, keeper=True),
    "left over": Rank(1, f"{SLURM}/job_8/step_batch/{TASK}", cpus="12-15"),
    "masked": Rank(2, f"{POD_SLICE}/cri-containerd-{CONTAINER}.scope", cpus="0-3", cpuset="0-7"),
    "a known daemon": Rank(3, "system.slice/dcgm.service", program="nv-hostengine"),
    "allocated far away": Rank(4, f"{SLURM}/job_9/step_0/{TASK}", cpuset="16-19", keeper=True),
    "given too few near": Rank(5, f"{SLURM}/job_11/step_0/{TASK}", cpuset="24-31", keeper=True),
    "unpinned": Rank(6, f"{SLURM}/job_10/step_0/{TASK}", keeper=True),
}
