"""The answers' shapes, for the OpenAPI document and the tests; the service writes the answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Every field is named; none is added in silence."""

    model_config = ConfigDict(extra="forbid", strict=True)


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
