"""The facts and judgments of processes that use GPUs, and the result of a scan."""

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
    """A process that uses a GPU; if it uses several, `gpu` is the one with the lowest index."""

    pid: int  #: pid as this /proc shows it
    gpu: GpuKey
    memory_bytes: int | None = None  #: of GPU memory; None: not known
    mig: str | None = None  #: UUID of the MIG instance
    beside: tuple[GpuKey, ...] = ()  #: other GPUs on which it works about as much, by index


@dataclass(frozen=True)
class GpuHolders:
    """The holders of GPUs, as far as known: from one source, or from all of them."""

    #: One for each process if from all sources; one for each process and GPU if from one source.
    holdings: tuple[Holding, ...] = ()
    #: GPUs with unknown processes → why, and the remedy
    unknown: Mapping[GpuKey, str] = field(default_factory=dict)
    lost: frozenset[GpuKey] = frozenset()  #: GPUs of `unknown` that do not answer any more
    gone: tuple[Gpu, ...] = ()  #: GPUs that the machine had before, but has no more
    loads: Mapping[GpuKey, NvmlLoad] = field(default_factory=dict)
    #: When the source was asked, seconds since boot; a pid that started later is another process.
    #: inf: within this scan.
    asked: float = float("inf")
    skipped: int = 0  #: processes that the time limit left unread

    @classmethod
    def unknown_of(cls, gpus: Iterable[Gpu], why: str) -> GpuHolders:
        """Return the answer of a source that knows no processes of these GPUs, and why."""
        return cls(unknown={gpu.key: why for gpu in gpus})


SLURM, KUBERNETES = "slurm", "kubernetes"


@dataclass(frozen=True)
class Job:
    """The job or pod of a process, from its cgroup's path; or one container of the pod."""

    scheduler: str  #: SLURM or KUBERNETES
    id: str  #: Slurm's job number, or the pod's uid with its dashes
    namespace: str = ""  #: only of a container that kubelet names, like the two fields below
    pod: str = ""
    container: str = ""


@dataclass(frozen=True)
class Membership:
    """The job of a process, and its step or container; a container may belong to no job."""

    job: Job | None = None
    step: str | None = None  #: Slurm's step: "0", "batch", "extern", "interactive"
    container: str | None = None  #: the container id of the runtime
    sluid: str | None = None  #: name of a Slurm job's folders if it is not the job's number

    @property
    def scheduler(self) -> str | None:
        """SLURM or KUBERNETES; None: there is no job."""
        return self.job.scheduler if self.job else None

    @property
    def owner(self) -> str | None:
        """The job, else the container, as messages show it: `slurm 7`, `container cd34cd34cd34`."""
        if self.job is not None:
            return f"{self.job.scheduler} {self.job.id}"
        return f"container {self.container[:12]}" if self.container else None


@dataclass(frozen=True)
class ContainerResources:
    """The devices and CPUs that kubelet gave a container."""

    namespace: str
    pod: str
    container: str
    #: resource name, such as nvidia.com/gpu → ids of its devices
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    claims: frozenset[str] = frozenset()  #: devices given by DRA: gpu.nvidia.com/gpu-0
    cpus: CpuSet = frozenset()  #: exclusive CPUs; empty: the container uses the shared pool
    nodes: frozenset[int] = frozenset()  #: the NUMA nodes of its devices, if kubelet knows them
    gpus: tuple[GpuKey, ...] = ()  #: GPUs of this node among its devices

    @property
    def names(self) -> tuple[str, str, str]:
        """Its namespace, pod and container name."""
        return self.namespace, self.pod, self.container


@dataclass(frozen=True)
class ProcessFacts:
    """One process at a scan."""

    pid: int
    name: str
    uid: int | None  #: real user id; None: its status could not be read
    start: int  #: clock ticks since boot
    parent: int
    state: str  #: proc_pid_stat(5): R, S, D, Z …
    gpu: GpuKey  #: its own GPU, or the GPU of its nearest ancestor that holds a GPU
    holding: Holding | None  #: None: a descendant of a holder, without a GPU of its own
    membership: Membership = field(default_factory=Membership)
    cpuset: CpuSet | None = None  #: the CPUs that its cgroup allows; None: unknown
    threads: tuple[Thread, ...] = ()  #: the main thread first; (): the process has ended
    cpu_ticks: int = 0  #: CPU time that it has used, including ended threads
    children_ticks: int = 0  #: CPU time of ended children for which it has waited
    session: int | None = None  #: pid of the process that leads its session
    service: str | None = None  #: its systemd unit, from its cgroup's path
    holder: int | None = None  #: pid of the ancestor that holds the GPU; None: the process itself
    beside: tuple[GpuKey, ...] = ()  #: other GPUs that it, or its holder, uses besides `gpu`
    cgroups: str = ""  #: /proc/PID/cgroup
    #: Whether a cpuset confines its job. If not, masks alone may limit a Slurm job to fewer CPUs.
    is_confined: bool = True
    cpu_limit: int | None = None  #: how many CPUs' time its cgroup may use; None: not limited
    given: ContainerResources | None = None  #: what kubelet gave its container; None: not known
    first_mask: CpuSet | None = None  #: mask of the main thread when first seen; None: unknown

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
        """Its pod if kubelet names that, as `pod team/train-0`; else its job or container."""
        given = self.given
        return self.membership.owner if given is None else f"pod {given.namespace}/{given.pod}"

    @property
    def part(self) -> Job | None:
        """The container of its pod, if kubelet names the container; else its job."""
        job, given = self.membership.job, self.given
        if job is None or given is None:
            return job
        return Job(job.scheduler, job.id, given.namespace, given.pod, given.container)


