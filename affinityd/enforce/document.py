"""A report as a JSON document: what `GET /enforce` answers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from affinityd.audit.document import Lists, Sees, everything, rfc3339
from affinityd.audit.model import GpuKey, Job
from affinityd.enforce.enforcer import OUTCOMES, Enforced
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
    PolicyState,
)

#: What becomes of a GPU with a process that may run far from it.
WOULD_MEND = "gpus_pinning_would_mend"
NEED_ALLOCATION = "gpus_need_allocation"
ARE_LEFT = "gpus_left"


def document(enforced: Enforced, sees: Sees | None) -> dict[str, Any]:
    """Return the document for somebody who sees these processes; None: counts alone."""
    report = enforced.report
    head = {
        "node": enforced.topology.name,
        "time": rfc3339(report.time),
        "sees": "counts" if sees is None else "all" if sees is everything else "own",
        "enforce": report.wanted,
        "does": report.does,
        "hindrance": report.hindrance,
        "policy": _policy(report.policy),
        "summary": summary(report.decisions),
        "totals": {**asdict(report.totals), "pins": _each(OUTCOMES, report.totals.pins)},
        "unreached": report.unreached,
        "seconds": report.seconds,
    }
    return head if sees is None else {**head, "jobs": list(_jobs(enforced, sees))}


def render(enforced: Enforced, sees: Sees | None) -> bytes:
    """Return the document as JSON, in one line.

    Piece by piece: to write all at once would hold the interpreter, and plans are to be made.
    """
    return "".join(json.JSONEncoder().iterencode(document(enforced, sees))).encode()


def summary(decisions: Iterable[Decision]) -> dict[str, Any]:
    """Return what is counted: GPUs with a mismatch by what would mend it, and all processes."""
    mismatched: defaultdict[GpuKey, list[Decision]] = defaultdict(list)
    drifted, left, fits = Counter[str](), Counter[str](), 0
    for decision in decisions:
        fits += decision.verdict == FITS
        drifted.update([decision.cause or ""] if decision.verdict == DRIFTED else ())
        left.update([decision.reason or ""] if decision.verdict == LEFT else ())
        if decision.process.is_mismatch:
            mismatched[decision.process.facts.gpu].append(decision)
    fates = Counter(map(_fate, mismatched.values()))
    return {
        "gpus_mismatched": len(mismatched),
        **{fate: fates[fate] for fate in (WOULD_MEND, NEED_ALLOCATION, ARE_LEFT)},
        "processes": {
            FITS: fits,
            DRIFTED: _each(CAUSES, drifted),
            LEFT: _each(REASONS, left),
        },
    }


def _fate(mismatches: Sequence[Decision]) -> str:
    """Return what becomes of a GPU, by its processes that may run far from it."""
    if any(it.reason == ALLOCATION for it in mismatches):
        return NEED_ALLOCATION
    if all(it.verdict == DRIFTED or it.reason in {YOUNG, WAITING} for it in mismatches):
        return WOULD_MEND
    return ARE_LEFT


def _each(names: Iterable[str], counted: Mapping[str, int]) -> dict[str, int]:
    return {name: counted.get(name, 0) for name in names}


def _policy(state: PolicyState) -> dict[str, Any]:
    return {**asdict(state), "read": _moment(state.read)}


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)


def _jobs(enforced: Enforced, sees: Sees) -> Iterator[dict[str, Any]]:
    """Yield the jobs that have a process which is seen, and those processes."""
    seen: defaultdict[Job | None, list[Decision]] = defaultdict(list)
    for decision in enforced.report.decisions:
        if sees(decision.process):
            seen[decision.job].append(decision)
    lists = Lists()
    for job, decisions in seen.items():
        yield {
            "scheduler": job and job.scheduler,
            "id": job and job.id,
            "processes": [_process(it, enforced, lists) for it in decisions],
        }


def _process(decision: Decision, enforced: Enforced, lists: Lists) -> dict[str, Any]:
    facts, standard, treatment = decision.process.facts, decision.standard, decision.treatment
    record = enforced.records[facts.pid]
    vendor, index = facts.gpu
    return {
        "pid": facts.pid,
        "name": facts.name,
        "uid": facts.uid,
        "vendor": vendor,
        "gpu": index,
        "gpus_beside": [{"vendor": vendor, "gpu": index} for vendor, index in facts.beside],
        "placement": decision.process.placement,
        "verdict": decision.verdict,
        "cause": decision.cause,
        "reason": decision.reason,
        "why": decision.why or REASONS.get(decision.reason or ""),
        "cpulist": standard and lists[standard.cpus],
        "cpuset": None if facts.cpuset is None else lists[facts.cpuset],
        "mode": treatment and treatment.mode,
        "share": treatment and treatment.share,
        "scope": treatment and treatment.scope,
        "rule": treatment and treatment.rule,
        "threads_drifted": decision.drifted,
        "threads_on_purpose": decision.on_purpose,
        "pins": record.pins,
        "resets": record.resets,
        "last_pin": _moment(enforced.since_epoch(record.last_pin)),
    }
