"""A scan as a table: its rows, then notes and remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.remedies import Remedies, Remedy
from affinityd.audit.sources.resident_memory import ByNode
from affinityd.cli.render import audit_rows
from affinityd.cli.render.audit_rows import amounts, process_name
from affinityd.cpuset import several
from affinityd.measure.document import ALIKE
from affinityd.topology.model import Topology

MOST_COMMANDS = 8  #: for processes that are alike


def table(
    topology: Topology, scan: Scan, before: Scan | None, *, fold: bool = True
) -> Iterator[str]:
    """Yield lines; with a scan `before`, also which part of the CPU time since then was remote.

    `fold`: workers that are alike may share a row.
    """
    names = _names(topology)
    if scan.processes:
        yield from audit_rows.table(scan, names, before, fold=fold)
    elif len(scan.unknown) < len(scan.near):
        yield "no process uses a GPU"
    remedies = Remedies(topology, scan)
    yield from _orphans(scan, remedies, names)
    yield from _said(scan, names)
    yield from _measured(scan, names)
    yield from _mending(scan, remedies)


def _names(topology: Topology) -> Mapping[GpuKey, str]:
    """Return the GPUs' names: indices count per vendor."""
    is_mixed = len({gpu.vendor for gpu in topology.gpus}) > 1
    return {
        gpu.key: f"{gpu.vendor} {gpu.index}" if is_mixed else f"{gpu.index}"
        for gpu in topology.gpus
    }


def _orphans(scan: Scan, remedies: Remedies, names: Mapping[GpuKey, str]) -> Iterator[str]:
    for process in scan.processes:
        if process.orphan is not None:
            facts, remedy = process.facts, remedies.end(process)
            held = f"{audit_rows.memory(facts.holding)} of GPU {names[facts.gpu]}"
            end = f"; {remedy}" if remedy else ""
            yield f"{process_name(process.facts)}: orphan, holds {held}: {process.orphan}{end}"


def _said(scan: Scan, names: Mapping[GpuKey, str]) -> Iterator[str]:
    for owners, cpus in scan.overlap.items():
        yield f"{several('CPU', cpus)}: pinned for own use by {' and '.join(owners)}"
    for key, near in scan.near.items():
        if key in scan.unknown:
            yield f"GPU {names[key]}: its processes are not known: {scan.unknown[key]}"
        if near is None:
            yield f"GPU {names[key]}: its NUMA node is not known: its processes cannot be judged"
    if scan.skipped:
        yield f"not scanned, as the time limit was reached: {scan.skipped} processes or more"
    yield from scan.notices


def _measured(scan: Scan, names: Mapping[GpuKey, str]) -> Iterator[str]:
    """Yield a line for each GPU with far processes, if its copies are faster from near CPUs."""
    far = {it.facts.gpu for it in scan.processes if it.is_mismatch}
    for key, ratios in scan.ratios.items():
        most = max(ratios.values())
        if key in far and most >= ALIKE:
            yield (
                f"GPU {names[key]}: near CPUs copy to it up to {most:.1f} times as fast as far "
                "ones (affinityd measure)"
            )


def _mending(scan: Scan, remedies: Remedies) -> Iterator[str]:
    """Yield the remedies for the processes of each GPU, job and cause: why, then the commands."""
    alike: dict[object, list[tuple[AuditedProcess, Remedy]]] = {}
    for process in scan.processes:
        remedy = remedies.of(process)
        if remedy is not None:
            facts = process.facts
            key = facts.gpus, facts.membership.job, process.cause
            alike.setdefault(key, []).append((process, remedy))
    for those in alike.values():
        (first, remedy), *others = those
        more = f" and {len(others)} more" if others else ""
        commands = list(dict.fromkeys(it.command for _, it in those if it.command is not None))
        what = "; to fix it now:" if commands else ""
        yield f"{process_name(first.facts)}{more}: {first.cause}: {remedy.why}{what}"
        yield from (f"  {command}" for command in commands[:MOST_COMMANDS])
        if len(commands) > MOST_COMMANDS:
            yield f"  and {len(commands) - MOST_COMMANDS} more: affinityd audit --json"


def memory_lines(scan: Scan, memory: Mapping[int, ByNode | str]) -> Iterator[str]:
    """Yield a line for every process: the nodes of its memory."""
    for facts in (process.facts for process in scan.processes):
        match memory.get(facts.pid):
            case None:
                continue
            case str(refusal):
                yield f"{process_name(facts)}: its memory was not read: {refusal}"
            case resident:
                yield f"{process_name(facts)}: resident memory: {amounts(resident)}"


def nic_lines(scan: Scan, nics: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each finding on the RDMA devices of a process."""
    for facts in (process.facts for process in scan.processes):
        yield from (f"{process_name(facts)}: {said}" for said in nics.get(facts.pid, ()))
