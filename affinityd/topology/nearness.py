"""Near and far: the CPUs and memory near GPUs, the locality of CPUs, and why some are far. Pure.

Plans, `verify`, audit, metrics and pictures use the words defined here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, format_list, several
from affinityd.text import count
from affinityd.topology.model import Gpu, Topology

LOCAL = "local"  #: all CPUs are near
MIXED = "mixed"  #: some CPUs are near
REMOTE = "remote"  #: no CPU is near
UNKNOWN = "unknown"  #: the machine does not say where the GPU is
UNPINNED = "unpinned"  #: only of a running process: it may use every online CPU, and some are far
LOCALITIES = (LOCAL, MIXED, REMOTE, UNKNOWN)  #: localities of plans, best to worst
PLACEMENTS = (LOCAL, MIXED, REMOTE, UNPINNED, UNKNOWN)  #: of running processes
#: Placements of a thread that may run far from its GPUs.
FAR_PLACEMENTS = (MIXED, REMOTE, UNPINNED)

#: Why a process may run far from its GPUs, besides UNPINNED.
ALLOCATION = "allocation"  #: its cpuset has no near CPU, or fewer than its job asked for
MASK = "mask"  #: its cpuset has near CPUs, but its mask has far CPUs
CAUSES = (ALLOCATION, MASK, UNPINNED)


def gpu_numbers(gpus: Sequence[Gpu], *, with_vendor: bool) -> str:
    """Return GPU indices, `0-1`; with vendors `amd 0+intel 0`: each vendor counts from 0."""
    if not with_vendor:
        return format_list(gpu.index for gpu in gpus)
    indices: dict[str, list[int]] = {}
    for gpu in gpus:
        indices.setdefault(gpu.vendor, []).append(gpu.index)
    return "+".join(f"{vendor} {format_list(numbers)}" for vendor, numbers in indices.items())


def name_gpus(gpus: Sequence[Gpu], *, with_vendor: bool) -> str:
    """Return `GPU 0`, `GPUs 0-1`, or `GPU amd 0`."""
    noun = "GPUs" if len(gpus) > 1 else "GPU"
    return f"{noun} {gpu_numbers(gpus, with_vendor=with_vendor)}"


@dataclass(frozen=True)
class Vicinity:
    """The CPUs and memory near a set of GPUs: near any of them."""

    gpus: tuple[Gpu, ...]
    nodes: tuple[int | None, ...]  #: the NUMA nodes of the near CPUs; (): unknown
    cpus: CpuSet
    memory: frozenset[int]  #: nodes whose memory is near
    far_memory: frozenset[int]  #: other nodes of the host that are not GPU memory
    with_vendor: bool = False  #: whether GPU names include the vendor: there are several

    def __str__(self) -> str:
        """Return where the GPUs are: `GPU 0 is on node 3`."""
        unknown = [gpu for gpu in self.gpus if gpu.numa_node is None]
        gpus = unknown or self.gpus
        names = name_gpus(gpus, with_vendor=self.with_vendor)
        verb = "is" if len(gpus) == 1 else "are"
        if unknown:
            return f"{names} {verb} on an unknown node"
        nodes = {gpu.numa_node for gpu in gpus if gpu.numa_node is not None}
        return f"{names} {verb} on {several('node', nodes)}"

    def part_of(self, cpuset: CpuSet | None) -> str:
        """Describe how many near CPUs a cpuset with too few of them has."""
        there = len((cpuset or frozenset()) & self.cpus)
        if there == 0:
            return "no CPU"
        return f"only {count(there, 'CPU')}"


def near_nodes(topology: Topology, gpu: Gpu) -> tuple[int | None, ...]:
    """Return the nodes whose CPUs are near a GPU, in order; (): its place is not known.

    The GPU's own node is near. If that node has no online CPU, all nodes with CPUs that are nearest
    to it are near, whichever of them a process may use. If only one node has CPUs, it is near every
    GPU, unless the kernel hides the nodes.
    """
    if topology.hides_nodes:
        return ()
    with_cpus = topology.nodes_with_cpus
    if len(with_cpus) == 1:
        return with_cpus
    if gpu.numa_node is None:
        return ()
    return topology.nearest(gpu.numa_node, with_cpus)


def vicinity(
    topology: Topology, gpus: Sequence[Gpu], memory_nodes: Iterable[int | None] = ()
) -> Vicinity:
    """Return the vicinity of GPUs, and of `memory_nodes`; empty if a GPU's place is unknown."""
    near: set[int | None] = set()
    for gpu in gpus:
        nodes_of_gpu = near_nodes(topology, gpu)
        if not nodes_of_gpu:
            near.clear()
            break
        near.update(nodes_of_gpu)
    nodes = tuple(node for node in topology.nodes_with_cpus if node in near)
    homes = set(memory_nodes).union(*map(topology.memory_nodes, nodes))
    plain = topology.nodes_with_memory  # CXL memory is near the CPUs that are closest to it
    for node in set(plain).difference(topology.nodes_with_cpus, topology.gpu_memory_nodes):
        if not near.isdisjoint(topology.nearest(node, topology.nodes_with_cpus)):
            homes.add(node)
    memory = frozenset(node for node in homes if node is not None)
    of_host = {*topology.nodes_with_cpus, *plain} - topology.gpu_memory_nodes
    others = frozenset(node for node in of_host if node is not None) - memory
    return Vicinity(
        tuple(gpus),
        nodes,
        cpus=frozenset().union(*map(topology.cpus_of_node, nodes)),
        memory=memory,
        far_memory=others if nodes else frozenset(),
        with_vendor=topology.has_several_vendors,
    )


def locality(near: Vicinity, cpus: CpuSet) -> str:
    """Return where online CPUs are, seen from the GPUs: one of LOCALITIES."""
    if not near.nodes:
        return UNKNOWN
    if cpus <= near.cpus:
        return LOCAL
    if cpus.isdisjoint(near.cpus):
        return REMOTE
    return MIXED


def placement(topology: Topology, near: Vicinity, mask: CpuSet) -> str:
    """Return where a process with a mask may run, by the mask's online CPUs: one of PLACEMENTS."""
    where = locality(near, mask & topology.online)
    if where == MIXED and mask >= topology.online:
        return UNPINNED
    return where


def cause_of(
    placements: Mapping[CpuSet, str],
    near: CpuSet,
    cpuset: CpuSet | None,
    widened: CpuSet | None = None,
) -> str | None:
    """Return why masks are far, one of CAUSES; None: no mask is far.

    The process may use `cpuset`. `widened` are the CPUs, near and far, that the process has because
    it asked for more than are near; None: unknown, or it asked for no more.
    """
    far = [mask for mask, place in placements.items() if place in FAR_PLACEMENTS]
    if not far:
        return None
    if cpuset is not None and cpuset.isdisjoint(near):
        return ALLOCATION
    if widened is not None and all(mask <= widened for mask in far):
        return ALLOCATION
    if UNPINNED in placements.values():
        return UNPINNED
    return MASK
