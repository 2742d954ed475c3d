"""The documents of `GET /audit` and `affinityd audit --json`: a whole scan, or only its counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from affinityd.audit import findings
from affinityd.audit.findings import Finding
from affinityd.audit.memory import MEMORY_LOCALITIES, HostMemory
from affinityd.audit.memory import REMEDIES as MEMORY_REMEDIES
from affinityd.audit.model import KUBERNETES, SLURM, AuditedProcess, CpuTime, Scan
from affinityd.audit.remedies import Remedies
from affinityd.audit.waits import WAIT_CAUSES, Waits, remedy
from affinityd.cpuset import format_list
from affinityd.discovery.nvml import NO_LOAD, NvmlLoad
from affinityd.json_codec import CpuList, OneOf, left_out, rfc3339
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import CAUSES, PLACEMENTS

Placement = Annotated[str, OneOf(PLACEMENTS)]
Cause = Annotated[str, OneOf(CAUSES)]
WaitCause = Annotated[str, OneOf(WAIT_CAUSES)]
MemoryLocality = Annotated[str, OneOf(MEMORY_LOCALITIES)]
MemoryCause = Annotated[str, OneOf((*MEMORY_REMEDIES,))]
ALL, COUNTS = "all", "counts"  #: a document names all processes, or none
Seen = Annotated[str, OneOf((ALL, COUNTS))]
_cpulist = lru_cache(1024)(format_list)  # masks are few, processes are many


@dataclass(frozen=True)
class AuditGpuDocument:
    """Counts of one GPU's processes, and their CPU time since the first scan; null: not known."""

    vendor: str
    index: int
    uuid: str | None
    pci_bus_id: str
    numa_node: int | None
    near: CpuList | None
    audited: bool
    unknown: str | None  #: why the GPU's processes are not known
    processes: Mapping[Placement, int] | None
    mismatch: Mapping[Cause, int] | None  #: processes, by cause
    orphans: int | None
    waiting: Mapping[WaitCause, int] | None  #: processes that wait long for CPUs, by cause
    far_memory: Mapping[MemoryCause, int] | None  #: processes with much far host memory, by cause
    cpu_seconds: float | None
    remote_cpu_seconds: float | None
    wait_seconds: float | None  #: of threads that were runnable, and did not run
    throttled_seconds: float | None  #: of the processes' cgroups, each counted once
    host_memory_bytes: Mapping[MemoryLocality, int] | None  #: of the processes, by a sample
    host_memory_pinned_far_bytes: int | None  #: the part that is far, and probably pinned
    load: NvmlLoad = NO_LOAD
    last_hour: CpuTime | None = None  #: the four times above, in the last hour
    state: findings.State = findings.IDLE
    history: str = ""  #: a letter for the worst state in each of the last sixty minutes


@dataclass(frozen=True)
class AuditJobDocument:
    """The job or pod of a process."""

    scheduler: Annotated[str, OneOf((SLURM, KUBERNETES))]
    id: str
    step: str | None


@dataclass(frozen=True)
class AuditPodDocument:
    """The container of a process, as kubelet names it, and the container's exclusive CPUs."""

    namespace: str
    name: str
    container: str
    exclusive_cpus: CpuList  #: empty: it uses the shared pool


@dataclass(frozen=True)
class GpuBesideDocument:
    """Another GPU of a process, besides its first one."""

    vendor: str
    gpu: int


@dataclass(frozen=True)
class AuditWaitsDocument:
    """How long threads waited for a CPU since the last scan, in seconds, summed over threads."""

    seconds: float  #: between the scans
    waited: float | None  #: null: not measurable, as threads started and ended in between
    throttled: float  #: of the process's cgroup, summed over CPUs
    cause: WaitCause | None  #: the fact that explains the wait; null: no fact, or a short wait
    remedy: str | None


@dataclass(frozen=True)
class AuditMemoryDocument:
    """Where the host memory of a process lies, in bytes, estimated from a sample of its pages."""

    placed_bytes: Mapping[MemoryLocality, int]
    gpu_bytes: int  #: bytes on nodes without CPUs, such as GPU memory of Grace
    far_nodes: Sequence[int]
    pinned: Sequence[str]  #: why some of the memory is probably pinned
    cause: MemoryCause | None
    remedy: str | None


