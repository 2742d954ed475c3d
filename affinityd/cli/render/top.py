"""The node's state as a screen of text: the verdict, a line a GPU, a line for alike processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from affinityd.audit.document import AuditDocument, AuditProcessDocument
from affinityd.audit.verdict import NO_SCAN
from affinityd.cli.console import aligned
from affinityd.cpuset import format_list, parse_list
from affinityd.grouping import grouped
from affinityd.text import amount, one_line

NONE = "-"
STALE = 60.0  #: seconds after which a scan is called old
SORTED_BY = ("gpu", "waits", "name", "job", "pid")
GPU_COLUMNS = ("gpu", "state", "jobs", "processes", "waits", "far memory", "last hour")
COLUMNS = ("gpu", "pid", "name", "user", "job", "placement", "cause", "waits", "may run on")
NUMBERS = {"pid", "processes", "waits", "far memory"}


@dataclass(frozen=True)
class View:
    """The choice of a reader."""

    sort: str = SORTED_BY[0]
    wanted: str = ""  #: part of a name, job or pid; "": all
    gpu: int | None = None  #: place in the document; None: all

    def next_sort(self) -> View:
        """Return it sorted by the next column."""
        place = (SORTED_BY.index(self.sort) + 1) % len(SORTED_BY)
        return replace(self, sort=SORTED_BY[place])

    def next_gpu(self, number: int) -> View:
        """Return it with the next of so many GPUs, after the last one with all."""
        following = 0 if self.gpu is None else self.gpu + 1
        return replace(self, gpu=following if following < number else None)

    def of(self, number: int) -> View:
        """Return it for so many GPUs: all of them where the chosen one is no more."""
        return self if self.gpu is None or self.gpu < number else replace(self, gpu=None)


def screen(audit: AuditDocument, view: View, source: str, now: float) -> Iterator[str]:
    """Yield the lines; `source`: of the document, `now`: seconds since the epoch."""
    age = max(0.0, now - datetime.fromisoformat(audit.time.replace("Z", "+00:00")).timestamp())
    old = ", OLD: the daemon does not scan" if age > STALE else ""
    yield f"{audit.node}: {source}, scanned {age:.0f} s ago{old}"
    for finding in audit.verdict:
        yield f"  {finding.text}{f': {finding.remedy}' if finding.remedy else ''}"
    yield ""
    processes = [it for it in audit.processes or () if not it.daemon]
    by_gpu = grouped(processes, lambda it: (it.vendor, it.gpu))
    rows = []
    for gpu in audit.gpus if view.gpu is None else [audit.gpus[view.gpu]]:
        its = by_gpu.get((gpu.vendor, gpu.index), [])
        far = [it for it in its if it.cause] or its  # the job that is far comes first
        jobs = list(
            dict.fromkeys(f"{job_of(it)} ({user_of(it)})" for it in [*far, *its] if job_of(it))
        )
        memory = gpu.host_memory_bytes or {}
        rows.append(
            (
                f"{gpu.index}",
                gpu.state,
                " ".join(jobs) or NONE,
                f"{sum((gpu.processes or {}).values())}" if gpu.audited else "?",
                _waited(its),
                amount(memory["far"]) if memory.get("far") else NONE,
                gpu.history.lstrip(NO_SCAN) or NONE,
            )
        )
    yield from aligned(GPU_COLUMNS, rows, NUMBERS)
    yield ""
    if audit.processes is None:
        yield "processes are named over the daemon's socket alone"
        return
    yield from aligned(COLUMNS, _rows(audit, processes, view), NUMBERS)


def job_of(process: AuditProcessDocument) -> str:
    """Return the name of a process's job, pod or container; "" where it has none."""
    if process.pod is not None:
        return process.pod.name
    if process.job is not None:
        return f"{process.job.scheduler} {process.job.id}"
    return f"container {process.container[:12]}" if process.container else ""


def user_of(process: AuditProcessDocument) -> str:
    """Return the name of a process's user, else the number."""
    return process.user or (NONE if process.uid is None else str(process.uid))


def _waited(processes: Sequence[AuditProcessDocument]) -> str:
    """Return the seconds that threads waited in a second, and the cause of the longest waits."""
    waits = [it.waits for it in processes if it.waits is not None and it.waits.waited > 0]
    if not waits:
        return NONE
    longest = max(waits, key=lambda it: it.waited)
    waited = sum(it.waited / it.seconds for it in waits)
    return f"{waited:.2f} {longest.cause or ''}".strip() if waited >= 0.01 else NONE  # noqa: PLR2004


def _rows(
    audit: AuditDocument, processes: Sequence[AuditProcessDocument], view: View
) -> Iterator[Sequence[str]]:
    """Yield a row for processes that are alike: of one GPU, name, job and placement."""
    chosen = None if view.gpu is None else audit.gpus[view.gpu]
    shown = [
        it
        for it in processes
        if view.wanted in f"{it.pid} {it.name} {user_of(it)} {job_of(it)}"
        and (chosen is None or (it.vendor, it.gpu) == (chosen.vendor, chosen.index))
    ]
    alike = grouped(
        shown,
        lambda it: (it.vendor, it.gpu, it.name, user_of(it), job_of(it), it.placement, it.cause),
    )
    orders = {
        "gpu": lambda group: (group[0].vendor, group[0].gpu, group[0].pid),
        "waits": lambda group: -sum(it.waits.waited for it in group if it.waits),
        "name": lambda group: group[0].name,
        "job": lambda group: job_of(group[0]),
        "pid": lambda group: group[0].pid,
    }
    for group in sorted(alike.values(), key=orders[view.sort]):
        first, more = group[0], f" +{len(group) - 1} alike" if len(group) > 1 else ""
        cpus = frozenset[int]().union(*(parse_list(it.cpulist) for it in first.threads))
        yield (
            f"{first.gpu}",
            f"{first.pid}",
            f"{one_line(first.name)}{more}",
            user_of(first),
            job_of(first) or NONE,
            first.placement,
            first.cause or NONE,
            _waited(group),
            format_list(cpus) or NONE,
        )
