"""The remedies for mismatches, by the cause and by what gave the CPUs; and those for orphans.

No remedy ends a process that still computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from affinityd.audit.jobs import GONE, is_zombie
from affinityd.audit.judge import Judge
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import KUBERNETES, AuditedProcess, ContainerResources, ProcessFacts, Scan
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.linux.processes import INIT
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import ALLOCATION, FAR_PLACEMENTS, UNPINNED, Vicinity

RESCAN = (
    "rescan the PCI bus for it (echo 1 > /sys/bus/pci/rescan) or reboot; if it was taken out, "
    "restart the daemon"
)


def reset_gpu(pci_bus_id: str = "PCI-ADDRESS") -> str:
    """Return the remedy for a GPU of which NVML reports a fault."""
    return (
        "look for NVRM: Xid in the kernel's log, drain the node, and reset the GPU "
        f"(nvidia-smi -r -i {pci_bus_id}) or reboot"
    )


class Remedies:
    """The remedies of the mismatches of one scan.

    A descendant is pinned with its holder, unless another process below the holder holds other
    GPUs.
    """

    def __init__(self, topology: Topology, scan: Scan) -> None:
        self._scan = scan
        self._holders = {}
        self._with_workers = set()
        for process in scan.processes:
            self._with_workers.add(process.facts.holder)
            if process.facts.holding is not None:
                self._holders[process.facts.pid] = process
        #: Pids whose pin needs --force: their far threads have another mask than the main thread.
        self._to_force = set()
        for process in scan.processes:
            if process.is_mismatch:
                target = self._target(process).facts
                for mask, word in process.judged.items():
                    if word in FAR_PLACEMENTS and mask != target.threads[0].mask:
                        self._to_force.add(target.pid)
        self._near = Judge(topology).vicinity

    def sentence(self, process: AuditedProcess) -> str | None:
        """Return the remedies for all that is wrong with a process; None: nothing is wrong."""
        return "; ".join(filter(None, (self.of(process), self.end(process)))) or None

    def of(self, process: AuditedProcess) -> str | None:
        """Return the remedy for a process's placement; None: the process is no mismatch."""
        if not process.is_mismatch or process.cause is None:
            return None
        near = self._near(process.facts.gpus)
        place = f"{near}, near CPUs {format_list(near.cpus)}"
        if process.cause == ALLOCATION:
            return f"{place}, and {self._allocated(process.facts, near)}"
        why = f"{place}, and its cpuset has CPUs there"
        if process.cause == UNPINNED:
            why = f"it may run on every CPU, and {place}"
        if process.facts.membership.scheduler == KUBERNETES:
            return (
                f"{why}; label the pod affinityd=on, or list its namespace (kubernetes.nri of the "
                "chart), and start it again"
            )
        start = "; start it with affinityd exec" if process.cause == UNPINNED else ""
        return f"{why}{start}; {self._pin(process, near.gpus)} fixes it now"

    def of_memory(self, process: AuditedProcess, memory: HostMemory) -> str | None:
        """Return the remedy for a process's far memory; None: little memory is far."""
        is_pods = process.facts.membership.scheduler == KUBERNETES
        return memory.remedy(None if is_pods else process.facts.pid)

    def end(self, process: AuditedProcess) -> str | None:
        """Return the remedy for an orphan; None: the process is no orphan, or nothing helps."""
        facts = process.facts
        if process.orphan is None:
            return None
        if facts.state == GONE:
            return "reset the GPU when no other process uses it"
        if is_zombie(facts):
            # The parent may be a running job that notices soon, so no remedy may kill the parent.
            if facts.parent <= INIT:
                return None
            return f"check process {facts.parent}, which must wait(2) for it or end"
        return (
            "it may still compute: ask its user, and end it when its CPU time (ps -o time= PID) no "
            "longer grows"
        )

    def _target(self, process: AuditedProcess) -> AuditedProcess:
        holder = self._holders.get(process.facts.holder or process.facts.pid)
        if holder is None or holder.facts.pid in self._scan.divided:
            return process
        return holder

    def _pin(self, process: AuditedProcess, gpus: Sequence[Gpu]) -> str:
        """Return the pin command, which names GPUs by UUID or address: numbers may differ."""
        target = self._target(process).facts
        is_forced = target.pid in self._to_force
        top = self._scan.tree_tops.get(target.pid)
        if top is not None and not is_forced:  # --force applies only to the holder's own threads
            return pin_command(top, gpu_names(gpus), tree=True, force=False)
        is_tree = target.pid in self._with_workers and target.pid not in self._scan.divided
        return pin_command(target.pid, gpu_names(gpus), tree=is_tree, force=is_forced)

    def _allocated(self, facts: ProcessFacts, near: Vicinity) -> str:
        """Describe which CPUs a process was given, and how its job gets near CPUs."""
        container = facts.membership.container
        if facts.membership.scheduler == KUBERNETES:
            given = pod_was_given(near, facts.cpuset, facts.given)
            return f"{given} there: {pod_remedy(near, facts.given)}"
        few = f"{near.part_of(facts.cpuset)} there"
        if facts.membership.job is None:
            owner = f" (container {container[:12]})" if container else ""
            cpuset = f"its cpuset, {format_list(facts.cpuset or ())}{owner}"
            return f"{cpuset}, has {few}: set a cpuset with near CPUs"
        return (
            f"its job was given {few}: have gres.conf as affinityd slurm gres-conf prints it, and "
            "submit with --gres-flags=enforce-binding"
        )