@dataclass(frozen=True)
class AuditProcessDocument:
    """A process that uses a GPU, or a descendant of such a process."""

    pid: int
    name: str
    uid: int | None
    parent: int
    state: str
    vendor: str
    gpu: int
    gpus_beside: Sequence[GpuBesideDocument]
    holds_gpu: bool
    gpu_memory_bytes: int | None
    mig: str | None
    job: AuditJobDocument | None
    container: str | None
    pod: AuditPodDocument | None
    cpuset: CpuList | None
    placement: Placement
    cause: Cause | None
    remedy: str | None
    daemon: bool
    orphan: str | None
    waits: AuditWaitsDocument | None = None  #: null: not known
    host_memory: AuditMemoryDocument | None = None  #: null: not known, or the process holds no GPU
    user: str | None = None  #: user's name; null: not known
    masks: CpuList = ""  #: CPUs on which its threads may run
    ran_on: CpuList = ""  #: CPUs on which its threads ran last


@dataclass(frozen=True)
class AuditOverlapDocument:
    """CPUs that each of these jobs has pinned for its exclusive use."""

    cpulist: CpuList
    owners: Sequence[str]


@dataclass(frozen=True)
class AuditDocument:
    """The answer to `GET /audit`; an answer of counts has no `processes` and `pin_overlaps`."""

    node: str
    time: str
    seconds: float
    sees: Seen
    gpus: Sequence[AuditGpuDocument]
    pin_overlap: CpuList
    skipped: int
    numa_balancing: int | None
    notices: Sequence[str]
    findings: Sequence[Finding] = ()  #: the worst first
    demo: str | None = None  #: name of the machine if its processes are made up
    pin_overlaps: Sequence[AuditOverlapDocument] | None = left_out()
    processes: Sequence[AuditProcessDocument] | None = left_out()


def document(topology: Topology, scan: Scan, *, names_all: bool) -> AuditDocument:
    """Return the document of a scan; without `names_all` the document has only counts."""
    remedies = Remedies(topology, scan)
    states = findings.states(scan)
    by_gpu = defaultdict(list)
    for process in scan.processes:
        for key in () if process.is_daemon else process.facts.gpus:
            by_gpu[key].append(process)
    overlaps = scan.overlap.items()
    return AuditDocument(
        node=topology.name,
        time=rfc3339(scan.time),
        seconds=scan.seconds,
        sees=ALL if names_all else COUNTS,
        gpus=[
            _gpu(gpu, scan, by_gpu[gpu.key], states[gpu.key])
            for gpu in topology.gpus
            if gpu.key in scan.near
        ],
        pin_overlap=format_list(frozenset().union(*scan.overlap.values())),
        skipped=scan.skipped,
        numa_balancing=scan.numa_balancing,
        notices=scan.notices,
        findings=[*findings.findings(topology, scan, remedies if names_all else None)],
        demo=scan.demo,
        pin_overlaps=(
            [AuditOverlapDocument(_cpulist(cpus), owners) for owners, cpus in overlaps]
            if names_all
            else None
        ),
        processes=(
            [_process(process, scan, remedies) for process in scan.processes] if names_all else None
        ),
    )


