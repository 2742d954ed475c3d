"""The formats of a plan: a JSON document, or lines for shells and tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from affinityd.config.switch import ON, VARIABLE
from affinityd.cpuset import CpuSet, format_list, format_mask
from affinityd.json_codec import dumps
from affinityd.planner import LOCALITIES
from affinityd.planner.model import Plan, PlanWarning, RankPlan
from affinityd.request.document import (
    AllowedCpus,
    PlanDocument,
    PlannedGpu,
    PlannedNic,
    PlannedRank,
    UnderstoodRequest,
    WarningDocument,
)
from affinityd.request.nic_variables import UNASKED, VARIABLES, VLLM_SELECTION, value
from affinityd.request.parameters import Request
from affinityd.topology.rdma import NearNic, verbs_ports


@dataclass(frozen=True)
class Reply:
    """A plan with all that its document says about it."""

    node: str
    generation: int
    request: Request
    entries: tuple[str, ...]  #: each rank's GPU, as the request names it, or would have
    asked_ranks: frozenset[int]  #: the requested ranks
    allowed: CpuSet
    source: str  #: of the allowed CPUs: "request", "caller" or "node"
    within: CpuSet | None  #: the caller's cpuset, which bounds them; None: it is not known
    plan: Plan
    nics: Mapping[int, tuple[NearNic, ...]]  #: of each rank, best first
    switch: str = ON  #: of the node and of the caller, together

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """The requested ranks."""
        return tuple(rank for rank in self.plan.ranks if rank.rank in self.asked_ranks)

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """The warnings that concern them."""
        concerned = {None, *self.asked_ranks}
        return tuple(warning for warning in self.plan.warnings if warning.rank in concerned)

    @property
    def rdma_ports(self) -> tuple[str, ...]:
        """The ranks' ports as libraries of verbs name them."""
        return verbs_ports(it for rank in self.ranks for it in self.nics[rank.rank])

    @property
    def cpus(self) -> CpuSet:
        """The union over the ranks."""
        return frozenset().union(*(rank.cpus for rank in self.ranks))

    @property
    def locality(self) -> str:
        """The worst of any rank."""
        return max((rank.locality for rank in self.ranks), key=LOCALITIES.index)


def document(reply: Reply) -> PlanDocument:
    """Return a plan as its JSON document has it."""
    request = reply.request
    is_of_node = request.whose == "node"
    options = {**vars(request.options), "share": reply.plan.share}
    return PlanDocument(
        node=reply.node,
        generation=reply.generation,
        request=UnderstoodRequest(
            gpus=reply.entries, **options, visible=request.visible, granted=request.granted
        ),
        allowed=AllowedCpus(
            format_list(reply.allowed),
            reply.source,
            within=None if reply.within is None else format_list(reply.within),
        ),
        cpulist=format_list(reply.cpus),
        ranks=[_rank(rank, reply.nics[rank.rank], with_names=is_of_node) for rank in reply.ranks],
        warnings=[WarningDocument(warn.code, warn.message) for warn in reply.warnings],
        switch=reply.switch if is_of_node else None,
    )


def _rank(rank: RankPlan, nics: Iterable[NearNic], *, with_names: bool) -> PlannedRank:
    gpu, names = rank.gpu, [*_names(rank)] if with_names else None
    return PlannedRank(
        rank=rank.rank,
        gpu=PlannedGpu(gpu.index, gpu.uuid, gpu.pci_bus_id, gpu.vendor, gpu.model, names),
        numa_node=gpu.numa_node,
        home_node=rank.home_node,
        locality=rank.locality,
        cpulist=format_list(rank.cpus),
        physical_cores=rank.physical_cores,
        memory_node=rank.memory_node,
        nics=[_nic(it) for it in nics],
        environment={"OMP_NUM_THREADS": str(rank.threads)},
        reasons=rank.reasons,
    )


def _nic(near: NearNic) -> PlannedNic:
    nic, port = near.nic, near.port
    return PlannedNic(
        name=port.device,
        port=port.number,
        pci_bus_id=nic.pci_bus_id,
        link=near.link,
        gbps=port.gbps,
        link_layer=port.link_layer,
        netdev=port.netdev,
        numa_node=nic.numa_node,
    )


