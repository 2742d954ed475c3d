"""What is wrong about `Cores=` of one GPU, in one sentence with what would be right."""

from __future__ import annotations

from affinityd.cpuset import format_list, named_nodes, named_packages
from affinityd.slurm.machine.cores import CoreAffinity, CoreNumbers, SlurmCores
from affinityd.topology.model import Gpu


def misplaced(
    cores: SlurmCores, gpu: Gpu, affinity: CoreAffinity, said: CoreNumbers | None
) -> str | None:
    """Return what is wrong; None if nothing is, or it is not known where the GPU is."""
    right = affinity.field
    if said is None:
        home = right and _home(cores, gpu, affinity)
        return home and f"the line has no Cores=, {home}; add {right}"
    if said in affinity.near:
        return None
    fault = _beyond(cores, affinity, said) or _elsewhere(cores, gpu, affinity, said)
    return fault and f"Cores={format_list(said)} {fault}; right is {right or 'no Cores='}"


def _beyond(cores: SlurmCores, affinity: CoreAffinity, said: CoreNumbers) -> str | None:
    """Say that they are no core numbers, or those of other cores than was meant."""
    if any(said in cores.as_cpus(near) for near in affinity.near):
        return "are the CPU numbers of the right cores, and Slurm counts cores"
    if said <= cores.all:
        return None
    last = len(cores.order) - 1
    guess = ": CPU numbers? Slurm counts cores" if said <= cores.topology.online else ""
    return f"goes beyond core {last}, the last of this node{guess}"


def _elsewhere(
    cores: SlurmCores, gpu: Gpu, affinity: CoreAffinity, said: CoreNumbers
) -> str | None:
    """Say where they are and should not be."""
    if not affinity.near:
        return None
    own = affinity.near[0]
    home = _home(cores, gpu, affinity)
    elsewhere = named_packages(cores.packages(said))
    if elsewhere and not cores.packages(said) & cores.packages(own):
        return f"is {elsewhere}, {home}"
    if said.isdisjoint(own):
        return f"is {named_nodes(cores.nodes(said))}, {home}"
    if said < own:
        return f"leaves out cores {format_list(own - said)}, {home}"
    others = said - own
    return f"has cores {format_list(others)} of {named_nodes(cores.nodes(others))}, {home}"


def _home(cores: SlurmCores, gpu: Gpu, affinity: CoreAffinity) -> str:
    own = affinity.near[0]
    nodes, package = named_nodes(cores.nodes(own)), named_packages(cores.packages(own))
    place = f"{package} ({nodes})" if package else nodes
    is_own = gpu.numa_node in cores.nodes(own)
    return f"the GPU is on {place}" if is_own else f"the nearest cores are on {place}"