def _gpu(gpu: Gpu, scan: Scan, processes: Sequence[AuditedProcess], state: str) -> AuditGpuDocument:
    """Return a GPU's counts. A process of several GPUs counts for each; its memory counts once."""
    near, time = scan.near[gpu.key], scan.gpu_time.get(gpu.key, CpuTime())
    is_known = gpu.key not in scan.unknown
    was_seen = is_known or time.total > 0
    pids = (process.facts.pid for process in processes if process.facts.gpu == gpu.key)
    memory = [scan.memory[pid] for pid in pids if pid in scan.memory]
    waiting = [process.facts.pid for process in processes if findings.waits_long(process, scan)]
    known: dict[str, Any] = {
        "processes": _counted(PLACEMENTS, (process.placement for process in processes)),
        "mismatch": _counted(CAUSES, (process.cause for process in processes)),
        "orphans": sum(process.orphan is not None for process in processes),
        "waiting": _counted(WAIT_CAUSES, (scan.waits[pid].cause for pid in waiting)),
        "far_memory": _counted(MEMORY_REMEDIES, (one.cause for one in memory if one.is_notable())),
        "host_memory_bytes": {
            word: sum(one.placed[word] for one in memory) for word in MEMORY_LOCALITIES
        },
        "host_memory_pinned_far_bytes": sum(one.pinned_far for one in memory),
    }
    return AuditGpuDocument(
        vendor=gpu.vendor,
        index=gpu.index,
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        near=None if near is None else format_list(near),
        audited=is_known,
        unknown=scan.unknown.get(gpu.key),
        cpu_seconds=time.total if was_seen else None,
        remote_cpu_seconds=time.remote if was_seen and near is not None else None,
        wait_seconds=time.waited if was_seen and scan.counts_waits else None,
        throttled_seconds=time.throttled if was_seen and scan.counts_waits else None,
        load=scan.loads.get(gpu.key, NO_LOAD),
        last_hour=scan.last_hour.get(gpu.key) if was_seen else None,
        state=state,
        history=scan.history.get(gpu.key, ""),
        **(known if is_known else dict.fromkeys(known)),
    )


def _counted(words: Iterable[str], found: Iterable[str | None]) -> dict[str, int]:
    numbers = Counter(found)
    return {word: numbers[word] for word in words}


def waits_of(process: AuditedProcess, waits: Mapping[int, Waits]) -> AuditWaitsDocument | None:
    """Return how long a process waited; None: not known."""
    its = waits.get(process.facts.pid)
    if its is None:
        return None
    cure = remedy(its, process.facts.membership.scheduler)
    return AuditWaitsDocument(its.seconds, its.waited, its.throttled, its.cause, cure)


def _host_memory(
    process: AuditedProcess, memory: HostMemory | None, remedies: Remedies
) -> AuditMemoryDocument | None:
    if memory is None:
        return None
    return AuditMemoryDocument(
        placed_bytes=memory.placed,
        gpu_bytes=memory.of_devices,
        far_nodes=sorted(memory.resident.nodes & memory.far),
        pinned=memory.pinned,
        cause=memory.cause,
        remedy=remedies.of_memory(process, memory),
    )


def _process(process: AuditedProcess, scan: Scan, remedies: Remedies) -> AuditProcessDocument:
    facts, given, job = process.facts, process.facts.given, process.facts.membership.job
    holding, (vendor, index) = facts.holding, facts.gpu
    pod = None
    if given is not None:
        cpus = _cpulist(given.cpus)
        pod = AuditPodDocument(given.namespace, given.pod, given.container, exclusive_cpus=cpus)
    return AuditProcessDocument(
        pid=facts.pid,
        name=facts.name,
        uid=facts.uid,
        parent=facts.parent,
        state=facts.state,
        vendor=vendor,
        gpu=index,
        gpus_beside=[GpuBesideDocument(*key) for key in facts.beside],
        holds_gpu=holding is not None,
        gpu_memory_bytes=None if holding is None else holding.memory_bytes,
        mig=None if holding is None else holding.mig,
        job=AuditJobDocument(job.scheduler, job.id, facts.membership.step) if job else None,
        container=facts.membership.container,
        pod=pod,
        cpuset=None if facts.cpuset is None else _cpulist(facts.cpuset),
        placement=process.placement,
        cause=process.cause,
        remedy=remedies.sentence(process),
        daemon=process.is_daemon,
        orphan=process.orphan,
        waits=waits_of(process, scan.waits),
        host_memory=_host_memory(process, scan.memory.get(facts.pid), remedies),
        user=None if facts.uid is None else scan.users.get(facts.uid),
        masks=_cpulist(facts.cpus),
        ran_on=_cpulist(frozenset(thread.last_cpu for thread in facts.threads)),
    )
