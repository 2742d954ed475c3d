"""What was verified, as a table for a person or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from affinityd.audit.verify import Verification
from affinityd.cli.console import aligned
from affinityd.cpuset import format_list
from affinityd.linux.processes import Thread
from affinityd.text import count
from affinityd.topology.model import Topology
from affinityd.topology.nearness import FAR

COLUMNS = (
    *("pid", "name", "gpu", "node", "threads", "placement", "cpulist", "ran last on", "memory"),
)
NUMBERS = {"pid", "threads"}


def table(findings: Sequence[Verification]) -> Iterator[str]:
    """Yield lines: the threads of every process, then what is to be said of each."""
    yield from aligned(COLUMNS, [row for it in findings for row in _rows(it)], NUMBERS)
    far = [finding for finding in findings if finding.far]
    of_tree = len(far) > 1
    for finding in findings:
        name = f"process {finding.process.pid} ({finding.process.name})"
        if finding.process.resident is not None:
            yield f"{name}: resident memory: {amounts(finding.process.resident)}"
        yield from (f"{name}: note: {text}" for text in finding.notes)
        mismatches = finding.others if of_tree else finding.mismatches
        yield from (f"{name}: mismatch: {text}" for text in mismatches)
    if of_tree:
        yield _of_tree(findings[0], far)


def _of_tree(first: Verification, far: Sequence[Verification]) -> str:
    """Return one sentence for all processes with threads that may run far away."""
    name = f"process {first.process.pid} ({first.process.name})"
    below = len(far) - (first in far)
    who = (
        f"{name} and {count(below, 'descendant')}"
        if first in far
        else (f"{count(below, 'descendant')} of {name}")
    )
    words = sorted({word for it in far for word in it.placements}.intersection(FAR))
    return f"{who}: mismatch: may run far from their GPUs ({', '.join(words)}); {far[0].remedy}"


def _rows(finding: Verification) -> Iterator[tuple[str, ...]]:
    """Yield a row for the threads of each mask, that of the main thread first."""
    process = finding.process
    alike: dict[tuple[str, str], list[Thread]] = {}
    for thread, placement in zip(process.threads, finding.placements, strict=True):
        alike.setdefault((placement, format_list(thread.mask)), []).append(thread)
    for (placement, cpulist), group in alike.items():
        yield (
            str(process.pid),
            group[0].name,
            format_list(gpu.index for gpu in finding.near.gpus),
            ",".join(_number(gpu.numa_node) for gpu in finding.near.gpus),
            str(len(group)),
            placement,
            cpulist,
            format_list(thread.last_cpu for thread in group),
            "?" if process.policy is None else str(process.policy),
        )


def _number(number: int | None) -> str:
    return "?" if number is None else str(number)


def amounts(resident: Mapping[int, int]) -> str:
    """Return resident memory by NUMA node, in bytes, as a person reads it."""
    return ", ".join(
        f"node {node} {size / 2**20:.0f} MiB" for node, size in sorted(resident.items())
    )


def document(topology: Topology, findings: Sequence[Verification]) -> dict[str, Any]:
    """Return the JSON document: every thread, masks as cpulists, resident memory in bytes."""
    return {
        "node": topology.name,
        "matches": not any(finding.mismatches for finding in findings),
        "processes": [_process(topology, finding) for finding in findings],
    }


def _process(topology: Topology, finding: Verification) -> dict[str, Any]:
    process, near = finding.process, finding.near
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    return {
        "pid": process.pid,
        "name": process.name,
        "gpus": [
            {"index": gpu.index, "pci_bus_id": gpu.pci_bus_id, "numa_node": gpu.numa_node}
            for gpu in near.gpus
        ],
        "near": {"cpulist": format_list(near.cpus), "memory_nodes": sorted(near.memory)},
        "threads": [
            {
                "tid": thread.tid,
                "name": thread.name,
                "placement": placement,
                "cpulist": format_list(thread.mask),
                "last_cpu": thread.last_cpu,
                "last_node": node_of.get(thread.last_cpu),
            }
            for thread, placement in zip(process.threads, finding.placements, strict=True)
        ],
        "memory": process.policy
        and {"policy": process.policy.policy, "nodes": sorted(process.policy.nodes)},
        "resident": process.resident,
        "mismatches": finding.mismatches,
        "notes": finding.notes,
    }
