"""What mends a mismatch, by its cause and by who chose the CPUs: short sentences for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from affinityd.audit.model import ALLOCATION, KUBERNETES, MASK, SLURM, GpuKey, ProcessFacts
from affinityd.cpuset import CpuSet, format_list
from affinityd.slurm.affinity import Affinity, Cores, affinities
from affinityd.topology import Topology
from affinityd.vicinity import Vicinity

#: Sources: gres.conf(5), srun(1); Kubernetes' "Control Topology Management Policies on a Node".
ALLOCATED = {
    SLURM: (
        "{near}, and its job was given no CPU there: have {cores} in the GPU's line of gres.conf "
        "(affinityd slurm gres-conf writes it), and submit with --gres-flags=enforce-binding"
    ),
    KUBERNETES: (
        "{near}, and its pod was given no CPU there: set the kubelet's topologyManagerPolicy: "
        "single-numa-node (or best-effort) and cpuManagerPolicy: static, and give the pod whole "
        "CPUs in the Guaranteed QoS class"
    ),
    None: (
        "{near}, and its cpuset, {cpuset}{owner}, has no CPU there: whoever set that is to choose "
        "from CPUs {cpus}"
    ),
}
MASKED = "{near}, and its cpuset has CPUs there: {pin} mends that"
NOT_PINNED = (
    "it may run on every CPU, and {near}: start it with affinityd exec; {pin} mends that now"
)


class Remedies:
    """What mends the mismatches of one machine."""

    def __init__(self, topology: Topology, near: Mapping[GpuKey, Vicinity]) -> None:
        """Take the machine, and what is near its GPUs."""
        self._topology = topology
        self._near = near

    def of(self, facts: ProcessFacts, cause: str, judged: Collection[CpuSet]) -> str:
        """Return what mends a mismatch; `judged`: the masks of its threads that count."""
        near = self._near[facts.gpu]
        if cause != ALLOCATION:
            template = MASKED if cause == MASK else NOT_PINNED
            return template.format(near=near, pin=_pin(facts, near, judged))
        job = facts.membership.job
        container = facts.membership.container
        return ALLOCATED[job.scheduler if job else None].format(
            near=near,
            cores=self._affinities[facts.gpu].field or "the right Cores=",
            cpuset=format_list(facts.cpuset or ()),
            owner=f" (container {container[:12]})" if container else "",
            cpus=format_list(near.cpus),
        )

    @cached_property
    def _affinities(self) -> Mapping[GpuKey, Affinity]:
        return affinities(Cores(self._topology), "node")


def _pin(facts: ProcessFacts, near: Vicinity, judged: Collection[CpuSet]) -> str:
    """Return the command; the process's own environment would count its GPUs in its own way."""
    (gpu,) = near.gpus
    main = facts.threads[0].mask
    force = "" if all(mask == main for mask in judged) else "--force "
    return f"affinityd pin {force}--gpus {gpu.uuid or gpu.pci_bus_id} {facts.pid}"
