"""The results of a scan, frozen: the judgments of processes, and what is counted of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job
from affinityd.audit.facts.kubelet import KubeletConfig
from affinityd.audit.facts.process import ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.linux.processes import ENDED, Thread


@dataclass(frozen=True)
class AuditedProcess:
    """The judgment of one process."""

    facts: ProcessFacts
    placement: str  #: of `affinityd.topology.nearness`: local, mixed, remote, unpinned, unknown
    placements: tuple[str, ...]  #: of its threads, in their order
    pinned_itself: tuple[bool, ...]  #: of its threads: a library did, and it is not judged
    cause: str | None = None  #: of `nearness.CAUSES`; None: local or unknown
    is_daemon: bool = False  #: known to run on every node (nvidia-persistenced …): not counted
    orphan: str | None = None  #: why it belongs to no living job; None: it does
    near: CpuSet | None = None  #: the CPUs near any of its GPUs; None: not known of all of them
    is_given: bool = False  #: it has the CPUs that a plan gives for as many, near ones first

    @property
    def is_mismatch(self) -> bool:
        """Whether it may run far from its GPU, and counts."""
        return self.cause is not None and not self.is_daemon

    @property
    def placed(self) -> Sequence[tuple[Thread, str, bool]]:
        """Its threads, each with its placement, and whether it pinned itself."""
        return [*zip(self.facts.threads, self.placements, self.pinned_itself, strict=True)]

    @property
    def judged(self) -> Mapping[CpuSet, str]:
        """The masks of running threads that no library pinned, and their placements."""
        running = self.placed[1:] if self.facts.state in ENDED else self.placed
        return {thread.mask: word for thread, word, itself in running if not itself}

    @property
    def judged_masks(self) -> frozenset[CpuSet]:
        """Those masks alone."""
        return frozenset(self.judged)


@dataclass(frozen=True)
class NamedPods:
    """Processes, those of pods with what kubelet gave their containers."""

    processes: list[AuditedProcess]
    notices: tuple[str, ...] = ()  #: why some are not named, for people
    kubelet: KubeletConfig | None = None  #: its settings; None: it was not asked


@dataclass(frozen=True)
class CpuTime:
    """Seconds of CPU time since this daemon's first scan."""

    total: float = 0.0
    remote: float = 0.0  #: on CPUs far from the GPU; 0 as well where its place is not known

    def __add__(self, other: CpuTime) -> CpuTime:
        """Return both together."""
        return CpuTime(self.total + other.total, self.remote + other.remote)


@dataclass(frozen=True)
class Scan:
    """One look at all processes that use GPUs."""

    time: float  #: when it began, seconds since the epoch
    seconds: float  #: how long it took
    #: By GPU: each holder by pid, followed by its descendants, parents first; known daemons, too.
    processes: tuple[AuditedProcess, ...]
    near: Mapping[GpuKey, CpuSet | None]  #: of every GPU: its near CPUs; None: not known
    unknown: Mapping[GpuKey, str]  #: GPUs with unknown processes → why
    #: Names of two jobs or more → the CPUs that are in the unique pins of all of them
    overlap: Mapping[tuple[str, ...], CpuSet] = field(default_factory=dict)
    skipped: int = 0  #: processes that were not read within the time limit
    divided: frozenset[int] = frozenset()  #: pids: one below them holds another GPU
    late: Mapping[GpuKey, int] = field(default_factory=dict)  #: processes known to use a GPU
    gpu_time: Mapping[GpuKey, CpuTime] = field(default_factory=dict)  #: of every GPU
    #: Of the jobs seen lately, and of containers of pods in their place where kubelet names them
    job_time: Mapping[Job, CpuTime] = field(default_factory=dict)
    #: GPUs and these jobs with a mismatch → since when, seconds since the epoch
    since: Mapping[GpuKey | Job, float] = field(default_factory=dict)
    numa_balancing: int | None = None  #: /proc/sys/kernel/numa_balancing; None: there is none
    idle: Mapping[int, float] = field(default_factory=dict)  #: pid of an orphan → seconds
    #: Of GPUs that `affinityd measure` has measured here: near's bandwidth over each node's
    ratios: Mapping[GpuKey, Mapping[int, float]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()  #: more remarks, for people
    kubelet: KubeletConfig | None = None  #: the settings of the node's; None: it was not asked
    boot: float = float("inf")  #: when it began, seconds since boot
