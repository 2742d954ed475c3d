"""The CPUs on which each process of a scan should run, by which its masks are judged. Pure.

A job's GPUs are its ranks, and a plan divides its CPUs. Processes on one GPU share its rank's
CPUs. Overlapping cpusets are planned together, and each process gets the part in its own cpuset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from affinityd.audit.allocations import HeldGpus, Share, Shares
from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.enforce.jobs import ScanJobs
from affinityd.enforce.model import ALLOCATION, NO_PLAN, UNKNOWN_CPUSET, UNKNOWN_PLACE, TargetCpus
from affinityd.enforce.policy.model import GRANTED, Treatment
from affinityd.enforce.verdict import ExemptError
from affinityd.planner.modes import MODES
from affinityd.recent import Recent
from affinityd.topology import nearness

#: affinityd's masks of a process.
Given = Callable[[ProcessFacts], frozenset[CpuSet]]

#: The GPUs of each job from scan to scan. One that was held once stays a rank: the end of a
#: process must move no other.
JobHistory = Recent[Job, HeldGpus]

RESERVED = "all CPUs of its cpuset that are near {gpus}, {cpus}, are reserved: reserve fewer"
NOT_ITS_OWN = (
    "mode {mode} gives its job CPUs {cpus} on {gpus}, and none of them is both near and in the "
    "cpuset of this process, {cpuset}: use a mode in which ranks share CPUs, like node, "
    "or one cpuset for all processes of the job"
)


def note(history: JobHistory, jobs: ScanJobs, boot: float) -> None:
    """Note which GPUs the processes of each job hold; `boot`: when, seconds since boot."""
    history.begin(boot)
    for job, holders in jobs.holders.items():
        now = frozenset((gpu, it.cpuset) for it in holders if it.cpuset for gpu in it.gpus)
        held = {gpu for gpu, _ in now}
        history[job] = now.union(it for it in history.get(job) or () if it[0] not in held)


class Places:
    """The target CPUs of the processes of one scan."""

    def __init__(
        self,
        scan: Scan,
        shares: Shares,
        jobs: ScanJobs,
        remedies: Remedies,
        *,
        history: JobHistory,
        given: Given,
    ) -> None:
        """Take the results of a scan; `history` has its jobs already."""
        self._scan = scan
        self._shares = shares
        self._jobs = jobs
        self._history = history
        self._remedies = remedies
        self._given = given
        self._share = cache(self._share_of)
        self._place = cache(self._place_of)

    def target(self, process: AuditedProcess, job: Job, treatment: Treatment) -> TargetCpus:
        """Return the standard of a process in a job. Raises ExemptError where it has no place."""
        facts, holder = process.facts, self._jobs.holder(process).facts
        gpus = self._jobs.gpus(facts)
        near, cpuset, shared = self._near(gpus), _cpuset(facts), _cpuset(holder)
        if cpuset.isdisjoint(near):
            kept_away = replace(process, cause=nearness.ALLOCATION)
            raise ExemptError(ALLOCATION, str(self._remedies.of(kept_away)))
        place = self._place(self._share(job, shared), treatment, gpus, cpuset)
        ours = self._given(holder) | self._given(facts)
        online = self._shares.topology.online
        return TargetCpus(place, cpuset & online, ours | _main_masks(holder), ours)

    def _place_of(
        self, share: Share, treatment: Treatment, gpus: tuple[GpuKey, ...], cpuset: CpuSet
    ) -> CpuSet:
        """Return the CPUs of a process with these GPUs and this cpuset, one at least.

        Raises ExemptError if there is no plan, or no near CPU in it for this process.
        """
        near, mode = self._near(gpus), treatment.options.mode
        wanted = cpuset if MODES[mode].everywhere else cpuset & near
        names = several("GPU", (index for _, index in gpus))
        if wanted.isdisjoint(self._shares.whole):
            cpus = format_list(near & cpuset)
            raise ExemptError(NO_PLAN, RESERVED.format(gpus=names, cpus=cpus))
        planned = self._planned(share, treatment)
        parts = [planned[gpu] for gpu in gpus if gpu in planned]
        place = frozenset[int]().union(*(it & cpuset for it in parts if it & wanted))
        if not place:
            cpus, its = map(format_list, (frozenset[int]().union(*parts), cpuset))
            why = NOT_ITS_OWN.format(gpus=names, cpus=cpus, mode=mode, cpuset=its)
            raise ExemptError(NO_PLAN, why)
        return place

    def _planned(self, share: Share, treatment: Treatment) -> dict[GpuKey, CpuSet]:
        """Return the CPUs of every rank. Raises ExemptError where there is no plan."""
        asked = treatment.cpus if isinstance(treatment.cpus, int) else None
        if treatment.cpus == GRANTED:
            asked = self._shares.asked(share)
        options = replace(treatment.options, cpus=asked)
        ranks = self._shares.ranks(share, options)
        if isinstance(ranks, str):
            raise ExemptError(NO_PLAN, f"mode {options.mode}: {ranks}")
        return {rank.gpu.key: rank.cpus for rank in ranks}

    def _near(self, gpus: tuple[GpuKey, ...]) -> CpuSet:
        """Return the CPUs near any of the GPUs. Raises ExemptError if a node is unknown."""
        near = {gpu: self._scan.near.get(gpu) for gpu in gpus}
        known = [cpus for cpus in near.values() if cpus is not None]
        if len(known) < len(near):
            lost = several("GPU", (index for (_, index), cpus in near.items() if cpus is None))
            raise ExemptError(UNKNOWN_PLACE, gpus=lost)
        return frozenset[int]().union(*known)

    def _share_of(self, job: Job, cpuset: CpuSet) -> Share:
        held = self._history.get(job) or frozenset()
        return self._shares.of(cpuset, self._jobs.holders.get(job, ()), held)


def _main_masks(holder: ProcessFacts) -> frozenset[CpuSet]:
    """Return the masks of a holder's main thread, now and at first: its descendants inherit them.

    A descendant's main thread may have a mask of its own.
    """
    masks = (holder.first_mask, *(thread.mask for thread in holder.threads[:1]))
    return frozenset(mask for mask in masks if mask is not None)


def _cpuset(facts: ProcessFacts) -> CpuSet:
    """Return the CPUs a process may use. Raises ExemptError if they are unknown."""
    if facts.cpuset is None:
        raise ExemptError(UNKNOWN_CPUSET, pid=facts.pid)
    return facts.cpuset
