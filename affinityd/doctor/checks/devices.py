"""Where the GPUs and RDMA devices are, their CPUs, and the memory of Grace's GPUs.

Sources: kernel Documentation/ABI/testing/sysfs-bus-pci (numa_node),
testing/sysfs-devices-system-cpu (present, smt/control, cpuX/nodeY), stable/sysfs-devices-node
(meminfo), filesystems/proc.rst (Mems_allowed_list); NVIDIA/open-gpu-kernel-modules,
kernel-open/nvidia/nv-procfs.c (params) and os-registry.c (CoherentGPUMemoryMode); NVIDIA's
"Understanding Memory Management on Hardware-Coherent Platforms".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from affinityd.audit.jobs import membership
from affinityd.cpuset import parse_list, several
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import FolderTree, number, numbered, read_cpus, read_fields
from affinityd.doctor.facts import (
    NO_ROOT,
    CheckResults,
    NodeFacts,
    NotApplicableError,
    named,
    ok,
    some,
    warn,
)
from affinityd.grouping import grouped
from affinityd.text import amount, node_name
from affinityd.topology.model import COHERENT, ON_SWITCH, SYS
from affinityd.topology.rdma import nics_of_gpus, usable_ports

ONLINE_REMEDY = "echo 1 > /sys/devices/system/cpu/cpuN/online for each"


def gpu_numa_node(facts: NodeFacts) -> CheckResults:
    """Judge whether the NUMA node of each GPU is known."""
    gpus = facts.some_gpus()
    if facts.topology.hides_nodes:
        raise NotApplicableError("the kernel shows no NUMA node, and there are several packages")
    if not facts.has_several_nodes:
        yield ok("all CPUs are in one NUMA node")
        return
    if lost := [gpu for gpu in gpus if gpu.numa_node is None]:
        addresses = ", ".join(gpu.pci_bus_id for gpu in lost)
        yield warn(
            f"numa_node of {named(lost)} ({addresses}) is unknown: their ranks are not pinned",
            "update the firmware, which must name the NUMA node of each PCI root (ACPI _PXM); in a "
            "virtual machine put each GPU below a PCI root of its node (QEMU: pxb-pcie with "
            "numa_node=)",
            lost,
        )
    nodes = grouped(gpus, lambda gpu: gpu.numa_node)
    yield ok("; ".join(f"{named(gpus)} on {node_name(node)}" for node, gpus in nodes.items()))


def offline_cpus(facts: NodeFacts) -> CheckResults:
    """Judge whether CPUs near a GPU are offline."""
    gpus = facts.some_gpus()
    if read_cpus(facts.tree, f"{CPUS}/present") is None:
        raise NotApplicableError("there is no /sys/devices/system/cpu/present to read")
    offline = _offline(facts)
    losers = []
    lost: set[int] = set()
    for gpu in gpus:
        nodes = {*facts.near(gpu).nodes, gpu.numa_node} - {None}
        lost_here = {cpu for cpu, node in offline.items() if node in nodes}
        if lost_here:
            losers.append(gpu)
        lost |= lost_here
    text = f"offline near {named(losers)}: {several('CPU', lost)}"
    control = facts.tree.read(f"{CPUS}/smt/control")
    if not losers:
        yield ok("every CPU near a GPU is online")
    elif control in {"off", "forceoff"} or number(control) is not None:  # by choice
        yield ok(f"{text}, as smt/control is {control}")
    else:
        yield warn(
            f"{text}, which no rank can use",
            f"{ONLINE_REMEDY}; look for maxcpus= and nr_cpus= on the kernel's command line, and "
            "for a program that takes them offline",
            losers,
        )


def _offline(facts: NodeFacts) -> Mapping[int, int | None]:
    """Return each present CPU that is offline → its node, which its folder names; None: unknown."""
    present = read_cpus(facts.tree, f"{CPUS}/present") or frozenset()
    return {
        cpu: next(iter(numbered(facts.tree, f"{CPUS}/cpu{cpu}", "node")), None)
        for cpu in sorted(present - facts.topology.online)
    }


def gpu_nics(facts: NodeFacts) -> CheckResults:
    """Judge whether each GPU has an RDMA device near it, and each device a GPU."""
    topology = facts.topology
    gpus = facts.some_gpus()
    usable = usable_ports(topology.nics)
    if not usable:
        raise NotApplicableError("no port of an RDMA device is ACTIVE")
    nics = nics_of_gpus(topology)
    links = {gpu.key: nics[gpu.key].nearest[0].link for gpu in gpus}
    far = [gpu for gpu in gpus if links[gpu.key] not in ON_SWITCH]
    lone = [port for nic, port in usable if all(topology.nearness(gpu, nic) == SYS for gpu in gpus)]
    if lone and far:  # where each GPU has a near one, the others are for storage
        ports = ", ".join(f"{port.device} port {port.number}" for port in lone)
        yield warn(
            f"on another NUMA node than every GPU: {ports}",
            "move the adapter to a slot of a node with GPUs; nothing, if it is for storage",
        )
    if far and len(far) < len(gpus):
        yield warn(
            f"no RDMA device is on the PCI switch of {named(far)}; other GPUs have one there",
            "put a NIC into a slot of that switch, or give ranks that communicate most other GPUs",
            far,
        )
    near = ", ".join(sorted({*links.values()}))
    yield ok(f"every GPU has an RDMA device as near as others have ({near})")


MODE = "CoherentGPUMemoryMode"
BY_DRIVER = f"options nvidia NVreg_{MODE}=driver in /etc/modprobe.d, and load the driver again"
COST = (
    "then no program can place memory on a GPU by numactl or mbind, and memory that the system "
    "gave does not migrate there"
)
LEAST_OTHER_USE = 2**30  #: bytes of other use in the memory of GPUs that are worth a line


def gpu_memory(facts: NodeFacts) -> CheckResults:
    """Tell whose the memory of coherent GPUs is, and judge what else the system puts there."""
    topology = facts.topology
    gpus = [gpu for gpu in topology.gpus if COHERENT.search(gpu.model or "")]
    if not gpus:
        raise NotApplicableError("no GPU shares its memory with CPUs, as on Grace")
    params = read_fields(facts.tree, "proc/driver/nvidia/params", MODE)
    mode = params.get(MODE, "not known").strip('"') or "not set"
    if not params and not facts.tree.list("sys/devices/system/node"):
        raise NotApplicableError(f"there is no {MODE} and no use of memory to read")
    nodes = topology.gpu_memory_nodes
    if not nodes:
        yield ok(f"{MODE} is {mode}: memory of {named(gpus)} is the driver's, and no NUMA node")
        return
    where = several("NUMA node", nodes)
    if mode == "not set":
        yield warn(
            f"{MODE} is not set: the driver shows memory of {named(gpus)} as {where}, and from "
            "R615 on keeps it by default: an upgrade changes the node",
            f"set it before: {BY_DRIVER} ({COST}), or =numa to stay",
            gpus,
        )
    for key, kind in (("FilePages", "page cache"), ("AnonPages", "ordinary memory of programs")):
        used = {}
        for node in nodes:
            name = f"Node {node} {key}"
            file = f"sys/devices/system/node/node{node}/meminfo"
            kib = read_fields(facts.tree, file, name).get(name, "").removesuffix(" kB")
            if size := 1024 * (number(kib) or 0):
                used[node] = size
        if sum(used.values()) >= LEAST_OTHER_USE:
            yield warn(
                f"{kind} takes {amount(sum(used.values()))} of the memory of GPUs, on "
                f"{several('node', used)}",
                "echo 1 > /proc/sys/vm/drop_caches frees it for now, and what is read next is "
                f"slow; for good: {BY_DRIVER}; {COST}"
                if key == "FilePages"
                else "affinityd exec --memory bind keeps a program on the nodes of CPUs, where a "
                "program may run out of memory; nothing, if it placed it there on purpose, or "
                f"its GPU's use moved it; for good: {BY_DRIVER}; {COST}",
                gpus,
            )
    if jobs := _jobs_on(facts, nodes):
        yield warn(
            f"Mems_allowed of {some(jobs)} has {where}: where memory of CPUs "
            "is full, that of GPUs is taken",
            "affinityd exec --memory bind in the job, which ends one that needs more instead; in "
            f"Kubernetes memoryManagerPolicy: Static; or {BY_DRIVER}; {COST}",
            gpus,
        )
    yield ok(f"{MODE} is {mode}: memory of {named(gpus)} is {where}, little of it otherwise used")


def _jobs_on(facts: NodeFacts, nodes: frozenset[int]) -> list[str]:
    """Return the jobs of which a process may take memory of these nodes: `slurm 7`."""
    tree = facts.tree
    jobs = set()
    root = tree.root if isinstance(tree, FolderTree) else NO_ROOT
    for pid in numbered(tree, "proc", ""):
        its = membership(tree.read(f"proc/{pid}/cgroup") or "", root)
        if its.job:
            status = read_fields(tree, f"proc/{pid}/status", "Mems_allowed_list")
            with suppress(ValueError):
                if nodes & parse_list(status.get("Mems_allowed_list", "")):
                    jobs.add(f"{its.owner}")
    return sorted(jobs)
