"""The result of verify, as a table or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from affinityd.audit.verify import Verification, matches
from affinityd.cli.console import aligned
from affinityd.cli.render.audit_rows import NOT_KNOWN, amounts, process_name
from affinityd.cpuset import CpuSet, format_list
from affinityd.linux.processes import Thread
from affinityd.text import count
from affinityd.topology.model import Topology

COLUMNS = (
    *("pid", "name", "gpu", "node", "threads", "placement", "cpulist", "ran last on", "memory"),
)
NUMBERS = {"pid", "threads"}


def table(found: Sequence[Verification]) -> Iterator[str]:
    """Yield lines: the threads of every process, then the remarks on each."""
    yield from aligned(COLUMNS, [row for it in found for row in _rows(it)], NUMBERS)
    far = [it for it in found if it.far]
    is_tree = len(far) > 1 and len({it.remedy for it in far}) == 1
    for it in found:
        name = process_name(it.process.facts)
        if it.resident is not None:
            yield f"{name}: resident memory: {amounts(it.resident)}"
        yield from (f"{name}: note: {text}" for text in it.notes)
        mismatches = it.others if is_tree else it.mismatches
        yield from (f"{name}: mismatch: {text}" for text in mismatches)
    if is_tree:
        below = count(len([it for it in far if it is not found[0]]), "descendant")
        first = process_name(found[0].process.facts)
        who = f"{first} and {below}" if found[0].far else f"{below} of {first}"
        words = ", ".join(sorted({word for it in far for word in it.far}))
        yield f"{who}: mismatch: may run far from their GPUs ({words}); {far[0].remedy}"


def _rows(found: Verification) -> Iterator[tuple[str, ...]]:
    """Yield a row for the threads of each mask, that of the main thread first."""
    alike: dict[tuple[str, CpuSet], list[Thread]] = {}
    for thread, placement, _ in found.process.placed:
        alike.setdefault((placement, thread.mask), []).append(thread)
    on = (gpu.numa_node for gpu in found.near.gpus)
    nodes = ",".join(NOT_KNOWN if node is None else str(node) for node in on)
    for (placement, mask), threads in alike.items():
        yield (
            str(found.process.facts.pid),
            threads[0].name,
            format_list(gpu.index for gpu in found.near.gpus),
            nodes,
            str(len(threads)),
            placement,
            format_list(mask),
            format_list(thread.last_cpu for thread in threads),
            NOT_KNOWN if found.policy is None else str(found.policy),
        )


def document(topology: Topology, found: Sequence[Verification]) -> dict[str, Any]:
    """Return the JSON document: every thread, masks as cpulists, resident memory in bytes."""
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    return {
        "node": topology.name,
        "matches": matches(found),
        "processes": [_process(it, node_of) for it in found],
    }


def _process(found: Verification, node_of: Mapping[int, int | None]) -> dict[str, Any]:
    near, policy = found.near, found.policy
    return {
        "pid": found.process.facts.pid,
        "name": found.process.facts.name,
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
            for thread, placement, _ in found.process.placed
        ],
        "memory": policy and {"policy": policy.policy, "nodes": sorted(policy.nodes)},
        "resident": found.resident,
        "mismatches": found.mismatches,
        "notes": found.notes,
    }
