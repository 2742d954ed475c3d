"""The facts that the checks judge: the machine, its files, its drivers, its daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from affinityd.cpuset import CpuSet
from affinityd.discovery.nvml.report import NvmlReport
from affinityd.discovery.tree import Tree
from affinityd.doctor.result import NotApplicableError
from affinityd.enforce.document import EnforceDocument
from affinityd.linux.cgroup import Mount, parse_mounts
from affinityd.request.document import AllowedCpus
from affinityd.topology.model import Gpu, Node, Topology
from affinityd.topology.nearness import Vicinity, vicinity

#: The root of a machine without files, as of a built-in one: nothing is below a device.
NO_ROOT = f"{os.devnull}/"
NO_ANSWER = "no daemon answers"


@dataclass(frozen=True)
class DaemonFacts:
    """The facts of the daemon, or of its absence, where its socket should be."""

    path: str  #: of the socket
    absent: tuple[str, ...] = ()  #: the default sockets, if no other is named and none is there
    listens: bool = False
    is_denied: bool = False  #: this process may not connect: whether one listens is unknown
    status: int | None = None  #: HTTP's, of /readyz; None: no answer, `error` has the reason
    error: str | None = None
    pid: int | None = None  #: SO_PEERCRED; None: no process listens, or it is not seen from here
    cpuset: CpuSet | None = None  #: the CPUs that its cgroup allows; None: unknown
    closed: tuple[str, ...] = ()  #: paths that bar other users, with their modes
    open_mode: int | None = None  #: of a /run/affinityd that others may write to
    published: Node | str = "there is none"  #: node.json, or why it is not to be read
    enforcement: EnforceDocument | str = NO_ANSWER  #: /enforce, or why it is not known
    allowed: AllowedCpus | str = NO_ANSWER  #: this process in /plan, or why it is not there
    own_cpuset: CpuSet | None = None  #: this process's, as read by itself


ENVIRONMENT = "the environment"


@dataclass(frozen=True)
class NamedVariable:
    """A variable by its name, and where it was set."""

    name: str
    where: str  #: ENVIRONMENT, or the settings file's path


@dataclass(frozen=True)
class NodeFacts:
    """One node."""

    topology: Topology
    tree: Tree  #: its files
    reserved: CpuSet = frozenset()  #: CPUs that no rank is given
    nvml: NvmlReport | None = None  #: NVML's report; None: it was not called
    daemon: DaemonFacts | None = None  #: None: the machine is not this one
    maintenance: str | None = None  #: why NVML was not called: maintenance of its driver
    hold_seconds: float | None = None  #: age of the file that holds NVML off; None: none
    #: Variables of this process, and keys of the settings file.
    variables: tuple[NamedVariable, ...] = ()

    @cached_property
    def has_several_nodes(self) -> bool:
        """Whether a CPU can be far from a GPU at all."""
        return len(self.topology.nodes_with_cpus) > 1

    def some_gpus(self) -> Sequence[Gpu]:
        """Return the GPUs. Raises NotApplicableError where there is none."""
        if not self.topology.gpus:
            raise NotApplicableError("there is no GPU")
        return self.topology.gpus

    def own_daemon(self) -> DaemonFacts:
        """Return this machine's daemon, or its absence. Raises NotApplicableError for a replay."""
        if self.daemon is None:
            raise NotApplicableError("the machine is replayed, and has no daemon")
        return self.daemon

    def daemon_pid(self) -> int:
        """Return the daemon's process. Raises NotApplicableError where it is not seen."""
        if (pid := self.own_daemon().pid) is None:
            raise NotApplicableError("the daemon's process is not visible")
        return pid

    def mounts(self, pid: int | str) -> Mapping[str, Mount]:
        """Return the mounts that a process, or `self`, sees, by path; empty if they cannot be read.

        Of two mounts at one point the later hides the earlier.
        """
        text = self.tree.read(f"proc/{pid}/mountinfo") or ""
        return {it.point: it for it in parse_mounts(text)}

    def near(self, *gpus: Gpu) -> Vicinity:
        """Return the vicinity of GPUs."""
        return vicinity(self.topology, gpus)

    def used_by_ranks(self, cpus: CpuSet) -> tuple[list[Gpu], CpuSet]:
        """Return the GPUs whose ranks are given any of these CPUs, and which of them those are."""
        taken = [
            (gpu, its)
            for gpu in self.topology.gpus
            if (its := (self.near(gpu).cpus - self.reserved) & cpus)
        ]
        return [gpu for gpu, _ in taken], frozenset().union(*(its for _, its in taken))
