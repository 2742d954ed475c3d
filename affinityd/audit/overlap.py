"""CPUs that more than one job has pinned for its own use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from affinityd.audit.model import AuditedProcess
from affinityd.cpuset import CpuSet
from affinityd.linux.processes import ancestors

PinOwners = tuple[str, ...]  #: whose pins: `slurm 7`, `container cd34cd34cd34`, `session 4711`


def overlap(processes: Iterable[AuditedProcess]) -> Mapping[PinOwners, CpuSet]:
    """Return owners of unique pins, two or more → the CPUs that all these pins share.

    A pin is unique if it is a part of the near CPUs that the process could have: a process that
    takes all of that shares it. Neither threads that a library pinned nor known daemons count.
    """
    pins: defaultdict[str, set[int]] = defaultdict(set)
    for process in processes:
        if process.near is not None and not process.is_daemon:
            facts = process.facts
            session = facts.pid if facts.session is None else facts.session
            could_have = process.near if facts.cpuset is None else process.near & facts.cpuset
            unique = (mask for mask in process.judged_masks if mask < could_have)
            pins[facts.owner or f"session {session}"].update(*unique)
    cpus: defaultdict[PinOwners, set[int]] = defaultdict(set)
    for cpu in sorted(set[int]().union(*pins.values())):
        owners = tuple(sorted(owner for owner, pinned in pins.items() if cpu in pinned))
        if len(owners) > 1:
            cpus[owners].add(cpu)
    return {owners: frozenset(those) for owners, those in cpus.items()}


def divided(processes: Iterable[AuditedProcess]) -> frozenset[int]:
    """Return the pids of the processes below which another one holds other GPUs.

    A pin of such a process does not suit all its descendants.
    """
    facts_of = {process.facts.pid: process.facts for process in processes}
    parents = {pid: facts.parent for pid, facts in facts_of.items()}
    return frozenset(
        above
        for facts in facts_of.values()
        if facts.holding is not None
        for above in ancestors(facts.parent, parents)
        if {*facts_of[above].gpus} != {*facts.gpus}
    )
