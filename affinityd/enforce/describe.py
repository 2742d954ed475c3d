"""Turns the result of enforcement into the document that its reader may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from affinityd.audit.describe import Sees, beside, everything, rfc3339, seen
from affinityd.audit.facts.holding import GpuKey
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.document import (
    BY_PIN,
    OK,
    UNKNOWN,
    EnforceDocument,
    EnforceGpuDocument,
    EnforceJobDocument,
    EnforceProcessDocument,
    PolicyDocument,
    SummaryDocument,
    VerdictsDocument,
)
from affinityd.enforce.enforcer import Enforced
from affinityd.enforce.model import (
    ALLOCATION,
    CAUSES,
    DRIFTED,
    FITS,
    LEFT,
    REASONS,
    WAITING,
    YOUNG,
    Decision,
)
from affinityd.enforce.policy.model import PolicyState
from affinityd.grouping import grouped
from affinityd.json_codec import dumps
from affinityd.topology.model import Gpu

NOT_YOURS = "the file has an error; only root and --admin-group see which"


def document(enforced: Enforced, sees: Sees | None) -> EnforceDocument:
    """Return the document for a reader that sees these processes; None: only counts."""
    return EnforceDocument(
        node=enforced.topology.name,
        time=rfc3339(enforced.scan.time),
        sees=seen(sees),
        enforce=enforced.wanted,
        does=enforced.does,
        hindrance=enforced.hindrance,
        notices=enforced.notices,
        policy=_policy(enforced.policy, sees),
        summary=summary(enforced),
        totals=enforced.totals,
        unreached=enforced.unreached,
        seconds=enforced.seconds,
        jobs=None if sees is None else list(_jobs(enforced, sees)),
    )


def render(enforced: Enforced, sees: Sees | None) -> bytes:
    """Return the document as JSON, in one line."""
    return dumps(document(enforced, sees)).encode()


def summary(enforced: Enforced) -> SummaryDocument:
    """Return the counts: GPUs with a mismatch by remedy, and all processes."""
    decisions, unknown = enforced.decisions, enforced.scan.unknown
    far = grouped(
        (it for it in decisions if it.process.is_mismatch), lambda it: it.process.facts.gpu
    )
    fates = {gpu: _fate(its) for gpu, its in far.items()}
    counted = Counter(fates.values())
    verdicts = Counter(
        (it.verdict, it.cause if it.verdict == DRIFTED else it.reason) for it in decisions
    )
    return SummaryDocument(
        gpus_mismatched=len(far),
        gpus_pinning_would_mend=counted[BY_PIN],
        gpus_need_allocation=counted[ALLOCATION],
        gpus_left=counted[LEFT],
        gpus_unknown=len(unknown),
        gpus=[_gpu(gpu, fates, unknown) for gpu in enforced.topology.gpus],
        processes=VerdictsDocument(
            verdicts[FITS, None],
            {cause: verdicts[DRIFTED, cause] for cause in CAUSES},
            {reason: verdicts[LEFT, reason] for reason in REASONS},
        ),
    )


def _gpu(
    gpu: Gpu, fates: Mapping[GpuKey, str], unknown: Mapping[GpuKey, str]
) -> EnforceGpuDocument:
    return EnforceGpuDocument(
        vendor=gpu.vendor,
        gpu=gpu.index,
        pci_bus_id=gpu.pci_bus_id,
        uuid=gpu.uuid,
        fate=UNKNOWN if gpu.key in unknown else fates.get(gpu.key, OK),
        why=unknown.get(gpu.key),
    )


def _fate(mismatches: Sequence[Decision]) -> str:
    """Return the fate of a GPU, by its processes that may run far from it."""
    if any(it.reason == ALLOCATION for it in mismatches):
        return ALLOCATION
    if all(it.verdict == DRIFTED or it.reason in {YOUNG, WAITING} for it in mismatches):
        return BY_PIN
    return LEFT


def _policy(state: PolicyState, sees: Sees | None) -> PolicyDocument:
    """Return the policy's state; the file's content is for readers that see all processes."""
    is_secret = state.error is not None and sees is not everything
    error = NOT_YOURS if is_secret else state.error
    read = None if state.read is None else rfc3339(state.read)
    return PolicyDocument(state.file, read, state.rules, error)


def _jobs(enforced: Enforced, sees: Sees) -> Iterator[EnforceJobDocument]:
    """Yield the jobs that have a visible process, and these processes."""
    seen_ones = (it for it in enforced.decisions if sees(it.process))
    cpulist = cache(format_list)  # there are many processes and few masks
    for job, decisions in grouped(seen_ones, lambda it: it.job).items():
        yield EnforceJobDocument(
            scheduler=None if job is None else job.scheduler,
            id=None if job is None else job.id,
            pod=next((it.pod for it in decisions if it.pod is not None), None),
            processes=[_process(it, enforced, cpulist) for it in decisions],
        )


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
        gpus_beside=beside(facts.beside),
        placement=decision.process.placement,
        verdict=decision.verdict,
        cause=decision.cause,
        reason=decision.reason,
        why=decision.why,
        observed=decision.is_observed,
        masks=cpulist(frozenset[int]().union(*(thread.mask for thread in facts.threads))),
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
