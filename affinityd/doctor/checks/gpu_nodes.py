"""Where the GPUs are, and whether their CPUs are online.

Sources: kernel Documentation/ABI/testing/sysfs-bus-pci (numa_node), stable/sysfs-devices-node,
testing/sysfs-devices-system-cpu (present, smt/control, cpuX/nodeY).
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import several
from affinityd.discovery.numa import NODES
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.values import numbered, read_cpus
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, NotApplicableError, named, ok, warn
from affinityd.grouping import grouped
from affinityd.text import node_name
from affinityd.topology.model import Gpu

#: smt/control where each core's other threads are offline by choice.
SMT_OFF = ("off", "forceoff")

ONLINE = "echo 1 > /sys/devices/system/cpu/cpuN/online for each"


def gpu_numa_node(facts: NodeFacts) -> CheckResults:
    """Judge whether the NUMA node of each GPU is known."""
    gpus = facts.some_gpus()
    if not facts.has_several_nodes:
        yield ok("all CPUs are in one NUMA node")
        return
    if lost := [gpu for gpu in gpus if gpu.numa_node is None]:
        addresses = ", ".join(gpu.pci_bus_id for gpu in lost)
        yield warn(
            f"numa_node of {named(lost)} ({addresses}) is unknown: plans spread their ranks over "
            "all nodes",
            "update the firmware, which must name the NUMA node of each PCI root (ACPI _PXM); in a "
            "virtual machine put each GPU below a PCI root of its node (QEMU: pxb-pcie with "
            "numa_node=)",
            lost,
        )
    nodes = grouped(gpus, lambda gpu: gpu.numa_node)
    yield ok("; ".join(f"{named(its)} on {node_name(node)}" for node, its in nodes.items()))


def gpu_node_cpus(facts: NodeFacts) -> CheckResults:
    """Judge whether anything can run on the node of each GPU."""
    gpus_of = grouped(facts.some_gpus(), lambda gpu: gpu.numa_node)
    if not gpus_of.keys() - {None}:
        raise NotApplicableError("no GPU's NUMA node is known")
    for node, gpus in gpus_of.items():
        if node is None or facts.topology.cpus_of_node(node):
            continue
        offline = [cpu for cpu, its in _offline(facts).items() if its == node]
        nearest = facts.topology.nearest(node, facts.topology.nodes_with_cpus)
        where = " or ".join(map(node_name, nearest))
        yield warn(
            f"node {node} of {named(gpus)} has no CPU online: its ranks go to {where}",
            f"its {several('CPU', offline)} are present and offline: {ONLINE}"
            if offline
            else (
                "nothing, if the hardware is built so; else update the firmware: each package "
                "should be a NUMA node with its memory and its devices"
            ),
            gpus,
        )
    yield ok("the node of every GPU has CPUs")


def offline_cpus(facts: NodeFacts) -> CheckResults:
    """Judge whether CPUs near a GPU are offline."""
    gpus = facts.some_gpus()
    if read_cpus(facts.tree, f"{CPUS}/present") is None:
        raise NotApplicableError("there is no /sys/devices/system/cpu/present to read")
    offline = _offline(facts)
    lost: set[int] = set()
    losers: list[Gpu] = []
    for gpu in gpus:
        near = {*facts.near(gpu).nodes, gpu.numa_node} - {None}
        if its := {cpu for cpu, node in offline.items() if node in near}:
            lost |= its
            losers.append(gpu)
    found = f"offline near {named(losers)}: {several('CPU', lost)}"
    control = facts.tree.read(f"{CPUS}/smt/control")
    if not losers:
        yield ok("every CPU near a GPU is online")
    elif control in SMT_OFF:
        yield ok(f"{found}, as smt/control is {control}")
    else:
        yield warn(
            f"{found}, which no rank can use",
            (
                f"{ONLINE}; look for maxcpus= and nr_cpus= on the kernel's command line, and "
                "for a program that takes them offline"
            ),
            losers,
        )


def _offline(facts: NodeFacts) -> Mapping[int, int | None]:
    """Return each present CPU that is offline → its node; None: unknown."""
    present = read_cpus(facts.tree, f"{CPUS}/present") or frozenset()
    return {cpu: _node(facts, cpu) for cpu in sorted(present - facts.topology.online)}


def _node(facts: NodeFacts, cpu: int) -> int | None:
    """Return a CPU's node: its folder names it though it is offline, as do lists of old kernels."""
    of_folder = numbered(facts.tree, f"{CPUS}/cpu{cpu}", "node")
    listing = (
        node
        for node in numbered(facts.tree, NODES, "node")
        if cpu in (read_cpus(facts.tree, f"{NODES}/node{node}/cpulist") or ())
    )
    return next(iter((*of_folder, *listing)), None)