class PlacedThread(NamedTuple):
    """A thread, and where it may run."""

    thread: Thread
    placement: str  #: as in `affinityd.topology.nearness`: local, mixed, remote, unpinned, unknown
    pinned_itself: bool  #: a library pinned the thread, which is then not judged


@dataclass(frozen=True)
class AuditedProcess:
    """The judgment of one process."""

    facts: ProcessFacts
    placement: str  #: placement of all judged threads together
    threads: tuple[PlacedThread, ...]  #: in the same order as in its facts
    cause: str | None = None  #: one of `nearness.CAUSES`; None: local or unknown
    is_daemon: bool = False  #: a daemon of every node (nvidia-persistenced …): not counted
    orphan: str | None = None  #: why it belongs to no living job; None: it is no orphan
    near: CpuSet | None = None  #: the CPUs near any of its GPUs; None: unknown for one of them

    @property
    def is_mismatch(self) -> bool:
        """Whether the process is no daemon, and may run far from its GPU."""
        return self.cause is not None and not self.is_daemon

    @property
    def judged(self) -> Mapping[CpuSet, str]:
        """The masks of running threads that no library pinned, and their placements.

        A main thread that ended before the others is not running.
        """
        running = self.threads[1:] if self.facts.state in ENDED else self.threads
        return {thread.mask: word for thread, word, itself in running if not itself}


#: Container id → namespace, pod and container name, as the runtime tells them by NRI.
ContainerNames = Mapping[str, tuple[str, str, str]]
NO_NAMES: ContainerNames = MappingProxyType({})


@dataclass(frozen=True)
class NamedPods:
    """The processes of a scan; a process in a pod has what kubelet gave its container."""

    processes: list[AuditedProcess]
    notices: tuple[str, ...] = ()  #: sentences that say why some pods are not named
    reserved: Mapping[GpuKey, str] = field(default_factory=dict)  #: GPU → the pod that has it


@dataclass(frozen=True)
class CpuTime:
    """Seconds since this daemon's first scan: of CPU time, and of waiting for a CPU."""

    total: float = 0.0
    remote: float = 0.0  #: on CPUs far from the GPU; 0 also if the GPU's place is not known
    waited: float = 0.0  #: in which threads were runnable, and did not run
    throttled: float = 0.0  #: of cgroups, each counted once

    def __add__(self, other: CpuTime) -> CpuTime:
        """Return the sum."""
        return CpuTime(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: CpuTime) -> CpuTime:
        """Return the difference."""
        return CpuTime(*map(sub, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Scan:
    """The result of one scan of all processes that use GPUs."""

    time: float  #: start of the scan, seconds since the epoch
    seconds: float  #: duration of the scan
    #: Sorted by GPU and holder's pid; its descendants follow, parents first. Daemons are included.
    processes: tuple[AuditedProcess, ...]
    near: Mapping[GpuKey, CpuSet | None]  #: each GPU → its near CPUs; None: not known
    unknown: Mapping[GpuKey, str]  #: GPUs with unknown processes → why
    lost: frozenset[GpuKey] = frozenset()  #: GPUs of `unknown` that do not answer any more
    gone: tuple[Gpu, ...] = ()  #: GPUs that the machine had before, but has no more
    loads: Mapping[GpuKey, NvmlLoad] = field(default_factory=dict)
    #: GPUs that no process uses → the job that has them, if known
    reserved: Mapping[GpuKey, str] = field(default_factory=dict)
    #: Names of several jobs → the CPUs that all of them have pinned for their exclusive use
    overlap: Mapping[tuple[str, ...], CpuSet] = field(default_factory=dict)
    skipped: int = 0  #: processes that were not read within the time limit
    divided: frozenset[int] = frozenset()  #: pids of processes above a holder of other GPUs
    #: Pid of a far holder → the topmost process that a pin should move with it
    tree_tops: Mapping[int, int] = field(default_factory=dict)
    gpu_time: Mapping[GpuKey, CpuTime] = field(default_factory=dict)  #: of every GPU
    #: Pid → CPU time since the last scan; known daemons have none.
    used: Mapping[int, CpuTime] = field(default_factory=dict)
    #: Pid → how long its threads waited since the last scan, if the kernel counts that
    waits: Mapping[int, Waits] = field(default_factory=dict)
    counts_waits: bool = True  #: whether the kernel counts waits
    last_hour: Mapping[GpuKey, CpuTime] = field(default_factory=dict)  #: of every GPU
    users: Mapping[int, str] = field(default_factory=dict)  #: uid → name, if known
    memory: Mapping[int, HostMemory] = field(default_factory=dict)  #: by a holder's pid
    #: GPU → a letter for each of the last sixty minutes, of `findings.LETTERS`
    history: Mapping[GpuKey, str] = field(default_factory=dict)
    #: GPUs with a mismatch → since when, seconds since the epoch
    since: Mapping[GpuKey, float] = field(default_factory=dict)
    numa_balancing: int | None = None  #: /proc/sys/kernel/numa_balancing; None: no such file
    notices: tuple[str, ...] = ()  #: more remarks, as sentences
    boot: float = float("inf")  #: start of the scan, seconds since boot
    demo: str | None = None  #: name of the replayed machine; None: these processes run here
