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
)
from affinityd.enforce.policy.model import PolicyState
from affinityd.topology.model import Gpu

#: What becomes of a GPU with a process that may run far from it; else ALLOCATION, or LEFT.
BY_PIN = "pin"
OK = "ok"  #: there is none
UNKNOWN = "unknown"  #: nobody knows its processes

NOT_YOURS = "the file as it is now does not count; who sees all processes is told why"


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
        "notices": report.notices,
        "policy": _policy(report.policy, sees),
        "summary": summary(enforced),
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


def summary(enforced: Enforced) -> dict[str, Any]:
    """Return what is counted: GPUs with a mismatch by what would mend it, and all processes."""
    mismatched: defaultdict[GpuKey, list[Decision]] = defaultdict(list)
    drifted, left, fits = Counter[str](), Counter[str](), 0
    for decision in enforced.report.decisions:
        fits += decision.verdict == FITS
        drifted.update([decision.cause or ""] if decision.verdict == DRIFTED else ())
        left.update([decision.reason or ""] if decision.verdict == LEFT else ())
        if decision.process.is_mismatch:
            mismatched[decision.process.facts.gpu].append(decision)
    fates = {gpu: _fate(its) for gpu, its in mismatched.items()}
    counted = Counter(fates.values())
    return {
        "gpus_mismatched": len(mismatched),
        "gpus_pinning_would_mend": counted[BY_PIN],
        "gpus_need_allocation": counted[ALLOCATION],
        "gpus_left": counted[LEFT],
        "gpus_unknown": len(enforced.scan.unknown),
        "gpus": [_gpu(gpu, fates, enforced.scan.unknown) for gpu in enforced.topology.gpus],
        "processes": {
            FITS: fits,
            DRIFTED: _each(CAUSES, drifted),
            LEFT: _each(REASONS, left),
        },
    }


def _gpu(gpu: Gpu, fates: Mapping[GpuKey, str], unknown: Mapping[GpuKey, str]) -> dict[str, Any]:
    return {
        "vendor": gpu.vendor,
        "gpu": gpu.index,
        "pci_bus_id": gpu.pci_bus_id,
        "uuid": gpu.uuid,
        "fate": UNKNOWN if gpu.key in unknown else fates.get(gpu.key, OK),
        "why": unknown.get(gpu.key),
    }


def _fate(mismatches: Sequence[Decision]) -> str:
    """Return what becomes of a GPU, by its processes that may run far from it."""
    if any(it.reason == ALLOCATION for it in mismatches):
        return ALLOCATION
    if all(it.verdict == DRIFTED or it.reason in {YOUNG, WAITING} for it in mismatches):
        return BY_PIN
    return LEFT


def _each(names: Iterable[str], counted: Mapping[str, int]) -> dict[str, int]:
    return {name: counted.get(name, 0) for name in names}


def _policy(state: PolicyState, sees: Sees | None) -> dict[str, Any]:
    """Return what is said of the policy; what is in it, to those who see all processes alone."""
    told = {**asdict(state), "read": _moment(state.read)}
    is_secret = state.error is not None and sees is not everything
    return {**told, "error": NOT_YOURS} if is_secret else told


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
            "pod": next((it.pod for it in decisions if it.pod is not None), None),
            "processes": [_process(it, enforced, lists) for it in decisions],
        }


def _process(decision: Decision, enforced: Enforced, lists: Lists) -> dict[str, Any]:
    facts, target, treatment = decision.process.facts, decision.target, decision.treatment
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
        "why": decision.why,
        "observed": decision.is_observed,
        "masks": lists[frozenset[int]().union(*(thread.mask for thread in facts.threads))],
        "cpulist": target and lists[target.cpus],
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
