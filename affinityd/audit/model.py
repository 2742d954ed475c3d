"""The processes that use GPUs, as drivers and open files name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from operator import add, sub
from types import MappingProxyType
from typing import NamedTuple

from affinityd.audit.memory import HostMemory
from affinityd.audit.waits import Waits
from affinityd.cpuset import CpuSet
from affinityd.discovery.nvml import NvmlLoad
from affinityd.linux.processes import ENDED, Thread
from affinityd.topology.model import Gpu, GpuKey


@dataclass(frozen=True)
class Holding:
    """A process that uses a GPU; if it uses several, the one with the lowest index."""

    pid: int  #: as /proc here numbers it
    gpu: GpuKey
    memory_bytes: int | None = None  #: of the GPU's memory; None: not known
    mig: str | None = None  #: UUID of the MIG instance
    beside: tuple[GpuKey, ...] = ()  #: other GPUs that it works on as much, by index


@dataclass(frozen=True)
class GpuHolders:
    """The holders of GPUs, as far as they are known: by one source, or by all of them."""

    #: Of all sources, one for each process; of one source, one for each process and GPU.
    holdings: tuple[Holding, ...] = ()
    #: GPUs with unknown processes → why, and the remedy
    unknown: Mapping[GpuKey, str] = field(default_factory=dict)
    lost: frozenset[GpuKey] = frozenset()  #: those of them that do not answer any more
    gone: tuple[Gpu, ...] = ()  #: that the machine had, and has no more
    loads: Mapping[GpuKey, NvmlLoad] = field(default_factory=dict)
    #: Seconds since boot; a pid that started later is another's. inf: within this scan.
    asked: float = float("inf")
    skipped: int = 0  #: processes: their files were not read within the time limit

    @classmethod
    def unknown_of(cls, gpus: Iterable[Gpu], why: str) -> GpuHolders:
        """Return that nothing is known of these GPUs' processes."""
        return cls(unknown={gpu.key: why for gpu in gpus})


SLURM, KUBERNETES = "slurm", "kubernetes"


@dataclass(frozen=True)
class Job:
    """The job or pod of a process, by its cgroup's path; or one container of the pod."""

    scheduler: str  #: SLURM or KUBERNETES
    id: str  #: Slurm's job number, or the pod's uid with its dashes
    namespace: str = ""  #: of a container that kubelet names, with the two below
    pod: str = ""
    container: str = ""


@dataclass(frozen=True)
class Membership:
    """The job of a process, and its step or container; a container may be of no job."""

    job: Job | None = None
    step: str | None = None  #: Slurm's: "0", "batch", "extern", "interactive"
    container: str | None = None  #: the runtime's id of it
    sluid: str | None = None  #: the name of a Slurm job's folders if that is not its number

    @property
    def scheduler(self) -> str | None:
        """SLURM or KUBERNETES; None: it is of no job."""
        return self.job.scheduler if self.job else None

    @property
    def owner(self) -> str | None:
        """Its job, else its container, as people read it: `slurm 7`, `container cd34cd34cd34`."""
        if self.job is not None:
            return f"{self.job.scheduler} {self.job.id}"
        return f"container {self.container[:12]}" if self.container else None


@dataclass(frozen=True)
class ContainerResources:
    """The devices and CPUs that kubelet gave a container."""

    namespace: str
    pod: str
    container: str
    #: Resource, as nvidia.com/gpu → ids of its devices
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    claims: frozenset[str] = frozenset()  #: devices by DRA: gpu.nvidia.com/gpu-0
    cpus: CpuSet = frozenset()  #: exclusive ones; none in the shared pool
    nodes: frozenset[int] = frozenset()  #: the NUMA nodes of its devices, where kubelet knows them
    gpus: tuple[GpuKey, ...] = ()  #: of this node, among its devices

    @property
    def names(self) -> tuple[str, str, str]:
        """Its namespace, its pod and its own name."""
        return self.namespace, self.pod, self.container


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
    cpu_ticks: int = 0  #: that it has spent, its ended threads included
    children_ticks: int = 0  #: spent by ended children for which it has waited
    session: int | None = None  #: pid of the process that began its session
    service: str | None = None  #: systemd's unit of it, by its cgroup's path
    holder: int | None = None  #: pid of the process that it works for; None: it holds a GPU itself
    beside: tuple[GpuKey, ...] = ()  #: the GPUs besides `gpu` that it, or its holder, uses
    cgroups: str = ""  #: /proc/PID/cgroup
    #: Whether the cpuset confines its job. If not, a Slurm job may have fewer CPUs, by masks alone.
    is_confined: bool = True
    cpu_limit: int | None = None  #: CPUs' worth of time that its cgroup may use; None: not limited
    given: ContainerResources | None = None  #: by kubelet, to its container; None: not known
    first_mask: CpuSet | None = None  #: its main thread's when first seen; None: unknown

    @property
    def gpus(self) -> tuple[GpuKey, ...]:
        """All of its GPUs."""
        return (self.gpu, *self.beside)

    @cached_property
    def cpus(self) -> CpuSet:
        """The CPUs on which any of its threads may run."""
        return frozenset().union(*{thread.mask for thread in self.threads})

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
        return Job(job.scheduler, job.id, given.namespace, given.pod, given.container)


