"""Where the interrupts of GPUs and of the network adapters beside them are handled.

Sources: kernel Documentation/core-api/irq/irq-affinity.rst, ABI/testing/sysfs-bus-pci (msi_irqs);
irqbalance(1), whose IRQBALANCE_BANNED_CPULIST counts before IRQBALANCE_BANNED_CPUS, and where
neither is set it keeps off isolcpus= and nohz_full= (cputree.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from affinityd.cpuset import CpuSet, format_list, parse_list, parse_mask, several
from affinityd.discovery.pci import DEVICES
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import numbered, read_cpus, read_fields
from affinityd.doctor.conditions import of_gpus
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, named, not_applicable, ok, warn
from affinityd.topology.model import SYS, Gpu

#: Where a distribution sets irqbalance's environment.
FILES = ("etc/default/irqbalance", "etc/sysconfig/irqbalance")
LIST, MASK = "IRQBALANCE_BANNED_CPULIST", "IRQBALANCE_BANNED_CPUS"


@of_gpus
def irqbalance(facts: NodeFacts) -> CheckResults:
    """Judge whether interrupts are handled near their devices, and off the cores of ranks."""
    pid = _irqbalance_pid(facts.tree)
    if pid is None and not facts.tree.list("proc/irq"):
        yield not_applicable("there is no /proc/irq to read")
        return
    banned = None if pid is None else _banned(facts.tree, pid)
    wrong = [
        *_far_interrupts(facts, runs=pid is not None),
        *_all_near_banned(facts, banned),
        *_ranks_cpus_used(facts, banned),
    ]
    yield from wrong or [ok(_running(pid, banned))]


def _running(pid: int | None, banned: CpuSet | None) -> str:
    if pid is None:
        return "irqbalance does not run, and no interrupt of a GPU is handled far from it"
    kept = f", and keeps off {several('CPU', banned)}" if banned else ""
    return f"irqbalance runs (process {pid}){kept}"


def _far_interrupts(facts: NodeFacts, *, runs: bool) -> Iterator[CheckResult]:
    """Yield the devices none of whose interrupts is handled near them."""
    for name, address, gpus in _devices(facts):
        near, cpus = facts.near(*gpus).cpus, _interrupt_cpus(facts.tree, address)
        if near and cpus and near.isdisjoint(cpus):
            yield warn(
                f"{name}: its interrupts are handled on {several('CPU', cpus)}, and CPUs "
                f"{format_list(near)} are near",
                "let irqbalance have CPUs there, or set smp_affinity_list in /proc/irq yourself"
                if runs
                else "systemctl enable --now irqbalance, or set smp_affinity_list in /proc/irq",
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


def _all_near_banned(facts: NodeFacts, banned: CpuSet | None) -> Iterator[CheckResult]:
    """Yield the GPUs near which irqbalance may use no CPU."""
    near = {gpu.key: facts.near(gpu).cpus for gpu in facts.topology.gpus}
    gpus = [gpu for gpu in facts.topology.gpus if banned and near[gpu.key] <= banned]
    gpus = [gpu for gpu in gpus if near[gpu.key]]
    if banned and gpus:
        yield warn(
            f"irqbalance keeps off {several('CPU', banned)}, all that are near {named(gpus)}: "
            "their interrupts go to another node",
            f"leave it a core of each node: {LIST}= in {_files()}",
            gpus,
        )


def _ranks_cpus_used(facts: NodeFacts, banned: CpuSet | None) -> Iterator[CheckResult]:
    """Yield the cores of ranks that irqbalance uses, though other CPUs are reserved."""
    if banned is None or not facts.reserved & facts.topology.online:
        return
    gpus, cpus = facts.used_by_ranks(facts.topology.online - banned)
    if gpus:
        ranks = format_list(facts.topology.online - facts.reserved)
        yield warn(
            f"irqbalance may use {several('CPU', cpus)}, which ranks of {named(gpus)} are given, "
            f"though CPUs {format_list(facts.reserved)} are reserved",
            f"{LIST}={ranks} in {_files()}, then systemctl restart irqbalance",
            gpus,
        )


def _files() -> str:
    return " or ".join(f"/{file}" for file in FILES)


def _irqbalance_pid(tree: Tree) -> int | None:
    """Return the process of irqbalance; None where there is none. Anybody may call one so."""
    pids = numbered(tree, "proc", "")
    named = (pid for pid in pids if tree.read(f"proc/{pid}/comm") == "irqbalance")
    return next((pid for pid in named if _is_roots(tree, pid)), None)


def _is_roots(tree: Tree, pid: int) -> bool:
    """Whether a process is root's: by all four of its uids, proc(5)."""
    return set(read_fields(tree, f"proc/{pid}/status", "Uid").get("Uid", "").split()) == {"0"}


def _banned(tree: Tree, pid: int) -> CpuSet:
    """Return the CPUs that irqbalance keeps off: by its environment, else by the files of it."""
    settings = dict(_environment(tree, pid))
    for name, parse in ((LIST, parse_list), (MASK, parse_mask)):
        if settings.get(name):
            with suppress(ValueError):
                return parse(settings[name])
    lists = (read_cpus(tree, f"{CPUS}/{name}") for name in ("isolated", "nohz_full"))
    return frozenset().union(*(cpus for cpus in lists if cpus))


def _environment(tree: Tree, pid: int) -> Iterator[tuple[str, str]]:
    text = tree.read(f"proc/{pid}/environ")  # root alone reads another user's
    text = text or next((it for file in FILES if (it := tree.read(file))), "")
    for line in text.replace("\0", "\n").split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip().strip("\"'")
