"""A scan as a JSON document: what `GET /audit` answers and `affinityd audit --json` prints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from affinityd.audit.model import AuditedProcess, CpuTime, GpuKey, ProcessFacts, Scan
from affinityd.audit.overlap import by_owners
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import CpuSet, format_list
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import CAUSES, PLACEMENTS

#: What is said of a GPU whose processes are not: a zero would be a finding.
NOT_KNOWN = dict.fromkeys(
    ("processes", "threads", "mismatch", "orphans", "cpu_seconds", "remote_cpu_seconds")
)

AT_ONCE = 500  #: threads that are written in one call

Sees = Callable[[AuditedProcess], bool]  #: whether somebody may see a process


@dataclass
class Counts:
    """One GPU's processes, counted; known daemons are not."""

    processes: Counter[str] = field(default_factory=Counter)  #: by placement
    threads: Counter[str] = field(default_factory=Counter)  #: by placement
    causes: Counter[str] = field(default_factory=Counter)  #: processes by cause
    orphans: int = 0


class Lists(dict[CpuSet, str]):
    """CPU sets → cpulists: a scan has many threads and few masks."""

    def __missing__(self, cpus: CpuSet) -> str:
        """Write one that is asked for for the first time."""
        text = self[cpus] = format_list(cpus)
        return text


def everything(_process: AuditedProcess) -> bool:
    """Let every process be seen."""
    return True


def counts(scan: Scan) -> dict[GpuKey, Counts]:
    """Return what is counted of every GPU; a process that uses several counts for its first."""
    found = {key: Counts() for key in scan.near}
    for process in scan.processes:
        if not process.is_daemon and process.facts.gpu in found:
            its = found[process.facts.gpu]
            its.processes[process.placement] += 1
            its.threads.update(process.placements)
            its.causes.update([process.cause] if process.cause else [])
            its.orphans += process.orphan is not None
    return found


def document(topology: Topology, scan: Scan, sees: Sees | None) -> dict[str, Any]:
    """Return the document for somebody who sees these processes; None: counts alone.

    Whose pins overlap is told to those who see everybody's processes.
    """
    if sees is None:
        return _head(topology, scan, sees)
    return {**_head(topology, scan, sees), "processes": list(_processes(topology, scan, sees))}


def render(topology: Topology, scan: Scan, sees: Sees | None) -> bytes:
    """Return the document as JSON, in one line.

    A process at a time, and some threads: to write all at once would hold the interpreter, and
    plans are to be made.
    """
    head = json.dumps(_head(topology, scan, sees))
    if sees is None:
        return head.encode()
    processes = ", ".join(map(_written, _processes(topology, scan, sees)))
    return f'{head[:-1]}, "processes": [{processes}]}}'.encode()


def _written(process: dict[str, Any]) -> str:
    threads = process["threads"]
    parts = (threads[start : start + AT_ONCE] for start in range(0, len(threads), AT_ONCE))
    listed = ", ".join(json.dumps(part)[1:-1] for part in parts)
    return f"{json.dumps({**process, 'threads': []})[:-2]}{listed}]}}"


def _head(topology: Topology, scan: Scan, sees: Sees | None) -> dict[str, Any]:
    counted = counts(scan)
    head = {
        "node": topology.name,
        "time": rfc3339(scan.time),
        "seconds": scan.seconds,
        "sees": "counts" if sees is None else "all" if sees is everything else "own",
        "gpus": [_gpu(gpu, scan, counted[gpu.key]) for gpu in topology.gpus if gpu.key in counted],
        "pin_overlap": format_list(scan.overlap),
        "skipped": scan.skipped,
        "numa_balancing": scan.numa_balancing,
        "notices": scan.notices,
    }
    return {**head, "pin_overlaps": _overlaps(scan)} if sees is everything else head


def _overlaps(scan: Scan) -> list[dict[str, Any]]:
    return [
        {"cpulist": format_list(cpus), "owners": owners}
        for owners, cpus in by_owners(scan.overlap).items()
    ]


def rfc3339(seconds: float) -> str:
    """Return a moment, seconds since the epoch, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _gpu(gpu: Gpu, scan: Scan, counted: Counts) -> dict[str, Any]:
    near = scan.near[gpu.key]
    return {
        "vendor": gpu.vendor,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "numa_node": gpu.numa_node,
        "near": None if near is None else format_list(near),
        "audited": gpu.key not in scan.unknown,
        "unknown": scan.unknown.get(gpu.key),
        **(NOT_KNOWN if gpu.key in scan.unknown else _known(gpu, scan, counted)),
    }


def _known(gpu: Gpu, scan: Scan, counted: Counts) -> dict[str, Any]:
    """Return what is said of a GPU whose processes are known."""
    time = scan.gpu_time.get(gpu.key, CpuTime())
    return {
        "processes": {placement: counted.processes[placement] for placement in PLACEMENTS},
        "threads": {placement: counted.threads[placement] for placement in PLACEMENTS},
        "mismatch": {cause: counted.causes[cause] for cause in CAUSES},
        "orphans": counted.orphans,
        "cpu_seconds": time.total,
        "remote_cpu_seconds": None if scan.near[gpu.key] is None else time.remote,
    }


def _processes(topology: Topology, scan: Scan, sees: Sees) -> Iterator[dict[str, Any]]:
    lists, remedies = Lists(), Remedies(topology, scan)
    return (
        _process(process, _remedies(process, remedies), lists)
        for process in scan.processes
        if sees(process)
    )


def _remedies(process: AuditedProcess, remedies: Remedies) -> str | None:
    """Return what mends its placement and, of an orphan, what ends it."""
    end = remedies.end(process) if process.orphan is not None else None
    return "; ".join(str(it) for it in (remedies.of(process), end) if it is not None) or None


def _process(process: AuditedProcess, remedy: str | None, lists: Lists) -> dict[str, Any]:
    facts = process.facts
    holding = facts.holding
    vendor, index = facts.gpu
    return {
        "pid": facts.pid,
        "name": facts.name,
        "uid": facts.uid,
        "parent": facts.parent,
        "state": facts.state,
        "vendor": vendor,
        "gpu": index,
        "gpus_beside": [{"vendor": vendor, "gpu": index} for vendor, index in facts.beside],
        "holds_gpu": holding is not None,
        "gpu_memory_bytes": holding and holding.memory_bytes,
        "mig": holding and holding.mig,
        "job": _job(facts),
        "container": facts.membership.container,
        "cpuset": None if facts.cpuset is None else lists[facts.cpuset],
        "placement": process.placement,
        "cause": process.cause,
        "remedy": remedy,
        "daemon": process.is_daemon,
        "orphan": process.orphan,
        "threads": [
            {
                "tid": thread.tid,
                "name": thread.name,
                "cpulist": lists[thread.mask],
                "last_cpu": thread.last_cpu,
                "placement": placement,
                "pinned_itself": itself,
            }
            for thread, placement, itself in zip(
                facts.threads, process.placements, process.pinned_itself, strict=True
            )
        ],
    }


def _job(facts: ProcessFacts) -> dict[str, str | None] | None:
    job = facts.membership.job
    if job is None:
        return None
    return {"scheduler": job.scheduler, "id": job.id, "step": facts.membership.step}
