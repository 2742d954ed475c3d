"""CPUs that two jobs have each pinned processes to, as if for themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.cpuset import CpuSet

PinOwners = tuple[str, ...]  #: whose pins: `slurm 7`, `container cd34cd34cd34`, `session 4711`


def overlap(processes: Iterable[AuditedProcess]) -> Mapping[int, PinOwners]:
    """Return the CPUs in the unique pins of two jobs or more → whose those are.

    A pin is unique where it is a part of what the process could have near its GPUs: a process that
    takes all of that shares it. Threads that a library pinned count as little as known daemons.
    """
    pins: defaultdict[str, set[CpuSet]] = defaultdict(set)
    for process in processes:
        if process.near is not None and not process.is_daemon:
            pins[_owner(process.facts)] |= _unique(process, process.near)
    owners: defaultdict[int, list[str]] = defaultdict(list)
    for owner, masks in sorted(pins.items()):
        for cpu in frozenset().union(*masks):
            owners[cpu].append(owner)
    return {cpu: tuple(those) for cpu, those in owners.items() if len(those) > 1}


def by_owners(overlapping: Mapping[int, PinOwners]) -> Mapping[PinOwners, CpuSet]:
    """Return whose pins → the CPUs that are in those of all of them."""
    cpus: defaultdict[PinOwners, set[int]] = defaultdict(set)
    for cpu, owners in sorted(overlapping.items()):
        cpus[owners].add(cpu)
    return {owners: frozenset(those) for owners, those in cpus.items()}


def _unique(process: AuditedProcess, near: CpuSet) -> set[CpuSet]:
    cpuset = process.facts.cpuset
    could_have = near if cpuset is None else near & cpuset
    return {mask for mask in process.judged_masks if mask < could_have}


def _owner(facts: ProcessFacts) -> str:
    """Return the owner of a process: its job, else its container, else its session."""
    job, container = facts.membership.job, facts.membership.container
    if job is not None:
        return f"{job.scheduler} {job.id}"
    if container is not None:
        return f"container {container[:12]}"
    return f"session {facts.pid if facts.session is None else facts.session}"


def divided(processes: Iterable[AuditedProcess]) -> frozenset[int]:
    """Return the pids of the processes below which another one holds other GPUs.

    What is right for such a process is not for all below it.
    """
    by_pid = {process.facts.pid: process.facts for process in processes}
    return frozenset(
        above.pid
        for facts in by_pid.values()
        if facts.holding is not None
        for above in _above(facts, by_pid)
        if {*above.gpus} != {*facts.gpus}
    )


def _above(facts: ProcessFacts, by_pid: Mapping[int, ProcessFacts]) -> Iterator[ProcessFacts]:
    """Yield a process's ancestors; they were read one after the other, and may seem a circle."""
    met = {facts.pid}
    parent = by_pid.get(facts.parent)
    while parent is not None and parent.pid not in met:
        met.add(parent.pid)
        yield parent
        parent = by_pid.get(parent.parent)
