"""A scan as a table for a person: a row a process, then what is to be said of them."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from functools import cache

from affinityd.audit.ledger import spent, ticks_of
from affinityd.audit.model import Audited, GpuKey, Holding, ProcessFacts, Scan
from affinityd.cli.table import aligned
from affinityd.cpuset import format_list
from affinityd.topology import Topology

COLUMNS = (
    *("gpu", "pid", "name", "user", "job", "threads", "placement", "cause", "cpulist"),
    *("ran last on", "gpu memory"),
)
SINCE_BEFORE = "remote time"  #: of a second look
NUMBERS = {"pid", "threads", "gpu memory", SINCE_BEFORE}
NONE, NOT_KNOWN = "-", "?"


def table(topology: Topology, scan: Scan, before: Scan | None) -> Iterator[str]:
    """Yield lines; with a scan `before`, also which part of the CPU time since then was remote."""
    columns = COLUMNS if before is None else (*COLUMNS, SINCE_BEFORE)
    names = _names(topology)
    parts = _remote_parts(scan, before)
    rows = [(*_row(it, names), *parts.get(it.facts.pid, ())) for it in scan.processes]
    if rows:
        yield from aligned(columns, rows, NUMBERS)
    elif len(scan.unknown) < len(scan.near):
        yield "no process uses a GPU"
    yield from _said(topology, scan, names)


def _names(topology: Topology) -> dict[GpuKey, str]:
    """Return the GPUs' names: indices count per vendor."""
    is_mixed = len({gpu.vendor for gpu in topology.gpus}) > 1
    return {
        gpu.key: f"{gpu.vendor} {gpu.index}" if is_mixed else f"{gpu.index}"
        for gpu in topology.gpus
    }


def _row(process: Audited, names: dict[GpuKey, str]) -> tuple[str, ...]:
    facts = process.facts
    judged = zip(facts.threads, process.pinned_itself, strict=True)
    masks = {thread.mask for thread, itself in judged if not itself}
    return (
        names[facts.gpu],
        str(facts.pid),
        facts.name,
        _user(facts.uid),
        _job(facts),
        str(len(facts.threads)),
        process.placement,
        "known daemon" if process.is_daemon else process.cause or NONE,
        format_list(frozenset().union(*masks)) or NONE,
        format_list(thread.last_cpu for thread in facts.threads) or NONE,
        _memory(facts.holding),
    )


@cache
def _user(uid: int | None) -> str:
    if uid is None:
        return NOT_KNOWN
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _job(facts: ProcessFacts) -> str:
    job, step = facts.membership.job, facts.membership.step
    if job is not None:
        return f"{job.scheduler} {job.id}" + (f".{step}" if step else "")
    container = facts.membership.container
    return f"container {container[:12]}" if container else NONE


def _memory(holding: Holding | None) -> str:
    if holding is None:
        return NONE
    size = holding.memory_bytes
    return NOT_KNOWN if size is None else f"{size / 2**20:.0f} MiB"


def _remote_parts(scan: Scan, before: Scan | None) -> dict[int, tuple[str]]:
    """Return the cells of the second look's column, by pid."""
    if before is None:
        return {}
    ticks = ticks_of(before.processes)
    parts = {}
    for facts in (process.facts for process in scan.processes):
        near = scan.near[facts.gpu]
        total, remote = spent(facts, near, ticks, since=float("inf"))
        part = f"{remote / total:.0%}" if total else NONE
        parts[facts.pid] = (NOT_KNOWN if near is None else part,)
    return parts


def _said(topology: Topology, scan: Scan, names: dict[GpuKey, str]) -> Iterator[str]:
    for process in scan.processes:
        if process.orphan is not None:
            facts = process.facts
            held = f"{_memory(facts.holding)} of GPU {names[facts.gpu]}"
            yield f"{_name(process)}: orphan, holds {held}: {process.orphan}"
    if scan.overlap:
        yield f"CPUs {format_list(scan.overlap)} are in the unique pins of more than one job"
    for gpu in topology.gpus:
        if gpu.key in scan.unknown:
            why = scan.unknown[gpu.key]
            yield f"GPU {names[gpu.key]}: its processes are not known: {why}"
        if scan.near[gpu.key] is None:
            yield f"GPU {names[gpu.key]}: its NUMA node is not known: nothing can be judged"
    if scan.skipped:
        yield f"not looked at, as time was up: {scan.skipped} processes or more"
    yield from scan.notices
    yield from _remedies(scan)


def _remedies(scan: Scan) -> Iterator[str]:
    """Yield what mends the first process of each cause, and of how many it is the first."""
    alike: dict[tuple[str | None, str | None], list[Audited]] = {}
    for process in scan.processes:
        if process.remedy is not None:
            job = process.facts.membership.job
            alike.setdefault((process.cause, job.scheduler if job else None), []).append(process)
    for (cause, _), those in alike.items():
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        yield f"{_name(those[0])}{more}: {cause}: {those[0].remedy}"


def _name(process: Audited) -> str:
    return f"process {process.facts.pid} ({process.facts.name})"
