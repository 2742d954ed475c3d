"""The rows of the audit's table: each holder of a GPU, with its helper processes below it."""

from __future__ import annotations

import pwd
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from affinityd.audit.cpu_time import ThreadName, spent, ticks_of
from affinityd.audit.facts.gather import TICKS
from affinityd.audit.facts.holding import GpuKey, Holding
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess, Scan
from affinityd.cli.console import aligned
from affinityd.cpuset import format_list
from affinityd.topology.nearness import FAR

COLUMNS = (
    *("gpu", "pid", "name", "user", "job", "threads", "far", "placement", "cause", "cpulist"),
    *("ran last on", "gpu memory"),
)
SINCE_BEFORE = "remote time"  #: of a second look
NUMBERS = {"pid", "threads", "far", "gpu memory", SINCE_BEFORE}
NONE, NOT_KNOWN = "-", "?"

LEVEL = "  "  #: before the name of a process, for each of its ancestors in the table
MOST_ALIKE = 4  #: more workers than these that are alike share a row

Alike = list[AuditedProcess]  #: the first of them, and the others


def table(
    scan: Scan, names: Mapping[GpuKey, str], before: Scan | None, *, fold: bool
) -> Iterator[str]:
    """Return the lines of processes; with `before`, also which part of the time since was remote.

    `fold`: workers that are alike may share a row.
    """
    levels = _levels(scan)
    groups = list(_folded(scan)) if fold else [[it] for it in scan.processes]
    rows = [_row(those, names, levels[those[0].facts.pid]) for those in groups]
    if before is None:
        return aligned(COLUMNS, rows, NUMBERS)
    ticks, since = ticks_of(before.processes), before.boot * TICKS
    parts = (_remote_part(those, ticks, since) for those in groups)
    rows = [(*row, part) for row, part in zip(rows, parts, strict=True)]
    return aligned((*COLUMNS, SINCE_BEFORE), rows, NUMBERS)


def process_name(facts: ProcessFacts) -> str:
    """Return a process as a line about it begins."""
    return f"process {facts.pid} ({facts.name})"


def amounts(resident: Mapping[int, int]) -> str:
    """Return resident memory by NUMA node, in bytes, as a person reads it."""
    return ", ".join(
        f"node {node} {size / 2**20:.0f} MiB" for node, size in sorted(resident.items())
    )


def memory(holding: Holding | None) -> str:
    """Return how much of its GPU's memory a process holds."""
    if holding is None:
        return NONE
    size = holding.memory_bytes
    return NOT_KNOWN if size is None else f"{size / 2**20:.0f} MiB"


def _levels(scan: Scan) -> Mapping[int, int]:
    """Return pid → how many ancestors it has in the table, up to the holder of its GPU."""
    levels: dict[int, int] = {}
    for facts in (process.facts for process in scan.processes):
        levels[facts.pid] = 0 if facts.holder is None else levels.get(facts.parent, 0) + 1
    return levels


def _folded(scan: Scan) -> Iterator[Alike]:
    """Yield the processes; equal children of one parent, without children, are together."""
    parents = {process.facts.parent for process in scan.processes}
    alike: dict[object, Alike] = {}
    for process in scan.processes:
        is_worker = process.facts.holder is not None and process.facts.pid not in parents
        alike.setdefault(_look(process) if is_worker else process.facts.pid, []).append(process)
    for those in alike.values():
        yield from [those] if len(those) > MOST_ALIKE else ([process] for process in those)


def _look(process: AuditedProcess) -> object:
    facts = process.facts
    return facts.parent, facts.name, process.placement, process.cause, process.judged_masks


def _row(those: Alike, names: Mapping[GpuKey, str], level: int) -> tuple[str, ...]:
    first, facts = those[0], those[0].facts
    of = facts.membership
    step = f".{of.step}" if of.job and of.step else ""
    threads = [thread for process in those for thread in process.facts.threads]
    more = f" +{len(those) - 1} alike" if len(those) > 1 else ""
    return (
        _gpus(facts, names),
        str(facts.pid),
        f"{LEVEL * level}{facts.name}{more}",
        _user(facts.uid),
        f"{facts.owner or NONE}{step}",
        str(len(threads)),
        _far(those),
        first.placement,
        "known daemon" if first.is_daemon else first.cause or NONE,
        format_list(frozenset().union(*first.judged_masks)) or NONE,
        format_list({thread.last_cpu for thread in threads}) or NONE,
        memory(facts.holding),
    )


def _far(those: Alike) -> str:
    """Return how many threads may run far away, by any pin, and the CPU time spent there."""
    if those[0].near is None:
        return NOT_KNOWN
    far = sum(word in FAR for process in those for word in process.placements)
    ticks = sum(spent(process.facts, process.near, {}, since=0)[1] for process in those)
    return f"{far} ({ticks / TICKS:.0f} s)" if far else NONE


def _gpus(facts: ProcessFacts, names: Mapping[GpuKey, str]) -> str:
    """Return its GPUs: `0`, or `0+1-3`, that of most memory first."""
    vendor, _ = facts.gpu
    alike = format_list(index for its, index in facts.beside if its == vendor)
    others = (names[key] for key in facts.beside if key[0] != vendor)
    return "+".join(filter(None, (names[facts.gpu], alike, *others)))


@cache
def _user(uid: int | None) -> str:
    if uid is None:
        return NOT_KNOWN
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _remote_part(
    those: Sequence[AuditedProcess], ticks: Mapping[ThreadName, int], since: float
) -> str:
    near = those[0].near
    amounts = [spent(process.facts, near, ticks, since) for process in those]
    total, remote = (sum(amount) for amount in zip(*amounts, strict=True))
    if near is None:
        return NOT_KNOWN
    return f"{remote / total:.0%}" if total else NONE