def gpu_names(gpus: Sequence[Gpu]) -> str:
    """Return --gpus and a blank; UUIDs and addresses mean the same GPU to every process."""
    return f"--gpus {','.join(gpu.uuid or gpu.pci_bus_id for gpu in gpus)} "


def pin_command(pid: int, gpus: str, *, tree: bool, force: bool) -> str:
    """Return the command that pins a process or its tree; `gpus`: options that name its GPUs."""
    command = "affinityd pin "
    if tree:
        command += "--tree "
    if force:
        command += "--force "
    return f"{command}{gpus}{pid}"


def pod_was_given(near: Vicinity, cpuset: CpuSet | None, given: ContainerResources | None) -> str:
    """Describe what kubelet gave: `kubelet gave team/train the exclusive CPUs 0-3, no CPU`."""
    if given is None:
        return f"its pod was given {near.part_of(cpuset)}"
    kind, cpus = ("exclusive", given.cpus) if given.cpus else ("shared", cpuset)
    cpus_text = f"the {kind} {several('CPU', cpus or ())}"
    return f"kubelet gave {given.namespace}/{given.pod} {cpus_text}, {near.part_of(cpus)}"


def pod_remedy(near: Vicinity, given: ContainerResources | None) -> str:
    """Describe how a container gets near CPUs: the policies that kubelet needs, and more."""
    if given is not None and given.claims and not given.devices:
        # Source: Kubernetes pkg/kubelet/cm/topologymanager.
        return (
            "kubelet aligns no CPUs with devices by DRA: claim CPUs by DRA too, with a constraint "
            "matchAttribute on an attribute that both drivers publish"
        )
    policy = "restricted" if len(near.nodes) > 1 else "single-numa-node (or restricted)"
    advice = [f"set kubelet's topologyManagerPolicy: {policy}"]
    if given is None or not given.cpus:
        advice = [
            f"{advice[0]} and cpuManagerPolicy: static",
            "give the pod whole CPUs in the Guaranteed QoS class",
        ]
    right = {*near.nodes, *(gpu.numa_node for gpu in near.gpus)}
    if given is not None and given.devices and not given.nodes:
        advice.append("have the device plugin tell kubelet the NUMA nodes of its GPUs")
    elif given is not None and given.devices and given.nodes.isdisjoint(right):
        nodes = several("node", given.nodes)
        advice.append(f"correct the device plugin: it tells kubelet the wrong NUMA nodes, {nodes}")
    return f"{', and '.join(advice)}, and start the pod again"
