"""The facts that the checks judge, and the result of a check with its status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from affinityd.cpuset import CpuSet, several
from affinityd.discovery.nvml import NvmlReport
from affinityd.discovery.tree import Tree
from affinityd.linux.cgroup import Mount, parse_mounts
from affinityd.topology.model import Gpu, Node, Topology
from affinityd.topology.nearness import Vicinity, vicinity

NOT_APPLICABLE = "n/a"  #: nothing to check, or no fact to judge by: neither good nor bad
OK = "ok"
WARN = "warn"  #: ranks may be slower
FAIL = "fail"  #: something does not work

#: All statuses, from best to worst.
STATUSES = (NOT_APPLICABLE, OK, WARN, FAIL)


class NotApplicableError(Exception):
    """There is nothing to judge; the message is the reason. A check raises it before it yields."""


@dataclass(frozen=True)
class CheckResult:
    """One result of a check: an entry of the document in JSON."""

    name: str = field(default="", kw_only=True)  #: name of the check
    status: str  #: one of STATUSES
    found: str  #: a sentence, with a setting's name and value
    remedy: str | None = None  #: None: no remedy is needed
    gpus: tuple[int, ...] = ()  #: indices of the GPUs concerned


CheckResults = Iterator[CheckResult]


def ok(text: str) -> CheckResult:
    """Return the result that all is well; it is left out if anything else was found."""
    return CheckResult(OK, text)


def warn(text: str, remedy: str, gpus: Iterable[Gpu] = ()) -> CheckResult:
    """Return a finding that may slow ranks down."""
    return CheckResult(WARN, text, remedy, tuple(gpu.index for gpu in gpus))


def fail(text: str, remedy: str, gpus: Iterable[Gpu] = ()) -> CheckResult:
    """Return a fault: something that does not work."""
    return CheckResult(FAIL, text, remedy, tuple(gpu.index for gpu in gpus))


def worst(results: Iterable[CheckResult]) -> str:
    """Return the worst status."""
    return max((result.status for result in results), key=STATUSES.index, default=NOT_APPLICABLE)


def named(gpus: Iterable[Gpu]) -> str:
    """Return `GPU 0`, or `GPUs 0-3`."""
    return several("GPU", (gpu.index for gpu in gpus))


@dataclass(frozen=True)
class DaemonFacts:
    """The facts of the daemon, or of its absence, at the place of its socket."""

    path: str  #: the socket's path
    nri: Mapping[str, float] | None = None  #: its affinityd_nri_… samples; None: it has no plugin
    absent: tuple[str, ...] = ()  #: the default sockets, if none exists and no other is named
    listens: bool = False
    is_denied: bool = False  #: this process may not connect: it is unknown whether a daemon listens
    status: int | None = None  #: HTTP status of /readyz; None: no answer, `error` says why
    error: str | None = None
    pid: int | None = None  #: SO_PEERCRED; None: no process listens, or its pid namespace is hidden
    published: Node | str = "it does not exist"  #: node.json's node, or why it cannot be read


ENVIRONMENT = "the environment"  #: source of a variable; a key's is the file's path


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node."""

    topology: Topology
    tree: Tree  #: the node's files
    reserved: CpuSet = frozenset()  #: CPUs that no rank gets
    nvml: NvmlReport | None = None  #: NVML's report; None: NVML was not called
    daemon: DaemonFacts | None = None  #: None: the machine is replayed
    maintenance: str | None = None  #: why NVML was not called: the driver's maintenance
    #: Names of this process's variables and of the settings file's keys, each with its source.
    variables: tuple[tuple[str, str], ...] = ()

    @cached_property
    def has_several_nodes(self) -> bool:
        """Whether a CPU can be far from a GPU at all."""
        return len(self.topology.nodes_with_cpus) > 1

    def some_gpus(self) -> Sequence[Gpu]:
        """Return the GPUs. Raises NotApplicableError where there is none."""
        if not self.topology.gpus:
            raise NotApplicableError("there is no GPU")
        return self.topology.gpus

    @cached_property
    def mounts(self) -> Sequence[Mount]:
        """The mounts of this process; of two at one mount point the later hides the earlier."""
        text = self.tree.read("proc/self/mountinfo") or ""
        by_point = {mount.point: mount for mount in parse_mounts(text)}
        return list(by_point.values())

    def near(self, *gpus: Gpu) -> Vicinity:
        """Return the vicinity of GPUs."""
        return vicinity(self.topology, gpus)

    def used_by_ranks(self, cpus: CpuSet) -> tuple[list[Gpu], CpuSet]:
        """Return the GPUs whose ranks get any of these CPUs, and which of these they get."""
        gpus = []
        used: CpuSet = frozenset()
        for gpu in self.topology.gpus:
            of_gpu = (self.near(gpu).cpus - self.reserved) & cpus
            if of_gpu:
                gpus.append(gpu)
                used |= of_gpu
        return gpus, used
