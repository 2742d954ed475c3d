"""A scan as a table: its rows, then notes and remedies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from affinityd.audit.document import waits_of
from affinityd.audit.model import AuditedProcess, Holding, ProcessFacts, Scan
from affinityd.audit.remedies import RESCAN, Remedies, reset_gpu
from affinityd.audit.verdict import IS_GONE, STATES, states
from affinityd.audit.verify import Verification, matches
from affinityd.audit.waits import NOTABLE
from affinityd.cli.console import aligned
from affinityd.cpuset import format_list, several
from affinityd.grouping import grouped
from affinityd.linux.scheduling import TICKS
from affinityd.topology.model import GpuKey, Topology
from affinityd.topology.nearness import FAR, gpu_numbers

MOST_COMMANDS = 8  #: for processes that are alike


def table(
    topology: Topology,
    scan: Scan,
    *,
    is_second: bool = False,
    all_memory: bool = False,
    width: int | None = None,
) -> Iterator[str]:
    """Yield lines; of a second look also which part of the CPU time since the first was remote.

    `all_memory`: also a line on near memory. `width`: characters that a row may have.
    """
    with_vendor = topology.has_several_vendors
    names = {gpu.key: gpu_numbers([gpu], with_vendor=with_vendor) for gpu in topology.gpus}
    states_of_gpus = states(scan)
    order = sorted(
        scan.processes, key=lambda process: STATES.index(states_of_gpus[process.facts.gpu])
    )
    scan = replace(scan, processes=tuple(order))
    if scan.processes:
        yield from _rows_table(scan, names, is_second=is_second, width=width)
    remedies = Remedies(topology, scan)
    processes = {process.facts.pid: process_name(process.facts) for process in scan.processes}
    yield from once(_orphans(scan, remedies, names), processes)
    yield from _remarks(topology, scan, names)
    yield from _remedies(scan, remedies)
    yield from _waits(scan)
    for process in scan.processes:
        memory = scan.memory.get(process.facts.pid)
        if memory is not None and (all_memory or memory.is_notable()):
            remedy = remedies.of_memory(process, memory)
            why = f"; {memory.cause}: {remedy}" if remedy else ""
            yield f"{process_name(process.facts)}: {memory}{why}"


def once(said: Iterable[tuple[int, str]], names: Mapping[int, str]) -> Iterator[str]:
    """Yield the sentences on processes, pid and text, equal ones once: the first, and how many."""
    pids_by_text: dict[str, list[int]] = {}
    for pid, text in said:
        pids_by_text.setdefault(text, []).append(pid)
    for text, (first, *others) in pids_by_text.items():
        more = f" and {len(others)} more" if others else ""
        yield f"{names[first]}{more}: {text}"


def _orphans(
    scan: Scan, remedies: Remedies, names: Mapping[GpuKey, str]
) -> Iterator[tuple[int, str]]:
    """Yield the pid of each orphan, and what it holds, why it is one, and what to do."""
    for process in scan.processes:
        if process.orphan is not None:
            facts = process.facts
            remedy = remedies.end(process)
            held = f"{_memory(facts.holding)} of GPU {names[facts.gpu]}"
            end = f"; {remedy}" if remedy else ""
            yield facts.pid, f"orphan, holds {held}: {process.orphan}{end}"


def _remarks(topology: Topology, scan: Scan, names: Mapping[GpuKey, str]) -> Iterator[str]:
    for owners, cpus in scan.overlap.items():
        yield f"{several('CPU', cpus)}: pinned for own use by {' and '.join(owners)}"
    for gone in scan.gone:
        yield f"GPU {gone.index} ({gone.pci_bus_id}): {IS_GONE}: {RESCAN}"
    addresses = {gpu.key: gpu.pci_bus_id for gpu in topology.gpus}
    for key, near in scan.near.items():
        if key in scan.unknown:
            yield f"GPU {names[key]}: its processes are not known: {scan.unknown[key]}"
        if key in scan.lost:
            yield f"GPU {names[key]}: it is lost or hangs: {reset_gpu(addresses[key])}"
        if key in scan.reserved:
            yield f"GPU {names[key]}: reserved: {scan.reserved[key]} has it, and no process uses it"
        if near is None:
            yield f"GPU {names[key]}: its NUMA node is not known: its processes cannot be judged"
    if scan.skipped:
        yield f"not scanned, as the time limit was reached: {scan.skipped} processes or more"
    yield from scan.notices


def _remedies(scan: Scan, remedies: Remedies) -> Iterator[str]:
    """Yield the remedies for the processes of each GPU, job and cause: why, then the commands."""
    found = [
        (process.facts, process.cause, remedy)
        for process in scan.processes
        if (remedy := remedies.of(process))
    ]
    alike = grouped(found, lambda entry: (entry[0].gpus, entry[0].membership.job, entry[1]))
    for group in alike.values():
        (facts, cause, remedy), *others = group
        more = f" and {len(others)} more" if others else ""
        commands = list(dict.fromkeys(each.command for *_, each in group if each.command))
        now = "; to fix it now:" if commands else ""
        yield f"{process_name(facts)}{more}: {cause}: {remedy.why}{now}"
        yield from (f"  {command}" for command in commands[:MOST_COMMANDS])
        if len(commands) > MOST_COMMANDS:
            yield f"  and {len(commands) - MOST_COMMANDS} more: affinityd audit --json"


def _waits(scan: Scan) -> Iterator[str]:
    """Yield a line for each process that waits for CPUs, where a fact explains it: the remedy."""
    for process in scan.processes:
        waits = waits_of(process, scan.waits)
        if waits is not None and waits.cause is not None:
            yield f"{process_name(process.facts)}: waits for CPUs, {waits.cause}: {waits.remedy}"


COLUMNS = (
    *("gpu", "pid", "name", "user", "job", "threads", "far", "placement", "cause", "cpulist"),
    *("ran last on", "gpu memory"),
)
#: Left out of rows that are too long, the first one first.
LEAST_NEEDED = ("ran last on", "threads", "far", "gpu memory", "user", "cpulist", "job")
SINCE_BEFORE = ("remote time", "waits")  #: of a second look
NUMBERS = {"pid", "threads", "far", "gpu memory", *SINCE_BEFORE}
NONE = "-"
NOT_KNOWN = "?"

LEVEL = "  "  #: before the name of a process, for each of its ancestors in the table
MOST_ALIKE = 4  #: more workers than these that are alike share a row

Alike = list[AuditedProcess]  #: the first of them, and the others


def _rows_table(
    scan: Scan, names: Mapping[GpuKey, str], *, is_second: bool, width: int | None
) -> Iterator[str]:
    levels: dict[int, int] = {}  # pid → how many ancestors it has here, up to the holder of its GPU
    for facts in (process.facts for process in scan.processes):
        levels[facts.pid] = 0 if facts.holder is None else levels.get(facts.parent, 0) + 1
    rows = []
    for group in _folded(scan):
        row = _row(group, scan, names, levels[group[0].facts.pid])
        if is_second:
            used = [
                scan.used[process.facts.pid] for process in group if process.facts.pid in scan.used
            ]
            total = sum(time.total for time in used)
            remote = sum(time.remote for time in used)
            part = f"{remote / total:.0%}" if total else NONE
            row = (*row, NOT_KNOWN if group[0].near is None else part, _waited(group, scan))
        rows.append(row)
    columns = [*COLUMNS, *(SINCE_BEFORE if is_second else ())]
    lines = list(aligned(columns, rows, NUMBERS))
    for column in LEAST_NEEDED:  # a row stays on one line
        if width is None or max(map(len, lines)) <= width:
            break
        place = columns.index(column)
        columns.pop(place)
        rows = [row[:place] + row[place + 1 :] for row in rows]
        lines = list(aligned(columns, rows, NUMBERS))
    yield from (line if width is None else line[:width] for line in lines)


def colored(line: str) -> str:
    """Return a line of the table with its placement in a color: far red, unpinned amber."""
    line = re.sub(r"  (mixed|remote)(?=  )", "  \x1b[31m\\1\x1b[0m", line, count=1)
    return re.sub(r"  (unpinned)(?=  )", "  \x1b[33m\\1\x1b[0m", line, count=1)


def process_name(facts: ProcessFacts) -> str:
    """Return `process 123 (python)`, with which each line about it begins."""
    return f"process {facts.pid} ({facts.name})"


def _memory(holding: Holding | None) -> str:
    if holding is None:
        return NONE
    size = holding.memory_bytes
    return NOT_KNOWN if size is None else f"{size / 2**20:.0f} MiB"


def _folded(scan: Scan) -> Iterator[Alike]:
    """Group equal workers: children of one parent, without children of their own."""
    parents = {process.facts.parent for process in scan.processes}

    def look(process: AuditedProcess) -> object:
        facts = process.facts
        masks = frozenset(process.judged)
        if facts.holder is None or facts.pid in parents:  # no worker
            return facts.pid
        return facts.parent, facts.name, process.placement, process.cause, masks

    for group in grouped(scan.processes, look).values():
        yield from [group] if len(group) > MOST_ALIKE else ([process] for process in group)


def _row(group: Alike, scan: Scan, names: Mapping[GpuKey, str], level: int) -> tuple[str, ...]:
    first = group[0]
    facts = group[0].facts
    of = facts.membership
    step = f".{of.step}" if of.job and of.step else ""
    threads = [*chain.from_iterable(process.facts.threads for process in group)]
    more = f" +{len(group) - 1} alike" if len(group) > 1 else ""
    # The threads that may run far away, and the CPU time that they spent there.
    words = [placed.placement in FAR for process in group for placed in process.threads]
    near = first.near or ()
    ticks = sum(thread.cpu_ticks for thread in threads if thread.last_cpu not in near)
    far = f"{sum(words)} ({ticks / TICKS:.0f} s)" if any(words) else NONE
    far = NOT_KNOWN if first.near is None else far
    vendor, _ = facts.gpu  # its GPUs are `0`, or `0+1-3`
    alike = format_list(index for maker, index in facts.beside if maker == vendor)
    others = (names[key] for key in facts.beside if key[0] != vendor)
    return (
        "+".join(filter(None, (names[facts.gpu], alike, *others))),
        str(facts.pid),
        f"{LEVEL * level}{facts.name}{more}",
        NOT_KNOWN if facts.uid is None else scan.users.get(facts.uid, str(facts.uid)),
        f"{facts.owner or NONE}{step}",
        str(len(threads)),
        far,
        first.placement,
        "known daemon" if first.is_daemon else first.cause or NONE,
        format_list(frozenset().union(*first.judged)) or NONE,
        format_list({thread.last_cpu for thread in threads}) or NONE,
        _memory(facts.holding),
    )


def _waited(group: Alike, scan: Scan) -> str:
    """Return the seconds that threads waited in a second, and what explains most of them."""
    waits = [scan.waits[process.facts.pid] for process in group if process.facts.pid in scan.waits]
    if not waits or any(of_process.waited is None for of_process in waits):
        return NOT_KNOWN
    longest = max(waits, key=lambda of_process: of_process.waited or 0.0)
    waited = sum(of_process.waited or 0.0 for of_process in waits) / longest.seconds
    return f"{waited:.2f} {longest.cause or ''}".strip() if waited >= NOTABLE else NONE


VERIFY_COLUMNS = (
    *("pid", "name", "gpu", "node", "threads", "placement", "cpulist", "ran last on", "memory"),
)
VERIFY_NUMBERS = {"pid", "threads"}


def verify_table(verifications: Sequence[Verification], all_memory: bool = False) -> Iterator[str]:
    """Yield lines: the threads of every process, then the remarks on each."""
    rows = [*chain.from_iterable(map(_thread_rows, verifications))]
    yield from aligned(VERIFY_COLUMNS, rows, VERIFY_NUMBERS)
    far = [verification for verification in verifications if verification.far]
    is_tree = len(far) > 1 and len({verification.remedy for verification in far}) == 1
    for verification in verifications:
        name = process_name(verification.process.facts)
        if verification.owner is not None:
            yield f"{name}: CPUs set by {verification.owner}"
        if all_memory and verification.memory:
            yield f"{name}: {verification.memory}"
        yield from (f"{name}: note: {text}" for text in verification.notes)
        mismatches = verification.others if is_tree else verification.mismatches
        yield from (f"{name}: mismatch: {text}" for text in mismatches)
    if is_tree:
        its = f"{process_name(far[0].process.facts)} and {len(far) - 1} more"
        words = ", ".join(sorted(set().union(*(verification.far for verification in far))))
        yield f"{its}: mismatch: may run far from their GPUs ({words}); {far[0].remedy}"


def _thread_rows(verification: Verification) -> Iterator[tuple[str, ...]]:
    """Yield a row for the threads of each mask, that of the main thread first."""
    process = verification.process
    gpus = verification.near.gpus
    policy = verification.policy
    nodes = (NOT_KNOWN if gpu.numa_node is None else str(gpu.numa_node) for gpu in gpus)
    gpu_nodes = ",".join(nodes)
    alike = grouped(process.threads, lambda placed: (placed.placement, placed.thread.mask))
    for (placement, mask), group in alike.items():
        yield (
            str(process.facts.pid),
            group[0].thread.name,
            gpu_numbers(gpus, with_vendor=verification.near.with_vendor),
            gpu_nodes,
            str(len(group)),
            placement,
            format_list(mask),
            format_list(placed.thread.last_cpu for placed in group),
            NOT_KNOWN if policy is None else str(policy),
        )


def verify_document(topology: Topology, verifications: Sequence[Verification]) -> dict[str, Any]:
    """Return the JSON document: every thread, masks as cpulists, memory in bytes."""
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    processes = [
        {
            "pid": verification.process.facts.pid,
            "name": verification.process.facts.name,
            "gpus": [
                {
                    "vendor": gpu.vendor,
                    "index": gpu.index,
                    "pci_bus_id": gpu.pci_bus_id,
                    "numa_node": gpu.numa_node,
                }
                for gpu in verification.near.gpus
            ],
            "near": {
                "cpulist": format_list(verification.near.cpus),
                "memory_nodes": sorted(verification.near.memory),
            },
            "threads": [
                {
                    "tid": thread.tid,
                    "name": thread.name,
                    "placement": placement,
                    "cpulist": format_list(thread.mask),
                    "last_cpu": thread.last_cpu,
                    "last_node": node_of.get(thread.last_cpu),
                }
                for thread, placement, _ in verification.process.threads
            ],
            "memory": verification.policy
            and {"policy": verification.policy.policy, "nodes": sorted(verification.policy.nodes)},
            "resident": verification.memory.resident.by_node if verification.memory else None,
            "mismatches": verification.mismatches,
            "notes": list(verification.notes),
            "cpus_set_by": None if verification.owner is None else str(verification.owner),
        }
        for verification in verifications
    ]
    return {"node": topology.name, "matches": matches(verifications), "processes": processes}
