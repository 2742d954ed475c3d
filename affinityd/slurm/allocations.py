"""Has a job CPUs near each of its GPUs? Pure: a job and the topology in, what is wrong out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, format_list, named_nodes, named_packages
from affinityd.topology.model import Gpu, Topology

REMEDY = "give it --gres-flags=enforce-binding, and gres.conf the right Cores="


@dataclass(frozen=True)
class SlurmJob:
    """A job, as this node sees it."""

    number: int
    cpus: CpuSet  #: all that it may use here
    gpus: tuple[str, ...] | None  #: the node's numbers of its GPUs, or UUIDs; None: not known


def far(topology: Topology, job: SlurmJob) -> Iterator[str]:
    """Yield what is wrong about a job: each GPU that has none of the job's CPUs near it.

    Near is the GPU's own NUMA node, or the nearest that have CPUs; of a GPU whose node is unknown
    nothing is known.
    """
    gpus = [gpu for gpu in topology.gpus if gpu.vendor == topology.vendor]
    named = {name: gpu for gpu in gpus for name in _names(gpu)}
    for name in job.gpus or ():
        if name not in named:
            numbers = format_list(gpu.index for gpu in gpus)
            yield f"job {job.number} has gpu {name}, and this node has {numbers}"
    for gpu in dict.fromkeys(named[name] for name in job.gpus or () if name in named):
        if _is_far(topology, gpu, job.cpus):
            yield (
                f"job {job.number} has gpu {gpu.index} ({_home(topology, gpu)}) and CPUs "
                f"{format_list(job.cpus)} ({_place(topology, job.cpus)}), none of them near it; "
                f"{REMEDY}"
            )


def _names(gpu: Gpu) -> list[str]:
    """Return what Slurm may call a GPU: from 26.05 on by its UUID, and by those of its parts."""
    return [str(gpu.index), *filter(None, (gpu.uuid, *(part.uuid for part in gpu.mig)))]


def _is_far(topology: Topology, gpu: Gpu, cpus: CpuSet) -> bool:
    if gpu.numa_node is None:
        return False
    nearest = topology.nearest(gpu.numa_node, topology.nodes_with_cpus)
    return all(cpus.isdisjoint(topology.cpus_of_node(node)) for node in nearest)


def _home(topology: Topology, gpu: Gpu) -> str:
    """Return where a GPU is: `package 1, node 3`; only the node, where that has no CPUs."""
    cpus = topology.cpus_of_node(gpu.numa_node)
    return _place(topology, cpus) if cpus else named_nodes([gpu.numa_node])


def _place(topology: Topology, cpus: CpuSet) -> str:
    """Return where CPUs are: `package 0, nodes 0-1`."""
    cores = [core for core in topology.cores if not cpus.isdisjoint(core.cpus)]
    packages = named_packages({core.package for core in cores})
    nodes = named_nodes({core.node for core in cores})
    return f"{packages}, {nodes}" if packages else nodes