class PlacedThread(NamedTuple):
    """A thread, and where it may run."""

    thread: Thread
    placement: str  #: of `affinityd.topology.nearness`: local, mixed, remote, unpinned, unknown
    pinned_itself: bool  #: a library pinned it, and it is not judged


@dataclass(frozen=True)
class AuditedProcess:
    """The judgment of one process."""

    facts: ProcessFacts
    placement: str  #: of all judged threads together
    threads: tuple[PlacedThread, ...]  #: in the order of its facts
    cause: str | None = None  #: of `nearness.CAUSES`; None: local or unknown
    is_daemon: bool = False  #: known to run on every node (nvidia-persistenced …): not counted
    orphan: str | None = None  #: why it belongs to no living job; None: it does
    near: CpuSet | None = None  #: the CPUs near any of its GPUs; None: not known of each

    @property
    def is_mismatch(self) -> bool:
        """Whether it may run far from its GPU, and counts."""
        return self.cause is not None and not self.is_daemon

    @property
    def judged(self) -> Mapping[CpuSet, str]:
        """The masks of running threads that no library pinned, and their placements.

        The main thread may have ended before the others.
        """
        running = self.threads[1:] if self.facts.state in ENDED else self.threads
        return {thread.mask: word for thread, word, itself in running if not itself}


#: Id of a container → its namespace, pod and name there, as its runtime tells them by NRI.
ContainerNames = Mapping[str, tuple[str, str, str]]
NO_NAMES: ContainerNames = MappingProxyType({})


@dataclass(frozen=True)
class NamedPods:
    """Processes; those of pods have what kubelet gave their containers."""

    processes: list[AuditedProcess]
    notices: tuple[str, ...] = ()  #: why some are not named, for people
    reserved: Mapping[GpuKey, str] = field(default_factory=dict)  #: GPU → the pod that has it


@dataclass(frozen=True)
class CpuTime:
    """Seconds since this daemon's first scan: of CPU time, and of waiting for it."""

    total: float = 0.0
    remote: float = 0.0  #: on CPUs far from the GPU; 0 as well where its place is not known
    waited: float = 0.0  #: by threads that could run, and did not
    throttled: float = 0.0  #: of cgroups, each counted once

    def __add__(self, other: CpuTime) -> CpuTime:
        """Return the sum."""
        return CpuTime(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: CpuTime) -> CpuTime:
        """Return the difference."""
        return CpuTime(*map(sub, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Scan:
    """One look at all processes that use GPUs."""

    time: float  #: when it began, seconds since the epoch
    seconds: float  #: how long it took
    #: By GPU: each holder by pid, followed by its descendants, parents first; known daemons, too.
    processes: tuple[AuditedProcess, ...]
    near: Mapping[GpuKey, CpuSet | None]  #: of every GPU: its near CPUs; None: not known
    unknown: Mapping[GpuKey, str]  #: GPUs with unknown processes → why
    lost: frozenset[GpuKey] = frozenset()  #: of `unknown`: they do not answer any more
    gone: tuple[Gpu, ...] = ()  #: that the machine had, and has no more
    loads: Mapping[GpuKey, NvmlLoad] = field(default_factory=dict)
    #: GPUs that no process uses → the job that was given them, where that is known
    reserved: Mapping[GpuKey, str] = field(default_factory=dict)
    #: Names of two jobs or more → the CPUs that are in the unique pins of all of them
    overlap: Mapping[tuple[str, ...], CpuSet] = field(default_factory=dict)
    skipped: int = 0  #: processes that were not read within the time limit
    divided: frozenset[int] = frozenset()  #: pids with a holder of another GPU below them
    #: By a far holder's pid: the topmost process that a pin should move with it
    tree_tops: Mapping[int, int] = field(default_factory=dict)
    gpu_time: Mapping[GpuKey, CpuTime] = field(default_factory=dict)  #: of every GPU
    #: By pid: since the last scan; known daemons have none.
    used: Mapping[int, CpuTime] = field(default_factory=dict)
    #: By pid: how long threads waited since the last scan, where the kernel counts that
    waits: Mapping[int, Waits] = field(default_factory=dict)
    counts_waits: bool = True  #: the kernel does
    last_hour: Mapping[GpuKey, CpuTime] = field(default_factory=dict)  #: of every GPU
    users: Mapping[int, str] = field(default_factory=dict)  #: names by uid, where they are known
    memory: Mapping[int, HostMemory] = field(default_factory=dict)  #: of holders, by pid
    #: Of every GPU: a letter for each of the last sixty minutes, of `findings.LETTERS`
    history: Mapping[GpuKey, str] = field(default_factory=dict)
    #: GPUs with a mismatch → since when, seconds since the epoch
    since: Mapping[GpuKey, float] = field(default_factory=dict)
    numa_balancing: int | None = None  #: /proc/sys/kernel/numa_balancing; None: there is none
    notices: tuple[str, ...] = ()  #: more remarks, for people
    boot: float = float("inf")  #: when it began, seconds since boot
    demo: str | None = None  #: the name of the replayed machine; None: these processes run here
