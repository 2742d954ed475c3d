"""The answers' shapes, for the OpenAPI document and the tests; the service writes the answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Every field is named; none is added in silence."""

    model_config = ConfigDict(extra="forbid", strict=True)


Locality = Literal["local", "mixed", "remote", "unknown"]


class PlannedGpu(Wire):
    """The GPU that a rank drives, in the node's own numbering."""

    index: int
    uuid: str | None
    pci_bus_id: str
    vendor: str
    model: str | None


class PlannedRank(Wire):
    """One rank's place."""

    rank: int
    gpu: PlannedGpu
    numa_node: int | None
    home_node: int | None
    locality: Locality
    cpulist: str
    physical_cores: int
    memory_node: int | None
    environment: dict[str, str]
    reasons: list[str]


class UnderstoodRequest(Wire):
    """The request as understood, every default filled in."""

    gpus: list[str]
    mode: str
    scope: str
    multithreading: str
    balanced: bool
    min_physical_cores: int
    max_physical_cores: int | None
    share: Literal["requested", "node"]
    strict: bool
    cpus: int | None
    visible: str | None
    granted: str | None


class Allowed(Wire):
    """The CPUs that were planned on, who said so, and the caller's cpuset, where it is known."""

    cpulist: str
    source: Literal["request", "caller", "node"]
    within: str | None


class PlanWarning(Wire):
    """Something to know before using the plan."""

    code: Literal[
        "remote_home",
        "unknown_locality",
        "share_unavailable",
        "shared_gpu",
        "ambiguous_index",
        "parameter_ignored",
        "widened",
        "idle_cpus",
    ]
    message: str


class PlanAnswer(Wire):
    """The answer to `GET /plan`."""

    node: str
    generation: int
    request: UnderstoodRequest
    allowed: Allowed
    cpulist: str
    ranks: list[PlannedRank]
    warnings: list[PlanWarning]


class Problem(Wire):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str


class TopologyAnswer(BaseModel):
    """The node as it was read."""

    generation: int
    topology: dict[str, Any]


Placement = Literal["local", "mixed", "remote", "unpinned", "unknown"]
Cause = Literal["allocation", "mask", "unpinned"]


class AuditedGpu(Wire):
    """One GPU's processes, counted, and their CPU time since the daemon's first scan.

    Null where they are not known.
    """

    vendor: str
    index: int
    uuid: str | None
    pci_bus_id: str
    numa_node: int | None
    near: str | None
    audited: bool
    unknown: str | None
    processes: dict[Placement, int] | None
    threads: dict[Placement, int] | None
    mismatch: dict[Cause, int] | None
    orphans: int | None
    cpu_seconds: float | None
    remote_cpu_seconds: float | None


class AuditedJob(Wire):
    """What a scheduler started a process for."""

    scheduler: Literal["slurm", "kubernetes"]
    id: str
    step: str | None


class AuditedThread(Wire):
    """Where one thread may run."""

    tid: int
    name: str
    cpulist: str
    last_cpu: int
    placement: Placement
    pinned_itself: bool


class AuditedBeside(Wire):
    """Another GPU that a process uses as much."""

    vendor: str
    gpu: int


class AuditedProcess(Wire):
    """A process that uses a GPU, or a descendant of one."""

    pid: int
    name: str
    uid: int | None
    parent: int
    state: str
    vendor: str
    gpu: int
    gpus_beside: list[AuditedBeside]
    holds_gpu: bool
    gpu_memory_bytes: int | None
    mig: str | None
    job: AuditedJob | None
    container: str | None
    cpuset: str | None
    placement: Placement
    cause: Cause | None
    remedy: str | None
    daemon: bool
    orphan: str | None
    threads: list[AuditedThread]


class AuditedOverlap(Wire):
    """CPUs in the unique pins of the same jobs."""

    cpulist: str
    owners: list[str]


class AuditAnswer(Wire):
    """The answer to `GET /audit`.

    Without `processes` where the caller sees counts alone, without `pin_overlaps` where not all.
    """

    node: str
    time: str
    seconds: float
    sees: Literal["all", "own", "counts"]
    gpus: list[AuditedGpu]
    pin_overlap: str
    skipped: int
    numa_balancing: int | None
    notices: list[str]
    pin_overlaps: list[AuditedOverlap] | None = None
    processes: list[AuditedProcess] | None = None