def _json(reply: Reply) -> Iterator[str]:
    yield dumps(document(reply), ensure_ascii=False)


def _shell(reply: Reply) -> Iterator[str]:
    """Yield NAME=value lines; no value has a character that a shell or TaskProlog would change."""
    memory = {rank.memory_node for rank in reply.ranks if rank.memory_node is not None}
    homes = {rank.home_node for rank in reply.ranks if rank.home_node is not None}
    if reply.switch != ON:
        yield f"{VARIABLE}={reply.switch}"
    yield f"AFFINITYD_CPULIST={format_list(reply.cpus)}"
    yield f"AFFINITYD_LOCALITY={reply.locality}"
    yield f"AFFINITYD_ALLOWED={format_list(reply.allowed)}"
    if reply.request.job is not None:
        yield f"AFFINITYD_JOB_GPUS={','.join(reply.request.job)}"
    yield f"AFFINITYD_GPUS={format_list(rank.gpu.index for rank in reply.ranks)}"
    yield f"AFFINITYD_NODES={format_list(homes)}"
    yield f"AFFINITYD_MEMORY_NODES={format_list(memory)}"
    yield f"AFFINITYD_THREADS={sum(rank.threads for rank in reply.ranks)}"
    yield f"AFFINITYD_RDMA={','.join(reply.rdma_ports)}"
    yield f"AFFINITYD_WARNINGS={','.join(sorted({warning.code for warning in reply.warnings}))}"
    for rank in reply.ranks:
        yield f"AFFINITYD_RANK_{rank.rank}_CPULIST={format_list(rank.cpus)}"
        yield f"AFFINITYD_RANK_{rank.rank}_LOCALITY={rank.locality}"


def _lines(reply: Reply) -> Iterator[str]:
    """Yield for each rank its GPU's index, locality, cpulist and the names that containers use."""
    for rank in reply.ranks:
        yield " ".join([str(rank.gpu.index), rank.locality, format_list(rank.cpus), *_names(rank)])


def _nics(reply: Reply) -> Iterator[str]:
    """Yield the variables that give libraries the ranks' RDMA devices."""
    if ports := reply.rdma_ports:
        yield from (f"{VARIABLES[it]}={value(it, ports)}" for it in UNASKED)


def _vllm(reply: Reply) -> Iterator[str]:
    """Yield the variables by which vLLM gives each worker the best NIC of its GPU.

    vLLM does not start with one of them alone, nor with a GPU without a NIC of verbs.
    """
    best = {
        rank.gpu.pci_bus_id: [*filter(_has_port_1, reply.nics[rank.rank])] for rank in reply.ranks
    }
    if all(best.values()):
        pairs = (f"{gpu}={first.nic.pci_bus_id}" for gpu, (first, *_) in best.items())
        yield f"VLLM_GPU_NIC_PCIE_MAPPING={','.join(pairs)}"
        yield f"VLLM_NIC_SELECTION_VARS={VLLM_SELECTION}"


def _has_port_1(near: NearNic) -> bool:
    """Whether vLLM could name a port: it appends one number to all of its devices."""
    return near.port.number == 1 and near.port.has_verbs


def _names(rank: RankPlan) -> Iterator[str]:
    gpu = rank.gpu
    if gpu.minor is not None:
        yield f"minor:{gpu.minor}"
    if gpu.render_minor is not None:
        yield f"drm:{gpu.render_minor}"
    if gpu.uuid is not None:
        yield gpu.uuid
    yield gpu.pci_bus_id
    yield from (instance.uuid for instance in gpu.mig)


def _each(write: Callable[[CpuSet], str]) -> Callable[[Reply], Iterator[str]]:
    return lambda reply: (write(rank.cpus) for rank in reply.ranks)


_WRITERS: dict[str, Callable[[Reply], Iterator[str]]] = {
    "json": _json,
    "cpulist": _each(format_list),
    "mask": _each(format_mask),
    "numactl": _each(lambda cpus: f"--physcpubind={format_list(cpus)} --localalloc"),
    "shell": _shell,
    "lines": _lines,
    "nics": _nics,
    "vllm": _vllm,
}


def render(reply: Reply, format_name: str) -> str:
    """Return a plan in one of the request's formats, ended by a newline."""
    return "".join(f"{line}\n" for line in _WRITERS[format_name](reply))
