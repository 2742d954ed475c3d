"""The document of `GET /enforce`, which `affinityd enforce` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from affinityd.audit.document import GpuBesideDocument, Placement, Seen
from affinityd.audit.facts.holding import GpuKey
from affinityd.config.settings import OBSERVE, PIN
from affinityd.enforce.model import (
    ALLOCATION,
    CAUSES,
    DRIFTED,
    FITS,
    LEFT,
    PIN_OUTCOMES,
    REASONS,
)
from affinityd.json_codec import CpuList, OneOf, left_out

PATH = "/enforce"
MAX_BYTES = 64 * 1024 * 1024  #: a process takes about 700

#: The fate of a GPU: none of its processes runs far away; all that do are helped by a pin; one
#: needs another allocation (ALLOCATION); one is left for another reason (LEFT); it is not known.
OK, BY_PIN, UNKNOWN = "ok", "pin", "unknown"
FATES = (OK, BY_PIN, ALLOCATION, LEFT, UNKNOWN)

Reason = Annotated[str, OneOf(REASONS)]
Action = Annotated[str, OneOf((OBSERVE, PIN))]


@dataclass(frozen=True)
class PolicyDocument:
    """The policy in force; null: no file is named, and none exists at the default path."""

    file: str | None
    read: str | None
    rules: int
    error: str | None


@dataclass(frozen=True)
class EnforceGpuDocument:
    """The fate of a GPU, by its processes that may run far from it."""

    vendor: str
    gpu: int
    pci_bus_id: str
    uuid: str | None
    fate: Annotated[str, OneOf(FATES)]
    why: str | None

    @property
    def key(self) -> GpuKey:
        """Its one name on its machine."""
        return self.vendor, self.gpu


@dataclass(frozen=True)
class VerdictsDocument:
    """All processes that use GPUs, and their descendants, by verdict."""

    fits: int
    drifted: Mapping[Annotated[str, OneOf(CAUSES)], int]
    left: Mapping[Reason, int]


@dataclass(frozen=True)
class SummaryDocument:
    """All users' processes, counted; and the GPUs with a mismatch, by remedy."""

    gpus_mismatched: int
    gpus_pinning_would_mend: int
    gpus_need_allocation: int
    gpus_left: int
    gpus_unknown: int
    gpus: Sequence[EnforceGpuDocument]
    processes: VerdictsDocument


@dataclass(frozen=True)
class TotalsDocument:
    """The totals since the daemon's start."""

    pins: Mapping[Annotated[str, OneOf(PIN_OUTCOMES)], int]
    threads: int
    resets: int


@dataclass(frozen=True)
class EnforceProcessDocument:
    """The verdict on one process."""

    pid: int
    name: str
    uid: int | None
    container: str | None  #: of its pod, where kubelet names it
    vendor: str
    gpu: int
    gpus_beside: Sequence[GpuBesideDocument]
    placement: Placement
    verdict: Annotated[str, OneOf((FITS, DRIFTED, LEFT))]
    cause: Annotated[str, OneOf((*CAUSES, ALLOCATION))] | None
    reason: Reason | None
    why: str | None
    observed: bool
    masks: CpuList  #: where its threads may run now
    cpulist: CpuList | None  #: where they should run
    cpuset: CpuList | None
    mode: str | None
    share: str | None
    scope: str | None
    rule: int | None
    threads_drifted: int
    threads_on_purpose: int
    pins: int
    resets: int
    last_pin: str | None

    @property
    def gpus(self) -> Iterator[GpuKey]:
        """All of its GPUs, that of most memory first."""
        yield self.vendor, self.gpu
        yield from ((it.vendor, it.gpu) for it in self.gpus_beside)


@dataclass(frozen=True)
class EnforceJobDocument:
    """A job's processes; processes in no job are in one without a scheduler and an id."""

    scheduler: str | None
    id: str | None
    pod: str | None  #: NAMESPACE/NAME, where they are known
    processes: Sequence[EnforceProcessDocument]


@dataclass(frozen=True)
class EnforceDocument:
    """The answer to `GET /enforce`; without `jobs` if the caller sees only counts."""

    node: str
    time: str
    sees: Seen
    enforce: Action
    does: Action
    hindrance: str | None
    notices: Sequence[str]
    policy: PolicyDocument
    summary: SummaryDocument
    totals: TotalsDocument
    unreached: int
    seconds: float
    jobs: Sequence[EnforceJobDocument] | None = left_out()

    @property
    def has_mismatch(self) -> bool:
        """Whether a process does not run where it should, or may run far from its GPU."""
        processes = (it for job in self.jobs or () for it in job.processes)
        return (
            any(self.summary.processes.drifted.values())
            or any(gpu.fate in {BY_PIN, ALLOCATION, LEFT} for gpu in self.summary.gpus)
            or any(it.verdict == LEFT and it.cause for it in processes)
        )

    @property
    def knows_nothing(self) -> bool:
        """Whether the processes of no GPU are known."""
        return all(gpu.fate == UNKNOWN for gpu in self.summary.gpus)
