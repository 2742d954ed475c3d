"""The jobs that the daemon keeps in place in the virtual machine, and where that is."""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.cpuset import format_list, parse_list
from tests.e2e.vm.holders import CONTAINER, POD, SLURM
from tests.e2e.vm.holders import PODS as ALL_PODS

JOB = f"{SLURM}/job_7"  #: whose cpuset is rewritten
WIDE = "0-15,20"  #: what it is at first

#: The cpuset that the job gets one after the other: less, and all there are.
CPUSETS = ("4-5,12-13,20", "0-31")


@dataclass(frozen=True)
class Training:
    """A rank of a job; each has a second thread, and two workers."""

    job: str  #: its cgroup
    task: int
    cpuset: str
    gpus: tuple[int, ...]  #: indices; GPUs are on nodes 3, 3, 1, 1, 7, 7, 5, 5, four CPUs each
    on_purpose: int | None = None  #: the CPU to which its second thread is pinned before all


TRAININGS = {
    "rank 0": Training(JOB, 0, WIDE, (0,)),
    "rank 1": Training(JOB, 1, WIDE, (1,)),
    "rank 2": Training(JOB, 2, WIDE, (2,)),
    "rank 3": Training(JOB, 3, WIDE, (3,)),
    "on two GPUs": Training(f"{SLURM}/job_8", 0, "16-31", (4, 6), on_purpose=16),
    "allocated far away": Training(f"{SLURM}/job_9", 0, "0-3", (7,)),
}
RANKS = tuple(name for name, it in TRAININGS.items() if it.job == JOB)

#: The cgroups of two pods, whose memory is on node 2; their GPUs are 4 and 5.
PODS = tuple(
    f"{ALL_PODS}/kubepods-burstable-pod{uid}.slice/cri-containerd-{CONTAINER}.scope"
    for uid in (POD.replace("-", "_"), POD.replace("-", "_").replace("0d6f", "1d6f"))
)

#: The first job was given 17 CPUs for four GPUs: five for each rank, ten for the two on each
#: node, which has four. The nearest others are the package's, then CPU 20 of the other one.
_GIVEN = {
    "rank 0": "0-3,8-9,12-15",
    "rank 1": "0-3,8-9,12-15",
    "rank 2": "4-7,10-11,20",
    "rank 3": "4-7,10-11,20",
}
_NEAR = {"rank 0": "12-15", "rank 1": "12-15", "rank 2": "4-7", "rank 3": "4-7"}


def targets(cpuset: str) -> dict[str, str]:
    """Return where the job's processes are to run, on near CPUs alone, in a cpuset of it."""
    allowed = parse_list(cpuset)
    return _with_workers({it: format_list(parse_list(_NEAR[it]) & allowed) for it in RANKS})


def given() -> dict[str, str]:
    """Return the same in the cpuset WIDE, with as many CPUs as the job was given."""
    return _with_workers(_GIVEN)


def _with_workers(cpulists: dict[str, str]) -> dict[str, str]:
    return {
        f"{rank}{whose}": cpulist
        for rank, cpulist in cpulists.items()
        for whose in ("", "'s worker 0", "'s worker 1")
    }
