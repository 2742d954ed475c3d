"""Whether each GPU has a known NUMA node, and online CPUs and RDMA devices near it.

Sources: kernel Documentation/ABI/testing/sysfs-bus-pci (numa_node),
testing/sysfs-devices-system-cpu (present, smt/control, cpuX/nodeY).
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import several
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import number, numbered, read_cpus
from affinityd.doctor.facts import CheckResults, NodeFacts, NotApplicableError, named, ok, warn
from affinityd.text import node_name
from affinityd.topology.model import ON_SWITCH, SYS, Gpu
from affinityd.topology.rdma import nics_of_gpus, usable_ports


def gpu_numa_node(facts: NodeFacts) -> CheckResults:
    """Judge whether the NUMA node of each GPU is known."""
    gpus = facts.some_gpus()
    if facts.topology.hides_nodes:
        raise NotApplicableError("the kernel shows no NUMA node, and there are several packages")
    if not facts.has_several_nodes:
        yield ok("all CPUs are in one NUMA node")
        return
    lost = [gpu for gpu in gpus if gpu.numa_node is None]
    if lost:
        addresses = ", ".join(gpu.pci_bus_id for gpu in lost)
        yield warn(
            f"numa_node of {named(lost)} ({addresses}) is unknown: their ranks are not pinned",
            "update the firmware, which must name the NUMA node of each PCI root (ACPI _PXM); in a "
            "virtual machine put each GPU below a PCI root of its node (QEMU: pxb-pcie with "
            "numa_node=)",
            lost,
        )
    gpus_of_node: dict[int | None, list[Gpu]] = {}
    for gpu in gpus:
        gpus_of_node.setdefault(gpu.numa_node, []).append(gpu)
    places = [f"{named(near)} on {node_name(node)}" for node, near in gpus_of_node.items()]
    yield ok("; ".join(places))


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
        near = {cpu for cpu, node in offline.items() if node in nodes}
        if near:
            losers.append(gpu)
        lost |= near
    text = f"offline near {named(losers)}: {several('CPU', lost)}"
    control = facts.tree.read(f"{CPUS}/smt/control")
    if not losers:
        yield ok("every CPU near a GPU is online")
    elif control in {"off", "forceoff"} or number(control) is not None:  # by choice
        yield ok(f"{text}, as smt/control is {control}")
    else:
        yield warn(
            f"{text}, which no rank can use",
            "echo 1 > /sys/devices/system/cpu/cpuN/online for each; look for maxcpus= and nr_cpus= "
            "on the kernel's command line, and for a program that takes them offline",
            losers,
        )


def _offline(facts: NodeFacts) -> Mapping[int, int | None]:
    """Return present, offline CPUs → their nodes, as the CPUs' folders say; None: unknown."""
    present = read_cpus(facts.tree, f"{CPUS}/present") or frozenset()
    offline = {}
    for cpu in sorted(present - facts.topology.online):
        nodes = numbered(facts.tree, f"{CPUS}/cpu{cpu}", "node")
        offline[cpu] = next(iter(nodes), None)
    return offline


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
    lone = []
    for nic, port in usable:
        if all(topology.nearness(gpu, nic) == SYS for gpu in gpus):
            lone.append(f"{port.device} port {port.number}")
    if lone and far:  # if each GPU has a near device, the others are for storage
        yield warn(
            f"on another NUMA node than every GPU: {', '.join(lone)}",
            "move the adapter to a slot of a node with GPUs; leave it if it is for storage",
        )
    if far and len(far) < len(gpus):
        yield warn(
            f"no RDMA device is on the PCI switch of {named(far)}; other GPUs have one there",
            "put a NIC into a slot of that switch, or use other GPUs for ranks that communicate",
            far,
        )
    near = ", ".join(sorted({*links.values()}))
    yield ok(f"every GPU has an RDMA device as near as others have ({near})")
