"""The document of `GET /audit` and `affinityd audit --json`: a scan, as its caller may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from affinityd.audit.facts.job import KUBERNETES, SLURM
from affinityd.json_codec import CpuList, OneOf, left_out
from affinityd.topology.nearness import CAUSES, PLACEMENTS

Placement = Annotated[str, OneOf(PLACEMENTS)]
Cause = Annotated[str, OneOf(CAUSES)]
#: Which processes a document names: all, the caller's own, or none.
Seen = Annotated[str, OneOf(("all", "own", "counts"))]


@dataclass(frozen=True)
class AuditGpuDocument:
    """One GPU's processes, counted, and their CPU time since the daemon's first scan.

    Null where they are not known: a zero would be a finding.
    """

    vendor: str
    index: int
    uuid: str | None
    pci_bus_id: str
    numa_node: int | None
    near: CpuList | None
    audited: bool
    unknown: str | None  #: why its processes are not known
    processes: Mapping[Placement, int] | None
    threads: Mapping[Placement, int] | None
    mismatch: Mapping[Cause, int] | None  #: processes
    orphans: int | None
    cpu_seconds: float | None
    remote_cpu_seconds: float | None
    #: NUMA node of CPUs → near's host-to-device bandwidth over that node's; None: not measured
    measured_ratio: Mapping[int, float] | None = left_out()


@dataclass(frozen=True)
class AuditJobDocument:
    """The job or pod of a process."""

    scheduler: Annotated[str, OneOf((SLURM, KUBERNETES))]
    id: str
    step: str | None


@dataclass(frozen=True)
class AuditPodDocument:
    """The container of a process, by kubelet, and the CPUs that it has for itself."""

    namespace: str
    name: str
    container: str
    exclusive_cpus: CpuList  #: empty: it has the shared ones


@dataclass  # frozen would take twice as long to make, and there are thousands
class AuditThreadDocument:
    """Where one thread may run."""

    tid: int
    name: str
    cpulist: CpuList
    last_cpu: int
    placement: Placement
    pinned_itself: bool


@dataclass(frozen=True)
class GpuBesideDocument:
    """Another GPU that a process uses as much."""

    vendor: str
    gpu: int


@dataclass(frozen=True)
class AuditProcessDocument:
    """A process that uses a GPU, or a descendant of one."""

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
    threads: Sequence[AuditThreadDocument]


@dataclass(frozen=True)
class AuditOverlapDocument:
    """CPUs in the unique pins of the same jobs."""

    cpulist: CpuList
    owners: Sequence[str]


@dataclass(frozen=True)
class AuditDocument:
    """The answer to `GET /audit`.

    A caller that sees only counts gets no `processes`, and only one that sees all gets
    `pin_overlaps`.
    """

    node: str
    time: str
    seconds: float
    sees: Seen
    gpus: Sequence[AuditGpuDocument]
    pin_overlap: CpuList
    skipped: int
    numa_balancing: int | None
    notices: Sequence[str]
    pin_overlaps: Sequence[AuditOverlapDocument] | None = left_out()
    processes: Sequence[AuditProcessDocument] | None = left_out()
