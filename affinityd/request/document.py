"""The document of `GET /plan`: a plan, or a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from affinityd.config import SWITCHES
from affinityd.cpuset import format_list
from affinityd.json_codec import CpuList, OneOf, left_out
from affinityd.planner import WARNINGS, RankPlan
from affinityd.planner.modes import MODES
from affinityd.request.resolve import Reply
from affinityd.topology.model import LINKS
from affinityd.topology.nearness import LOCALITIES


@dataclass(frozen=True)
class PlannedGpu:
    """The GPU that a rank drives, as the node itself numbers it."""

    index: int
    uuid: str | None
    pci_bus_id: str
    vendor: str
    model: str | None
    #: The GPU's names in containers: device files, UUIDs, PCI bus id. Only with whose=node.
    names: Sequence[str] | None = left_out()


@dataclass(frozen=True)
class PlannedNic:
    """A port of an RDMA device that is near a rank's GPU."""

    name: str  #: name of the device: mlx5_2
    port: int
    pci_bus_id: str
    link: Annotated[str, OneOf(LINKS)]  #: link to the GPU, in the words of nvidia-smi topo -m
    gbps: int | None
    link_layer: str | None
    netdev: str | None
    numa_node: int | None


@dataclass(frozen=True)
class PlannedRank:
    """The plan of one rank."""

    rank: int
    gpu: PlannedGpu
    numa_node: int | None  #: of the GPU
    home_node: int | None  #: the NUMA node whose CPUs the rank gets first
    locality: Annotated[str, OneOf(LOCALITIES)]
    cpulist: CpuList
    physical_cores: int
    memory_node: int | None
    #: Best first; empty if the daemon is of an earlier release.
    nics: Sequence[PlannedNic] = field(default=(), kw_only=True)
    environment: Mapping[str, str]
    reasons: Sequence[str]


@dataclass(frozen=True)
class UnderstoodRequest:
    """The request as understood, with every default."""

    gpus: Sequence[str]
    mode: Annotated[str, OneOf(tuple(MODES))]
    scope: str
    multithreading: str
    balanced: bool
    min_physical_cores: int
    max_physical_cores: int | None
    share: Annotated[str, OneOf(("requested", "node"))]
    strict: bool
    cpus: int | None
    visible: str | None
    granted: str | None


@dataclass(frozen=True)
class AllowedCpus:
    """The CPUs that were planned on, their source, and the caller's cpuset, if known."""

    cpulist: CpuList
    source: Annotated[str, OneOf(("request", "caller", "node"))]
    within: CpuList | None


@dataclass(frozen=True)
class WarningDocument:
    """Something to know before the plan is used."""

    code: Annotated[str, OneOf(WARNINGS)]
    message: str


@dataclass(frozen=True)
class PlanDocument:
    """The answer to `GET /plan`."""

    node: str
    generation: int
    request: UnderstoodRequest
    allowed: AllowedCpus
    cpulist: CpuList
    ranks: Sequence[PlannedRank]
    warnings: Sequence[WarningDocument]
    #: The node's AFFINITYD=on|observe|off. Only with whose=node.
    switch: Annotated[str, OneOf(SWITCHES)] | None = left_out()
    replayed: bool | None = left_out()  #: true if the machine is not the daemon's own


@dataclass(frozen=True)
class ProblemDocument:
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str


def document(reply: Reply) -> PlanDocument:
    """Return the JSON document of a plan."""
    request = reply.request
    options = {**vars(request.options), "share": reply.plan.share}
    within = None if reply.within is None else format_list(reply.within)
    return PlanDocument(
        node=reply.node,
        generation=reply.generation,
        request=UnderstoodRequest(
            reply.entries, **options, visible=request.task.visible, granted=request.task.granted
        ),
        allowed=AllowedCpus(format_list(reply.allowed), reply.source, within),
        cpulist=format_list(reply.cpus),
        ranks=[_rank(reply, rank) for rank in reply.ranks],
        warnings=[WarningDocument(warn.code, warn.message) for warn in reply.warnings],
        switch=reply.switch if request.whose == "node" else None,
        replayed=reply.replayed or None,
    )


def _rank(reply: Reply, rank: RankPlan) -> PlannedRank:
    gpu = rank.gpu
    names = gpu.container_names if reply.request.whose == "node" else None
    nics = []
    for nic, port, link in reply.nics[gpu.key]:
        facts = (port.gbps, port.link_layer, port.netdev, nic.numa_node)
        nics.append(PlannedNic(port.device, port.number, nic.pci_bus_id, link, *facts))
    return PlannedRank(
        rank=rank.rank,
        gpu=PlannedGpu(gpu.index, gpu.uuid, gpu.pci_bus_id, gpu.vendor, gpu.model, names),
        numa_node=gpu.numa_node,
        home_node=rank.home_node,
        locality=rank.locality,
        cpulist=format_list(rank.cpus),
        physical_cores=rank.physical_cores,
        memory_node=rank.memory_node,
        nics=nics,
        environment={"OMP_NUM_THREADS": f"{rank.threads}", **reply.visible.get(rank.rank, {})},
        reasons=rank.reasons,
    )
