"""Where each process of a scan is to run, and so by what its masks are judged. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from affinityd.audit.model import AuditedProcess, GpuKey, Job, ProcessFacts, Scan
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import CpuSet, several
from affinityd.enforce.exemptions import ExemptError
from affinityd.enforce.jobs import ScanJobs
from affinityd.enforce.model import ALLOCATION, NO_PLAN, UNKNOWN_CPUSET, UNKNOWN_PLACE, TargetCpus
from affinityd.enforce.placement import JobHistory, JobPlans, SharedCpus
from affinityd.enforce.policy.model import Treatment
from affinityd.errors import UnsatisfiableError
from affinityd.topology import nearness

#: The masks that we gave a process.
Given = Callable[[ProcessFacts], frozenset[CpuSet]]


class Targets:
    """The standards of one scan."""

    def __init__(
        self, scan: Scan, jobs: ScanJobs, remedies: Remedies, plans: JobPlans, history: JobHistory
    ) -> None:
        """Take what was found, the jobs it belongs to, and what is known of the machine."""
        self._scan = scan
        self._jobs = jobs
        self._remedies = remedies
        self._plans = plans
        self._history = history
        self._near = cache(self._near_cpus)
        self._shared = cache(self._shared_cpus)

    def of(
        self, process: AuditedProcess, job: Job, treatment: Treatment, given: Given
    ) -> TargetCpus:
        """Return that of a process in a job. Raises ExemptError where it has no place."""
        facts, holder = process.facts, self._jobs.holder(process).facts
        gpus = self._jobs.gpus(facts)
        near, cpuset, shared = self._near(gpus), _cpuset(facts), _cpuset(holder)
        if cpuset.isdisjoint(near):
            kept_away = replace(process, cause=nearness.ALLOCATION)
            raise ExemptError(ALLOCATION, str(self._remedies.of(kept_away)))
        try:
            cpus = self._plans.of(self._shared(job, shared), treatment, gpus, cpuset)
        except UnsatisfiableError as error:
            raise ExemptError(NO_PLAN, str(error)) from None
        online = self._plans.topology.online
        ours = given(holder) | given(facts)
        return TargetCpus(cpus, cpuset & online, ours | _main_masks(holder), ours)

    def _near_cpus(self, gpus: tuple[GpuKey, ...]) -> CpuSet:
        """Return what is near any of the GPUs. Raises ExemptError where one may be anywhere."""
        near = {gpu: self._scan.near.get(gpu) for gpu in gpus}
        known = [cpus for cpus in near.values() if cpus is not None]
        if len(known) < len(near):
            lost = several("GPU", (index for (_, index), cpus in near.items() if cpus is None))
            raise ExemptError(UNKNOWN_PLACE, gpus=lost)
        return frozenset[int]().union(*known)

    def _shared_cpus(self, job: Job, cpuset: CpuSet) -> SharedCpus:
        return self._history.shared_cpus(job, cpuset, self._plans.whole)


def _main_masks(holder: ProcessFacts) -> frozenset[CpuSet]:
    """Return the masks of a holder's main thread, now and at first: its descendants inherit them.

    A descendant's main thread may have been given a mask of its own.
    """
    masks = (holder.first_mask, *(thread.mask for thread in holder.threads[:1]))
    return frozenset(mask for mask in masks if mask is not None)


def _cpuset(facts: ProcessFacts) -> CpuSet:
    """Return what a process may use. Raises ExemptError where that is not known."""
    if facts.cpuset is None:
        raise ExemptError(UNKNOWN_CPUSET, pid=facts.pid)
    return facts.cpuset
