"""The job and the pods that the daemon keeps in place in the virtual machine, and where that is."""

from __future__ import annotations

from affinityd.cpuset import format_list, parse_list
from tests.e2e.vm.hardware import GPU_NODES, cpus_of
from tests.e2e.vm.holders import CONTAINER, PODS, SLURM

JOB = f"{SLURM}/job_7"  #: the cgroup whose cpuset is rewritten
WIDE = "0-15,20"  #: what it is at first

#: The cpuset that the job gets one after the other: less, and all there are.
CPUSETS = ("4-5,12-13,20", "0-31")

RANKS = 4  #: each has the GPU of its number, a second thread, and two workers
FAMILY = ("", "'s worker 0", "'s worker 1")

#: The cgroups of two pods by their GPUs, on node 7; their memory is on node 2.
POD_GPUS = {
    gpu: f"{PODS}/kubepods-burstable-pod{gpu}d6f3a52_1c1e_4f0e_9d55_2f6f4b0c7a01.slice"
    f"/cri-containerd-{CONTAINER}.scope"
    for gpu in (4, 5)
}
FAR_NODE, HOME_NODE = "2", "7"  #: of the pods


def targets(cpuset: str) -> dict[str, str]:
    """Return where the job's processes are to run, on near CPUs alone, in a cpuset of it."""
    allowed = parse_list(cpuset)
    return {
        f"rank {rank}{whose}": format_list(parse_list(cpus_of(GPU_NODES[rank])) & allowed)
        for rank in range(RANKS)
        for whose in FAMILY
    }
