"""The document of `GET /enforce`, which `affinityd enforce` prints and the metrics are read off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from affinityd.audit.document import (
    GpuBesideDocument,
    Placement,
    Seen,
    Sees,
    everything,
    rfc3339,
    seen,
)
from affinityd.audit.model import Scan
from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.decide import PinRecord
from affinityd.enforce.model import (
    ALLOCATION,
    CAUSES,
    DRIFTED,
    FITS,
    LEFT,
    ON_PURPOSE,
    PIN_OUTCOMES,
    REASONS,
    WAITING,
    YOUNG,
    Decision,
    PinAttempt,
)
from affinityd.enforce.policy import PolicyState
from affinityd.grouping import grouped
from affinityd.json_codec import CpuList, OneOf, dumps, left_out
from affinityd.topology.model import Topology

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
        processes = (process for job in self.jobs or () for process in job.processes)
        return (
            any(self.summary.processes.drifted.values())
            or any(gpu.fate in {BY_PIN, ALLOCATION, LEFT} for gpu in self.summary.gpus)
            or any(process.verdict == LEFT and process.cause for process in processes)
        )

    @property
    def knows_nothing(self) -> bool:
        """Whether the processes of no GPU are known."""
        return all(gpu.fate == UNKNOWN for gpu in self.summary.gpus)


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Enforced:
    """One look at all processes that use GPUs, after a scan, with its inputs."""

    topology: Topology
    scan: Scan
    wanted: str  #: of ENFORCE_VALUES: as it was set
    does: str  #: of ENFORCE_VALUES: its actual mode
    hindrance: str | None  #: why it observes where it was to pin
    policy: PolicyState
    decisions: Sequence[Decision]  #: in the scan's order
    records: Mapping[int, PinRecord]  #: the history of the processes, by pid
    totals: TotalsDocument
    done: Sequence[PinAttempt] = ()
    notices: Sequence[str] = ()  #: its limits, for people
    unreached: int = 0  #: processes that should have been pinned and were not reached in time
    seconds: float = 0.0  #: how long it took, without the scan


NOT_YOURS = "the file has an error; only root and --admin-group see which"


def document(enforced: Enforced, sees: Sees | None) -> EnforceDocument:
    """Return the document for a reader that sees these processes; None: only counts."""
    policy = enforced.policy
    return EnforceDocument(
        node=enforced.topology.name,
        time=rfc3339(enforced.scan.time),
        sees=seen(sees),
        enforce=enforced.wanted,
        does=enforced.does,
        hindrance=enforced.hindrance,
        notices=enforced.notices,
        policy=PolicyDocument(
            policy.file,
            read=None if policy.read is None else rfc3339(policy.read),
            rules=policy.rules,
            error=NOT_YOURS if policy.error and sees is not everything else policy.error,
        ),
        summary=summary(enforced),
        totals=enforced.totals,
        unreached=enforced.unreached,
        seconds=enforced.seconds,
        jobs=None if sees is None else _jobs(enforced, sees),
    )


def render(enforced: Enforced, sees: Sees | None) -> bytes:
    """Return the document as JSON, in one line."""
    return dumps(document(enforced, sees)).encode()


def summary(enforced: Enforced) -> SummaryDocument:
    """Return the counts: GPUs with a mismatch by remedy, and all processes."""
    decisions, unknown = enforced.decisions, enforced.scan.unknown
    far = grouped(
        (decision for decision in decisions if decision.process.is_mismatch),
        lambda decision: decision.process.facts.gpu,
    )
    fates = {gpu: _fate(mismatches) for gpu, mismatches in far.items()}
    counted = Counter(fates.values())
    verdicts = Counter(
        (decision.verdict, decision.cause if decision.verdict == DRIFTED else decision.reason)
        for decision in decisions
    )
    return SummaryDocument(
        gpus_mismatched=len(far),
        gpus_pinning_would_mend=counted[BY_PIN],
        gpus_need_allocation=counted[ALLOCATION],
        gpus_left=counted[LEFT],
        gpus_unknown=len(unknown),
        gpus=[
            EnforceGpuDocument(
                vendor=gpu.vendor,
                gpu=gpu.index,
                pci_bus_id=gpu.pci_bus_id,
                uuid=gpu.uuid,
                fate=UNKNOWN if gpu.key in unknown else fates.get(gpu.key, OK),
                why=unknown.get(gpu.key),
            )
            for gpu in enforced.topology.gpus
        ],
        processes=VerdictsDocument(
            verdicts[FITS, None],
            {cause: verdicts[DRIFTED, cause] for cause in CAUSES},
            {reason: verdicts[LEFT, reason] for reason in REASONS},
        ),
    )


def _fate(mismatches: Sequence[Decision]) -> str:
    if any(decision.reason == ALLOCATION for decision in mismatches):
        return ALLOCATION
    # A pin moves the others of a GPU of which one process was pinned elsewhere on purpose.
    others = [decision for decision in mismatches if decision.reason != ON_PURPOSE] or mismatches
    are_pinned = (it.verdict == DRIFTED or it.reason in {YOUNG, WAITING} for it in others)
    return BY_PIN if all(are_pinned) else LEFT


def _jobs(enforced: Enforced, sees: Sees) -> list[EnforceJobDocument]:
    by_job = grouped((it for it in enforced.decisions if sees(it.process)), lambda it: it.job)
    cpulist = cache(format_list)  # there are many processes and few masks
    return [
        EnforceJobDocument(
            scheduler=None if job is None else job.scheduler,
            id=None if job is None else job.id,
            pod=next((it.pod for it in decisions if it.pod is not None), None),
            processes=[_process(it, enforced, cpulist) for it in decisions],
        )
        for job, decisions in by_job.items()
    ]


def _process(
    decision: Decision, enforced: Enforced, cpulist: Callable[[CpuSet], str]
) -> EnforceProcessDocument:
    facts, target, treatment = decision.process.facts, decision.target, decision.treatment
    record, scan = enforced.records[facts.pid], enforced.scan
    booted = scan.time - scan.boot
    vendor, index = facts.gpu
    return EnforceProcessDocument(
        pid=facts.pid,
        name=facts.name,
        uid=facts.uid,
        container=None if facts.given is None else facts.given.container,
        vendor=vendor,
        gpu=index,
        gpus_beside=[GpuBesideDocument(*key) for key in facts.beside],
        placement=decision.process.placement,
        verdict=decision.verdict,
        cause=decision.cause,
        reason=decision.reason,
        why=decision.why,
        observed=decision.is_observed,
        masks=cpulist(facts.cpus),
        cpulist=None if target is None else cpulist(target.cpus),
        cpuset=None if facts.cpuset is None else cpulist(facts.cpuset),
        mode=None if treatment is None else treatment.options.mode,
        share=None if treatment is None else treatment.options.share,
        scope=None if treatment is None else treatment.options.scope,
        rule=None if treatment is None else treatment.rule,
        threads_drifted=decision.drifted,
        threads_on_purpose=decision.on_purpose,
        pins=record.pins,
        resets=record.resets,
        last_pin=None if record.last_pin is None else rfc3339(booted + record.last_pin),
    )
