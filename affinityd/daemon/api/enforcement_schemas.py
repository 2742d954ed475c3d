"""The shape of the answer to `GET /enforce`, for the OpenAPI document and the tests."""

from __future__ import annotations

from typing import Literal

from affinityd.daemon.api.schemas import AuditedBeside, Placement, Wire

Cause = Literal["mask", "unpinned", "share"]
Fate = Literal["ok", "pin", "allocation", "left", "unknown"]
Reason = Literal[
    "no_policy",
    "no_job",
    "daemon",
    "orphan",
    "policy",
    "opted_out",
    "unknown_place",
    "unknown_cpuset",
    "allocation",
    "no_plan",
    "on_purpose",
    "young",
    "waiting",
    "given_up",
]


class EnforcedPolicy(Wire):
    """Which policy counts; null where no file is named, and none is where one is looked for."""

    file: str | None
    read: str | None
    rules: int
    error: str | None


class EnforcedProcesses(Wire):
    """All processes that use GPUs, and their descendants, by what becomes of them."""

    fits: int
    drifted: dict[Cause, int]
    left: dict[Reason, int]


class EnforcedGpu(Wire):
    """What becomes of a GPU, by those of its processes that may run far from it."""

    vendor: str
    gpu: int
    pci_bus_id: str
    uuid: str | None
    fate: Fate
    why: str | None


class EnforceSummary(Wire):
    """What everybody runs, counted: of the GPUs, those with a mismatch by what would mend it."""

    gpus_mismatched: int
    gpus_pinning_would_mend: int
    gpus_need_allocation: int
    gpus_left: int
    gpus_unknown: int
    gpus: list[EnforcedGpu]
    processes: EnforcedProcesses


class EnforceTotals(Wire):
    """What was done since the daemon's start."""

    pins: dict[Literal["pinned", "cut", "refused", "unsettled"], int]
    threads: int
    resets: int
    migrations: dict[str, int]


class EnforcedProcess(Wire):
    """What is to become of one process."""

    pid: int
    name: str
    uid: int | None
    vendor: str
    gpu: int
    gpus_beside: list[AuditedBeside]
    placement: Placement
    verdict: Literal["fits", "drifted", "left"]
    cause: Cause | Literal["allocation"] | None
    reason: Reason | None
    why: str | None
    observed: bool
    masks: str
    cpulist: str | None
    cpuset: str | None
    mode: str | None
    share: str | None
    scope: str | None
    rule: int | None
    threads_drifted: int
    threads_on_purpose: int
    pins: int
    resets: int
    last_pin: str | None


class EnforcedJob(Wire):
    """A job's processes; those of no job have one that is called nothing."""

    scheduler: str | None
    id: str | None
    pod: str | None
    processes: list[EnforcedProcess]


class EnforceAnswer(Wire):
    """The answer to `GET /enforce`; without `jobs` where the caller sees counts alone."""

    node: str
    time: str
    sees: Literal["all", "own", "counts"]
    enforce: Literal["observe", "pin"]
    does: Literal["observe", "pin"]
    hindrance: str | None
    notices: list[str]
    policy: EnforcedPolicy
    summary: EnforceSummary
    totals: EnforceTotals
    unreached: int
    seconds: float
    jobs: list[EnforcedJob] | None = None
