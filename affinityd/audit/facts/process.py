"""The facts of one process."""

from __future__ import annotations

from dataclasses import dataclass, field

from affinityd.audit.facts.holding import GpuKey, Holding
from affinityd.audit.facts.job import Job, Membership, PodContainer
from affinityd.audit.facts.kubelet import ContainerResources
from affinityd.cpuset import CpuSet
from affinityd.linux.processes import ENDED, Thread


@dataclass(frozen=True)
class ProcessFacts:
    """One process as it was found."""

    pid: int
    name: str
    uid: int | None  #: real user id; None: its status could not be read
    start: int  #: clock ticks since boot
    parent: int
    state: str  #: proc_pid_stat(5): R, S, D, Z …
    gpu: GpuKey  #: its own, or that of the nearest ancestor that holds one
    holding: Holding | None  #: None: a descendant that holds no GPU itself
    membership: Membership = field(default_factory=Membership)
    cpuset: CpuSet | None = None  #: the CPUs that its cgroup allows; None: unknown
    threads: tuple[Thread, ...] = ()  #: the main one first; (): it has ended
    session: int | None = None  #: pid of the process that began its session
    service: str | None = None  #: systemd's unit of it, by its cgroup's path
    holder: int | None = None  #: pid of the process that it works for; None: it holds a GPU itself
    beside: tuple[GpuKey, ...] = ()  #: the GPUs besides `gpu` that it, or its holder, uses
    cgroups: str = ""  #: /proc/PID/cgroup
    #: The cpuset was chosen for its job; else a Slurm job may have been given less, by masks alone.
    is_confined: bool = True
    cpu_limit: int | None = None  #: CPUs' worth of time that its cgroup may use; None: not limited
    given: ContainerResources | None = None  #: by kubelet, to its container; None: not known
    first_mask: CpuSet | None = None  #: its main thread's when first seen; None: unknown

    @property
    def gpus(self) -> tuple[GpuKey, ...]:
        """All of its GPUs, that of most memory first."""
        return (self.gpu, *self.beside)

    @property
    def gpus_given(self) -> tuple[GpuKey, ...]:
        """All of its GPUs, and those that kubelet gave its container: others may use these."""
        return self.gpus if self.given is None else (*self.gpus, *self.given.gpus)

    @property
    def owner(self) -> str | None:
        """Its job or container, as people read it: `pod team/train-0` where kubelet names it."""
        given = self.given
        return self.membership.owner if given is None else f"pod {given.namespace}/{given.pod}"

    @property
    def part(self) -> Job | None:
        """Its container of a pod, where kubelet names it; else its job."""
        job, given = self.membership.job, self.given
        if job is None or given is None:
            return job
        return PodContainer(job.scheduler, job.id, given.namespace, given.pod, given.container)

    @property
    def running(self) -> tuple[Thread, ...]:
        """The threads that run: the main one may have ended before the others."""
        return self.threads[1:] if self.state in ENDED else self.threads
