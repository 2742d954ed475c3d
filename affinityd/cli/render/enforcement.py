"""The daemon's answer at /enforce as a table: the processes in the wrong place, by job, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from affinityd.audit.model import GpuKey
from affinityd.cli.console import aligned
from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import format_list
from affinityd.enforce.document import (
    BY_PIN,
    UNKNOWN,
    EnforceDocument,
    EnforceJobDocument,
    EnforceProcessDocument,
    PolicyDocument,
)
from affinityd.enforce.model import ALLOCATION, DAEMON, DRIFTED, FITS, LEFT, job_name
from affinityd.grouping import grouped
from affinityd.text import count

COLUMNS = ("job", "gpu", "pid", "name", "mode", "may run on", "should run on", "verdict")
NONE = "-"

MOST_PIDS = 6  #: in a cell; a range is one
MOST_NAMES = 3  #: of programs in a cell

DOES = {
    PIN: "pins processes that run in the wrong place",
    OBSERVE: "observes: it changes nothing, and reports what it would pin",
}

#: The fates of GPUs that are used from far away, of one and of several.
FATES = {
    BY_PIN: ("a pin fixes {}", "a pin fixes {}"),
    ALLOCATION: ("{} needs another allocation", "{} need another allocation"),
    LEFT: ("{} is left alone", "{} are left alone"),
}

Alike = list[EnforceProcessDocument]


def lines(document: EnforceDocument, *, fitting: bool) -> Iterator[str]:
    """Yield the report's lines. `fitting`: also processes in the right place, and known daemons."""
    yield f"{document.node} {DOES.get(document.does, document.does)}"
    if document.hindrance is not None:
        yield f"it was told to pin, and can only observe: {document.hindrance}"
    yield _policy(document.policy)
    yield from (f"note: {notice}" for notice in document.notices)
    yield _far(document)
    counted = document.summary.processes
    drifted, left = (sum(counts.values()) for counts in (counted.drifted, counted.left))
    yield f"processes: {counted.fits} fit, {drifted} drifted, {left} left"
    if document.unreached:
        yield f"not pinned yet, as the time limit was reached: {document.unreached} processes"
    if document.sees != "all":
        yield "other users' processes are not shown: root and --admin-group see them"
    yield from _table(
        document, lambda process: fitting or (process.verdict != FITS and process.reason != DAEMON)
    )


def _policy(policy: PolicyDocument) -> str:
    counts = f"{count(policy.rules, 'rule')}, read {policy.read}"
    if policy.error is not None:
        stands = (
            "nothing is pinned" if policy.read is None else f"the last good one applies: {counts}"
        )
        return f"policy {policy.file} has an error: {policy.error}; {stands}"
    if policy.file is None:
        return "no policy file: every job has the site's mode"
    return f"policy {policy.file}: {counts}"


def _far(document: EnforceDocument) -> str:
    by_fate = grouped(document.summary.gpus, lambda gpu: gpu.fate)
    unknown = by_fate.get(UNKNOWN, [])
    end = (
        f"; the processes of {_gpus((gpu.vendor, gpu.gpu) for gpu in unknown)} are not known"
        if unknown
        else ""
    )
    number, fates = 0, []
    for fate, words in FATES.items():
        if gpus := by_fate.get(fate, []):
            number += len(gpus)
            its = f"{len(gpus)} ({_gpus((gpu.vendor, gpu.gpu) for gpu in gpus)})"
            fates.append(words[len(gpus) > 1].format(its))
    if not number:
        return f"no GPU is used from far away{end}"
    verb = "is" if number == 1 else "are"
    return f"{count(number, 'GPU')} {verb} used from far away: {', '.join(fates)}{end}"


def _gpus(keys: Iterable[GpuKey]) -> str:
    by_vendor = grouped(keys, lambda key: key[0])
    return " + ".join(
        f"{vendor} {format_list(index for _, index in of_vendor)}"
        for vendor, of_vendor in by_vendor.items()
    )


def _table(
    document: EnforceDocument, is_shown: Callable[[EnforceProcessDocument], bool]
) -> Iterator[str]:
    """Yield rows of equal processes; below the rows with the same explanation, the explanation."""
    rows: list[tuple[str, ...]] = []
    sentences: dict[int, str] = {}  #: by the number of the row above it
    for job in document.jobs or ():
        shown = [process for process in job.processes if is_shown(process)]
        explained = grouped(
            shown, lambda process: (process.verdict, process.cause, process.reason, process.why)
        )
        for group in explained.values():
            alike = grouped(
                group, lambda it: (it.container, it.mode, it.rule, it.masks, it.cpulist)
            )
            rows += [_row(job, processes) for processes in alike.values()]
            sentences[len(rows)] = group[0].why or ""
    if rows:
        for number, line in enumerate(aligned(COLUMNS, rows, ())):
            yield line
            yield from [f"  {sentences[number]}"] if sentences.get(number) else ()


def _row(job: EnforceJobDocument, alike: Alike) -> tuple[str, ...]:
    first = alike[0]
    keys = [(it.vendor, it.gpu) for it in alike]
    keys += [(gpu.vendor, gpu.gpu) for it in alike for gpu in it.gpus_beside]
    rule = "" if first.rule is None else f", rule {first.rule}"
    drifted = sum(it.threads_drifted for it in alike) if first.verdict == DRIFTED else 0
    on_purpose = sum(it.threads_on_purpose for it in alike)
    verdict = [": ".join(filter(None, (first.verdict, first.reason or first.cause)))]
    verdict += [count(drifted, "thread")] if drifted else []
    verdict += [f"{count(on_purpose, 'thread')} on purpose"] if on_purpose else []
    name = job_name(job.scheduler, job.id, job.pod) if job.scheduler and job.id else "no job"
    return (
        f"{name}{f' ({first.container})' if first.container else ''}",
        _gpus(keys),
        _some(format_list(process.pid for process in alike).split(","), MOST_PIDS),
        _some(list(dict.fromkeys(process.name for process in alike)), MOST_NAMES),
        NONE if first.mode is None else f"{first.mode}{rule}",
        first.masks or NONE,
        first.cpulist or NONE,
        ", ".join(verdict),
    )


def _some(texts: Sequence[str], most: int) -> str:
    return ",".join([*texts[:most], *(["…"] if len(texts) > most else [])])
