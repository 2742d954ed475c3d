"""A scan as a table: its rows, then notes and remedies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from affinityd.audit.findings import STATES, Finding, findings, states
from affinityd.audit.model import AuditedProcess, Holding, ProcessFacts, Scan
from affinityd.audit.remedies import Remedies
from affinityd.audit.verify import Verification, matches
from affinityd.cli.console import aligned
from affinityd.cpuset import format_list, several
from affinityd.grouping import grouped
from affinityd.topology.model import GpuKey, Topology
from affinityd.topology.nearness import gpu_numbers

MOST_CONCERNS = 16  #: how many concerns of a finding are shown
PIPE_WIDTH = 120  #: characters of a row if the output is no terminal


def table(
    topology: Topology, scan: Scan, *, all_memory: bool = False, width: int = PIPE_WIDTH
) -> Iterator[str]:
    """Yield a row for each process or group of equal processes, then lines on the findings.

    `all_memory`: also a line on near memory. `width`: characters that a row may have.
    """
    with_vendor = topology.has_several_vendors
    names = {gpu.key: gpu_numbers([gpu], with_vendor=with_vendor) for gpu in topology.gpus}
    worst = states(scan)
    order = sorted(scan.processes, key=lambda process: STATES.index(worst[process.facts.gpu]))
    scan = replace(scan, processes=tuple(order))
    if scan.processes:
        yield from _rows_table(scan, names, width)
    remedies = Remedies(topology, scan)
    for finding in findings(topology, scan, remedies):
        yield from _concerns(finding)
    for owners, cpus in scan.overlap.items():
        yield f"{several('CPU', cpus)}: pinned for own use by {' and '.join(owners)}"
    if scan.skipped:
        yield f"not scanned, as the time limit was reached: {scan.skipped} processes or more"
    yield from scan.notices
    for process in scan.processes:
        memory = scan.memory.get(process.facts.pid)
        if memory is not None and (all_memory or memory.is_notable()):
            remedy = remedies.of_memory(process, memory)
            why = f"; {memory.cause}: {remedy}" if remedy else ""
            yield f"{process_name(process.facts)}: {memory}{why}"


def _concerns(finding: Finding) -> Iterator[str]:
    """Yield lines on a finding's GPUs or processes; a pin command has a line of its own."""
    for concern in finding.concerns[:MOST_CONCERNS]:
        remedy = f": {concern.remedy}" if concern.remedy else ""
        before, pin, options = remedy.partition("; affinityd pin ")
        yield f"{concern.gpus}: {concern.why}{before}{'; to fix it now:' if pin else ''}"
        if pin:
            yield f"  affinityd pin {options.removesuffix(' fixes it now')}"
    if len(finding.concerns) > MOST_CONCERNS:
        yield f"and {len(finding.concerns) - MOST_CONCERNS} more: affinityd audit --json"


def once(said: Iterable[tuple[int, str]], names: Mapping[int, str]) -> Iterator[str]:
    """Yield each sentence once, with the first process it is about and the number of the others."""
    pids_by_text: dict[str, list[int]] = {}
    for pid, text in said:
        pids_by_text.setdefault(text, []).append(pid)
    for text, (first, *others) in pids_by_text.items():
        more = f" and {len(others)} more" if others else ""
        yield f"{names[first]}{more}: {text}"


COLUMNS = ("gpu", "pid", "name", "user", "job", "placement", "cause", "cpulist", "gpu memory")
#: Columns that are left out if rows are too long, in this order.
LEAST_NEEDED = ("gpu memory", "user", "cpulist", "job")
NONE = "-"
NOT_KNOWN = "?"


def _rows_table(scan: Scan, names: Mapping[GpuKey, str], width: int) -> Iterator[str]:
    levels: dict[int, int] = {}  # pid → number of ancestors in this table, up to its holder
    for facts in (process.facts for process in scan.processes):
        levels[facts.pid] = 0 if facts.holder is None else levels.get(facts.parent, 0) + 1
    rows = [
        _row(alike, scan, names, levels[alike[0].facts.pid])
        for alike in grouped(scan.processes, _look).values()
    ]
    columns = [*COLUMNS]
    lines = list(aligned(columns, rows, {"pid", "gpu memory"}))
    for column in LEAST_NEEDED:  # until a row fits on one line
        if max(map(len, lines)) <= width:
            break
        place = columns.index(column)
        columns.pop(place)
        rows = [row[:place] + row[place + 1 :] for row in rows]
        lines = list(aligned(columns, rows, {"pid", "gpu memory"}))
    yield from (line[:width] for line in lines)


