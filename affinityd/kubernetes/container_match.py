"""Which container of a pod a process is in, by the GPUs and CPUs that kubelet gave each. Pure.

Kubelet names no pod's uid, and a cgroup has nothing else: what both know is who has which GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import KUBERNETES, Job
from affinityd.audit.facts.kubelet import ContainerResources
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess
from affinityd.kubernetes.device_ids import Device, devices
from affinityd.topology.model import Topology

#: Returns the GPUs whose files a process has in its /dev; none where that cannot be read.
DeviceFiles = Callable[[int], frozenset[GpuKey]]


def is_of_pod(process: AuditedProcess) -> bool:
    """Return whether a process is in a container of a pod, and no known daemon."""
    job = process.facts.membership.job
    return job is not None and job.scheduler == KUBERNETES and not process.is_daemon


def with_containers(
    candidates: Sequence[Candidate], found: Sequence[AuditedProcess], device_files: DeviceFiles
) -> list[AuditedProcess]:
    """Return the processes, those of pods with what kubelet gave their containers.

    Where several containers fit, or processes of several pods fit one, it is not known.
    `device_files` is called where no exclusive CPUs decide.
    """
    groups: defaultdict[tuple[Job | None, str | None], list[ProcessFacts]] = defaultdict(list)
    for process in filter(is_of_pod, found):
        of = process.facts.membership
        groups[of.job, of.container].append(process.facts)
    matches = {of: _match(its, candidates, device_files) for of, its in groups.items()}
    pods: defaultdict[Candidate | None, set[Job | None]] = defaultdict(set)
    for (job, _), match in matches.items():
        pods[match].add(job)
    given = {
        facts.pid: match.its
        for of, match in matches.items()
        if match is not None and len(pods[match]) == 1
        for facts in groups[of]
    }
    return [
        replace(it, facts=replace(it.facts, given=given[it.facts.pid]))
        if it.facts.pid in given
        else it
        for it in found
    ]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A container that kubelet gave GPUs of this node."""

    its: ContainerResources
    devices: frozenset[Device]

    @classmethod
    def all_of(
        cls, containers: Iterable[ContainerResources], topology: Topology
    ) -> Sequence[Candidate]:
        """Return those with GPUs."""
        with_devices = ((it, devices(it, topology)) for it in containers)
        return [
            cls(replace(it, gpus=tuple(sorted({gpu for gpu, _ in its}))), its)
            for it, its in with_devices
            if its
        ]

    def fits(self, facts: ProcessFacts) -> bool:
        """Return whether a process uses no other device than these, and no other CPU."""
        holding = facts.holding
        mig = None if holding is None else holding.mig
        used = ((gpu, mig if gpu == facts.gpu else None) for gpu in facts.gpus)
        cpus, cpuset = self.its.cpus, facts.cpuset
        return all(map(self._has, used)) and (not cpus or cpuset is None or cpuset <= cpus)

    def _has(self, device: Device) -> bool:
        gpu, mig = device
        if mig is None:
            return gpu in self.its.gpus
        return not self.devices.isdisjoint({device, (gpu, None)})


def _match(
    processes: Sequence[ProcessFacts], candidates: Iterable[Candidate], device_files: DeviceFiles
) -> Candidate | None:
    """Return the only container that fits; None: there is none, or there are several.

    Exclusive CPUs tell containers apart, else the files in a container's /dev: one with files of
    other GPUs got them by another way than kubelet.
    """
    fitting = [it for it in candidates if all(map(it.fits, processes))]
    exclusive = [it for it in fitting if it.its.cpus]
    if exclusive and any(it.cpuset for it in processes):
        fitting = exclusive
    elif fitting and (files := device_files(processes[0].pid)):
        fitting = [it for it in fitting if files.issubset(it.its.gpus)]
        if len(fitting) > 1:
            fitting = [it for it in fitting if files.issuperset(it.its.gpus)]
    return fitting[0] if len(fitting) == 1 else None
