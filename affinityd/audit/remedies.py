"""The remedy of a mismatch, by its cause and by the source of its CPUs; the end of an orphan.

No remedy ends a process that still computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from affinityd.audit import kubelet_settings
from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import KUBERNETES, SLURM
from affinityd.audit.judge import Judge
from affinityd.audit.kubelet_settings import PodPlacement
from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.orphans import GONE, has_ended
from affinityd.cpuset import format_list
from affinityd.linux.processes import INIT
from affinityd.slurm.cores import CoreAffinity, SlurmCores, affinities
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import ALLOCATION, MASK, UNPINNED, Vicinity

#: Sources: gres.conf(5), srun(1).
ALLOCATED = {
    SLURM: (
        "{near}, and its job was given {given} there: put {cores} in {lines} of "
        "gres.conf (affinityd slurm gres-conf prints it), {sockets}and submit with "
        "--gres-flags=enforce-binding"
    ),
    KUBERNETES: "{near}, and {placement} there: {kubelet}",
    None: (
        "{near}, and its cpuset, {cpuset}{owner}, has {given} there: set a cpuset with near CPUs"
    ),
}
#: Cause → why a pin is the remedy.
PINNED = {
    MASK: "{near}, and its cpuset has CPUs there",
    UNPINNED: "it may run on every CPU, and {near}; start it with affinityd exec",
}

#: Seconds without CPU time after which a process is taken to compute no more.
IDLE = 60.0
COMPUTES = (
    "it may still compute: ask its user; affinityd audit --watch says when it has "
    f"used no CPU time for {IDLE:g} s"
)


@dataclass(frozen=True)
class Remedy:
    """The remedy of a mismatch or an orphan."""

    why: str
    command: str | None = None  #: that does it; None: no command does

    def __str__(self) -> str:
        """Return it as a sentence."""
        return self.why if self.command is None else f"{self.why}; {self.command} fixes it now"


class Remedies:
    """The remedies of the mismatches of one scan.

    A descendant is pinned with its holder, unless a process below that holds other GPUs.
    """

    def __init__(self, topology: Topology, scan: Scan) -> None:
        self._topology = topology
        self._divided = scan.divided
        self._holders = {it.facts.pid: it for it in scan.processes if it.facts.holding is not None}
        self._with_workers = {it.facts.holder for it in scan.processes}
        self._unlike = {
            target.facts.pid
            for process in scan.processes
            if process.is_mismatch
            for target in (self._target(process),)
            if any(mask != target.facts.threads[0].mask for mask in process.judged_masks)
        }
        self._idle = scan.idle
        self._kubelet = scan.kubelet or kubelet_settings.UNKNOWN
        self._near = Judge(topology).vicinity

    def of(self, process: AuditedProcess) -> Remedy | None:
        """Return the remedy of a process's placement; None: it needs none, or there is none."""
        if not process.is_mismatch or process.cause is None:
            return None
        near = self._near(process.facts.gpus)
        place = f"{near}, near CPUs {format_list(near.cpus)}"
        if process.cause == ALLOCATION:
            return Remedy(self._allocated(process, near, place))
        return Remedy(PINNED[process.cause].format(near=place), self._pin(process, near.gpus))

    def end(self, process: AuditedProcess) -> Remedy | None:
        """Return the command that ends an orphan, or the step before it; None: no remedy."""
        facts = process.facts
        if process.orphan is None:
            return None
        if facts.state == GONE:
            return Remedy("reset the GPU when no other process uses it")
        if has_ended(facts):
            # Its parent may be a running job that notices soon: no remedy may kill that.
            parent = f"check process {facts.parent}, which must wait(2) for it or end"
            return Remedy(parent) if facts.parent > INIT else None
        idle = self._idle.get(facts.pid, 0.0)
        if idle < IDLE:
            return Remedy(COMPUTES)
        what = f"check what it is, then end it: kill {facts.pid}"
        return Remedy(f"it has used no CPU time for {idle:.0f} s: {what}")

    def _target(self, process: AuditedProcess) -> AuditedProcess:
        """Return the process that a pin should name: its holder, or itself."""
        holder = self._holders.get(process.facts.holder or process.facts.pid)
        return process if holder is None or holder.facts.pid in self._divided else holder

    def _pin(self, process: AuditedProcess, gpus: Sequence[Gpu]) -> str:
        """Return the command; a process's own environment would count its GPUs in its own way."""
        pid = self._target(process).facts.pid
        is_tree = pid in self._with_workers and pid not in self._divided
        names = ",".join(gpu.uuid or gpu.pci_bus_id for gpu in gpus)
        return pin_command(pid, f"--gpus {names} ", tree=is_tree, force=pid in self._unlike)

    def _allocated(self, process: AuditedProcess, near: Vicinity, place: str) -> str:
        facts = process.facts
        job, container = facts.membership.job, facts.membership.container
        placement = PodPlacement(self._topology, near, facts.cpuset, facts.given, self._kubelet)
        fields = dict.fromkeys(self._affinities[gpu.key].field for gpu in near.gpus)
        return ALLOCATED[job.scheduler if job else None].format(
            near=place,
            placement=placement,
            kubelet=kubelet_settings.remedy(placement),
            given=near.part_of(facts.cpuset),
            cores=" and ".join(field or "the right Cores=" for field in fields),
            sockets=f"{self._sockets} in slurm.conf, " if self._sockets else "",
            lines="the GPU's line" if len(near.gpus) == 1 else "the GPUs' lines",
            cpuset=format_list(facts.cpuset or ()),
            owner=f" (container {container[:12]})" if container else "",
        )

    @cached_property
    def _sockets(self) -> str | None:
        return SlurmCores(self._topology).settings()

    @cached_property
    def _affinities(self) -> Mapping[GpuKey, CoreAffinity]:
        return affinities(SlurmCores(self._topology), "node")


def pin_command(pid: int, gpus: str, *, tree: bool, force: bool) -> str:
    """Return the command that pins a process or its tree; `gpus`: options that name its GPUs."""
    return f"affinityd pin {'--tree ' if tree else ''}{'--force ' if force else ''}{gpus}{pid}"
