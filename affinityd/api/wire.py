"""The answers' shapes, for the OpenAPI document and the tests; the service writes the answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Every field is named; none is added in silence."""

    model_config = ConfigDict(extra="forbid", strict=True)


Locality = Literal["local", "remote", "unknown"]


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
    visible: str | None
    granted: str | None


class Allowed(Wire):
    """The CPUs that were planned on, and who said so."""

    cpulist: str
    source: Literal["request", "caller", "node"]


class PlanWarning(Wire):
    """Something to know before using the plan."""

    code: Literal[
        "remote_home",
        "unknown_locality",
        "share_unavailable",
        "shared_gpu",
        "ambiguous_index",
        "parameter_ignored",
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
