"""Judges where a process may run, seen from its GPUs. Pure: facts in, judgment out.

CPUs near any of its GPUs are near: a process that works on several has threads for each.

Libraries pin threads of their own (NCCL near its NIC, OpenMP one a core): those are shown, and make
no mismatch. Where a thread ran last is not judged: one that sleeps was there long ago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from affinityd.audit.model import SLURM, AuditedProcess, GpuKey, PlacedThread, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.linux.processes import ancestors
from affinityd.topology.model import Topology
from affinityd.topology.nearness import (
    MIXED,
    UNKNOWN,
    UNPINNED,
    Vicinity,
    cause_of,
    placement,
    vicinity,
)

#: Daemons of GPU nodes that may hold GPUs, by as much of the name as the kernel keeps,
#: 15 characters. A user's process, or a Slurm job's, is none of them, however it is called.
DAEMONS = frozenset(
    name[:15]
    for name in (
        *("nvidia-persistenced", "nvidia-fabricmanager", "nvidia-mig-manager", "Xorg"),
        *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-device-plugin"),
        *("nv-hostengine", "dcgm-exporter", "nvidia_gpu_exporter", "gpu-feature-discovery"),
        *("amd-metrics-exporter", "gpuagent", "npu-exporter"),
    )
)

#: Vicinities that are kept, one for each set of GPUs: users may form very many sets.
MOST_KEPT = 1024

FIRST_USER = 1000  #: the uids below are the system's, login.defs(5): UID_MIN


class Judge:
    """Judges by one topology."""

    def __init__(self, topology: Topology) -> None:
        def found(keys: tuple[GpuKey, ...]) -> Vicinity:
            return vicinity(topology, [gpu for gpu in topology.gpus if gpu.key in keys])

        self.topology = topology
        self.vicinity = lru_cache(MOST_KEPT)(found)
        self._core_of = {cpu: frozenset(core.cpus) for core in topology.cores for cpu in core.cpus}

    @property
    def near(self) -> Mapping[GpuKey, CpuSet | None]:
        """The near CPUs of every GPU; None: not known."""
        return {gpu.key: _known(self.vicinity((gpu.key,))) for gpu in self.topology.gpus}

    def judge(self, facts: ProcessFacts, *, of_daemon: bool = False) -> AuditedProcess:
        """Return the judgment of a process; `of_daemon`: a known daemon has started it."""
        near = self.vicinity(facts.gpus)
        known = (facts.first_mask, *(thread.mask for thread in facts.threads[:1]))
        mains = {mask for mask in known if mask is not None}
        of_mask = {
            mask: (placement(self.topology, near, mask), self._is_its_own(mask, mains))
            for mask in {thread.mask for thread in facts.threads}
        }
        audited = AuditedProcess(
            facts,
            UNKNOWN,
            tuple(PlacedThread(thread, *of_mask[thread.mask]) for thread in facts.threads),
            is_daemon=of_daemon or is_known_daemon(facts),
            near=_known(near),
        )
        judged, words = audited.judged, {*audited.judged.values()}
        together = MIXED if len(words) > 1 else next(iter(words), UNKNOWN)  # if none of them runs
        return replace(
            audited,
            placement=UNPINNED if UNPINNED in words else together,
            cause=cause_of(judged, near.cpus, facts.cpuset),
        )

    def _is_its_own(self, mask: CpuSet, mains: Collection[CpuSet]) -> bool:
        """Whether a library chose a thread's mask: narrower than the main thread's, or one core.

        Or narrower than that was before the process was pinned without this thread.
        """
        if mask in mains:
            return False
        core = self._core_of.get(min(mask), frozenset())
        return len(mask) == 1 or mask <= core or any(mask < main for main in mains)


def is_known_daemon(facts: ProcessFacts) -> bool:
    """Return whether a process is one that runs on every node, and is not to be counted."""
    job = facts.membership.job
    is_systems = facts.uid is not None and facts.uid < FIRST_USER
    return facts.name in DAEMONS and is_systems and (job is None or job.scheduler != SLURM)


def _known(near: Vicinity) -> CpuSet | None:
    return near.cpus if near.nodes else None


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
            unique = (mask for mask in process.judged if mask < could_have)
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
