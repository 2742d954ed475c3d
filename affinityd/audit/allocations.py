"""Jobs with fewer CPUs near their GPUs than they asked for: no mask of theirs is a mistake. Pure.

What delivers a plan adds far CPUs to those that are near, so that such a job keeps what it asked
for. A pin to the near ones would take CPUs away; another allocation is what helps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from affinityd.asked import asked_each
from affinityd.audit.model import ALLOCATION, SLURM, Audited, GpuKey, Job, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.planner import plan
from affinityd.plans import Demand, Options
from affinityd.topology import Topology

#: A job's processes with one cpuset divide it.
Pool = tuple[Job, CpuSet]
#: The CPUs that each GPU's processes are given, where these are more than are near.
Widened = Mapping[GpuKey, CpuSet]


def granted_cpus(processes: Iterable[ProcessFacts], cpus: CpuSet) -> int | None:
    """Return how many of the CPUs that a job's processes may use it asked for; None: not known.

    Slurm confines a job to what it asked for. A container may use CPUs that it shares with others:
    it asked for no more than its CPU limit.
    """
    limits: dict[str, int] = {}
    for facts in processes:
        job = facts.membership.job
        if job is not None and job.scheduler == SLURM:
            return len(cpus) if facts.is_confined else None
        if facts.cpu_limit is None:
            return None
        limits[facts.cgroups] = facts.cpu_limit
    return min(len(cpus), sum(limits.values())) if limits else None


def with_allocations(
    topology: Topology, reserved: CpuSet, found: Sequence[Audited]
) -> list[Audited]:
    """Return what was found; ALLOCATION is the cause where fewer CPUs are near than were asked for.

    `reserved` are the CPUs that no plan gives.
    """
    pools = _pools(found)
    widened = {
        pool: _widened(topology, pool[1] - reserved, holders, reserved)
        for pool, holders in pools.items()
    }
    pool_of = {facts.pid: pool for pool, holders in pools.items() for facts in holders}
    return [
        replace(it, cause=ALLOCATION)
        if (pool := pool_of.get(it.facts.holder or it.facts.pid))
        and _is_as_given(it, widened[pool])
        else it
        for it in found
    ]


def _pools(found: Iterable[Audited]) -> Mapping[Pool, Sequence[ProcessFacts]]:
    pools: defaultdict[Pool, list[ProcessFacts]] = defaultdict(list)
    for it in found:
        job, cpuset = it.facts.membership.job, it.facts.cpuset
        if it.facts.holding is not None and not it.is_daemon and job is not None and cpuset:
            pools[job, cpuset].append(it.facts)
    return pools


def _widened(
    topology: Topology, cpuset: CpuSet, holders: Sequence[ProcessFacts], reserved: CpuSet
) -> Widened:
    keys = {key for facts in holders for key in facts.gpus}
    gpus = tuple(gpu for gpu in topology.gpus if gpu.key in keys)
    cpus, whole = cpuset & topology.online, topology.online - reserved
    granted = granted_cpus(holders, cpus)
    if granted is None or not gpus:
        return {}
    asked = asked_each(topology, granted, len(gpus), has_node=granted == len(whole))
    try:
        made = plan(topology, Demand(gpus, cpus, whole, Options(mode="node", cpus=asked)))
    except UnsatisfiableError:
        return {}
    return {rank.gpu.key: rank.cpus for rank in made.ranks if rank.widening}


def _is_as_given(process: Audited, widened: Widened) -> bool:
    given = [widened[gpu] for gpu in process.facts.gpus if gpu in widened]
    place = frozenset[int]().union(*given, *([process.near] if given and process.near else ()))
    return process.is_mismatch and bool(given) and all(it <= place for it in process.judged_masks)
