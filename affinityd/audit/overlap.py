"""CPUs that two jobs have each pinned processes to, as if for themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from affinityd.audit.model import Audited, GpuKey, Job, ProcessFacts
from affinityd.cpuset import CpuSet

Owner = tuple[str, Job | str | int]


def overlap(processes: Iterable[Audited], near: Mapping[GpuKey, CpuSet | None]) -> CpuSet:
    """Return the CPUs in the unique pins of two jobs or more.

    A pin is unique where it is a part of what the process could have near its GPU: whoever takes
    all of that shares it. Threads that a library pinned count as little as known daemons.
    """
    pins: dict[Owner, set[CpuSet]] = defaultdict(set)
    for process in processes:
        near_cpus = near[process.facts.gpu]
        if near_cpus is not None and not process.is_daemon:
            pins[_owner(process.facts)] |= _unique(process, near_cpus)
    owners = Counter(cpu for masks in pins.values() for cpu in frozenset().union(*masks))
    return frozenset(cpu for cpu, number in owners.items() if number > 1)


def _unique(process: Audited, near: CpuSet) -> set[CpuSet]:
    cpuset = process.facts.cpuset
    could_have = near if cpuset is None else near & cpuset
    threads = zip(process.facts.threads, process.pinned_itself, strict=True)
    return {thread.mask for thread, itself in threads if not itself and thread.mask < could_have}


def _owner(facts: ProcessFacts) -> Owner:
    """Return whose a process is: its job's, else its container's, else its session's."""
    if facts.membership.job is not None:
        return "job", facts.membership.job
    if facts.membership.container is not None:
        return "container", facts.membership.container
    return "session", facts.pid if facts.session is None else facts.session