def _look(process: AuditedProcess) -> object:
    facts = process.facts
    if facts.holder is None:
        return facts.pid
    masks = frozenset(process.judged)
    return facts.parent, facts.name, process.placement, process.cause, masks


def colored(line: str) -> str:
    """Return a line of the table with a colored placement: red if far, amber if unpinned."""
    line = re.sub(r"  (mixed|remote)(?=  )", "  \x1b[31m\\1\x1b[0m", line, count=1)
    return re.sub(r"  (unpinned)(?=  )", "  \x1b[33m\\1\x1b[0m", line, count=1)


def process_name(facts: ProcessFacts) -> str:
    """Return `process 123 (python)`, which begins each line about the process."""
    return f"process {facts.pid} ({facts.name})"


def _memory(holding: Holding | None) -> str:
    if holding is None:
        return NONE
    size = holding.memory_bytes
    return NOT_KNOWN if size is None else f"{size / 2**20:.0f} MiB"


def _row(
    alike: Sequence[AuditedProcess], scan: Scan, names: Mapping[GpuKey, str], level: int
) -> tuple[str, ...]:
    first = alike[0]
    facts = first.facts
    step = facts.membership.step if facts.membership.job else None
    more = f" +{len(alike) - 1} alike" if len(alike) > 1 else ""
    vendor, _ = facts.gpu  # its GPUs are shown as `0`, or `0+1-3`
    beside = format_list(index for maker, index in facts.beside if maker == vendor)
    others = (names[key] for key in facts.beside if key[0] != vendor)
    return (
        "+".join(filter(None, (names[facts.gpu], beside, *others))),
        str(facts.pid),
        f"{'  ' * level}{facts.name}{more}",
        NOT_KNOWN if facts.uid is None else scan.users.get(facts.uid, str(facts.uid)),
        f"{facts.owner or NONE}{f'.{step}' if step else ''}",
        first.placement,
        "known daemon" if first.is_daemon else first.cause or NONE,
        format_list(frozenset().union(*first.judged)) or NONE,
        _memory(facts.holding),
    )


VERIFY_COLUMNS = (
    *("pid", "name", "gpu", "node", "threads", "placement", "cpulist", "ran last on", "memory"),
)


def verify_table(verifications: Sequence[Verification], all_memory: bool = False) -> Iterator[str]:
    """Yield lines: the threads of every process, then the remarks on every process."""
    rows = [*chain.from_iterable(map(_thread_rows, verifications))]
    yield from aligned(VERIFY_COLUMNS, rows, {"pid", "threads"})
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
    """Yield a row for the threads of each mask; the row of the main thread is first."""
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
    node_of = {}
    for core in topology.cores:
        for cpu in core.cpus:
            node_of[cpu] = core.node
    processes = [_verified_process(verification, node_of) for verification in verifications]
    return {"node": topology.name, "matches": matches(verifications), "processes": processes}


def _verified_process(
    verification: Verification, node_of: Mapping[int, int | None]
) -> dict[str, Any]:
    gpus = [
        {
            "vendor": gpu.vendor,
            "index": gpu.index,
            "pci_bus_id": gpu.pci_bus_id,
            "numa_node": gpu.numa_node,
        }
        for gpu in verification.near.gpus
    ]
    threads = [
        {
            "tid": thread.tid,
            "name": thread.name,
            "placement": placement,
            "cpulist": format_list(thread.mask),
            "last_cpu": thread.last_cpu,
            "last_node": node_of.get(thread.last_cpu),
        }
        for thread, placement, _ in verification.process.threads
    ]
    policy = verification.policy
    return {
        "pid": verification.process.facts.pid,
        "name": verification.process.facts.name,
        "gpus": gpus,
        "near": {
            "cpulist": format_list(verification.near.cpus),
            "memory_nodes": sorted(verification.near.memory),
        },
        "threads": threads,
        "memory": policy and {"policy": policy.policy, "nodes": sorted(policy.nodes)},
        "resident": verification.memory.resident.by_node if verification.memory else None,
        "mismatches": verification.mismatches,
        "notes": list(verification.notes),
        "cpus_set_by": verification.owner,
    }
