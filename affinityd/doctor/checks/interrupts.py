"""Which CPUs handle the interrupts of GPUs and of the NICs near them.

Sources: kernel Documentation/core-api/irq/irq-affinity.rst, ABI/testing/sysfs-bus-pci (msi_irqs);
irqbalance(1): IRQBALANCE_BANNED_CPULIST overrides IRQBALANCE_BANNED_CPUS; where neither is set,
irqbalance keeps off isolcpus= and nohz_full= (cputree.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from affinityd.cpuset import CpuSet, format_list, parse_list, parse_mask, several
from affinityd.discovery.pci import DEVICES
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import numbered, read_cpus, read_fields
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, NotApplicableError, named, ok, warn
from affinityd.topology.model import SYS, Gpu

#: Where a distribution sets irqbalance's environment.
FILES = ("etc/default/irqbalance", "etc/sysconfig/irqbalance")
IN_FILES = " or ".join(f"/{file}" for file in FILES)
LIST, MASK = "IRQBALANCE_BANNED_CPULIST", "IRQBALANCE_BANNED_CPUS"


def irqbalance(facts: NodeFacts) -> CheckResults:
    """Judge whether interrupts are handled near their devices, and off the cores of ranks."""
    facts.some_gpus()
    pid = _irqbalance_pid(facts.tree)
    if pid is None and not facts.tree.list("proc/irq"):
        raise NotApplicableError("there is no /proc/irq to read")
    for name, address, gpus in _devices(facts):
        near, cpus = facts.near(*gpus).cpus, _interrupt_cpus(facts.tree, address)
        if near and cpus and near.isdisjoint(cpus):
            yield warn(
                f"{name}: its interrupts are handled on {several('CPU', cpus)}, and CPUs "
                f"{format_list(near)} are near",
                "systemctl enable --now irqbalance, or set smp_affinity_list in /proc/irq"
                if pid is None
                else "let irqbalance use CPUs there, or set smp_affinity_list in /proc/irq",
                gpus,
            )
    if pid is None:
        yield ok("irqbalance does not run, and no interrupt of a GPU is handled far from it")
        return
    banned = _banned(facts.tree, pid)
    yield from _cpus_of_irqbalance(facts, banned)
    kept = f", and does not use {several('CPU', banned)}" if banned else ""
    yield ok(f"irqbalance runs (process {pid}){kept}")


def _cpus_of_irqbalance(facts: NodeFacts, banned: CpuSet) -> CheckResults:
    """Yield the GPUs near which it may use no CPU, and the cores of ranks that it uses.

    To use cores of ranks is no fault where no others are reserved for such work.
    """
    gpus = [gpu for gpu in facts.topology.gpus if (near := facts.near(gpu).cpus) and near <= banned]
    if gpus:
        yield warn(
            (
                f"irqbalance does not use {several('CPU', banned)}, all that are near "
                f"{named(gpus)}: their interrupts go to another node"
            ),
            f"let it use a core of each node: shorten {LIST}= in {IN_FILES}",
            gpus,
        )
    gpus, cpus = facts.used_by_ranks(facts.topology.online - banned)
    if gpus and facts.reserved & facts.topology.online:
        ranks = format_list(facts.topology.online - facts.reserved)
        yield warn(
            f"irqbalance may use {several('CPU', cpus)}, where ranks of {named(gpus)} run, "
            f"though CPUs {format_list(facts.reserved)} are reserved",
            f"{LIST}={ranks} in {IN_FILES}, then systemctl restart irqbalance",
            gpus,
        )


def _devices(facts: NodeFacts) -> Iterator[tuple[str, str, list[Gpu]]]:
    """Yield each GPU, and each adapter beside some: its name, its address, the GPUs."""
    for gpu in facts.topology.gpus:
        yield f"{named([gpu])} ({gpu.pci_bus_id})", gpu.pci_bus_id, [gpu]
    for nic in facts.topology.nics:
        gpus = [it for it in facts.topology.gpus if facts.topology.nearness(it, nic) != SYS]
        if gpus:
            names = ", ".join(nic.names) or nic.kind
            yield f"adapter {names} ({nic.pci_bus_id})", nic.pci_bus_id, gpus


def _interrupt_cpus(tree: Tree, address: str) -> CpuSet:
    """Return the CPUs that handle a device's interrupts."""
    found = frozenset[int]()
    for number in numbered(tree, f"{DEVICES}/{address}/msi_irqs", ""):
        folder = f"proc/irq/{number}"
        now = read_cpus(tree, f"{folder}/effective_affinity_list")  # empty before the first use
        found |= now or read_cpus(tree, f"{folder}/smp_affinity_list") or frozenset()
    return found


def _irqbalance_pid(tree: Tree) -> int | None:
    """Return the process of irqbalance with root's uids: any user may name a process so.

    None where there is none. Source: proc(5).
    """
    for pid in numbered(tree, "proc", ""):
        if tree.read(f"proc/{pid}/comm") == "irqbalance":
            uids = read_fields(tree, f"proc/{pid}/status", "Uid").get("Uid", "")
            if set(uids.split()) == {"0"}:
                return pid
    return None


def _banned(tree: Tree, pid: int) -> CpuSet:
    """Return the CPUs that irqbalance keeps off: by its environment, else by the files of it."""
    text = tree.read(f"proc/{pid}/environ")  # only root reads another user's
    text = text or next((it for file in FILES if (it := tree.read(file))), "")
    lines = (line.partition("=") for line in text.replace("\0", "\n").split("\n"))
    settings = {name.strip(): value.strip().strip("\"'") for name, _, value in lines}
    for name, parse in ((LIST, parse_list), (MASK, parse_mask)):
        if settings.get(name):
            with suppress(ValueError):
                return parse(settings[name])
    lists = (read_cpus(tree, f"{CPUS}/{name}") for name in ("isolated", "nohz_full"))
    return frozenset().union(*(cpus for cpus in lists if cpus))
