"""Why a rank is where it is, in short sentences, and what a caller should be warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from affinityd.cpuset import CpuSet, format_list
from affinityd.domains import socket
from affinityd.modes import Mode
from affinityd.placement import usable
from affinityd.plans import Demand, Options, RankPlan, Warn
from affinityd.topology import Core, Gpu, Topology

Hands = Mapping[int, tuple[Core, ...]]


def reasons(
    topology: Topology, demand: Demand, mode: Mode, rank: int, hands: Hands, *, share: str
) -> Iterator[str]:
    """Yield why these CPUs, and what was left out for which cause."""
    gpu, cores = demand.gpus[rank], hands[rank]
    home = cores[0].node
    yield _gpu_place(gpu)
    if home != gpu.numa_node:
        yield _home_choice(topology, demand, gpu, home)
    yield _division(topology, demand, rank, hands)
    yield from _left_to_others(topology, demand, mode, home, hands, share=share)
    yield from _left_out(topology, demand, mode, cores, home)


def _gpu_place(gpu: Gpu) -> str:
    if gpu.numa_node is None:
        return f"the machine does not say on which NUMA node GPU {gpu.index} is"
    source = f" (by {gpu.numa_source})" if gpu.numa_source else ""
    return f"GPU {gpu.index} is on NUMA node {gpu.numa_node}{source}"


def _home_choice(topology: Topology, demand: Demand, gpu: Gpu, home: int | None) -> str:
    if demand.options.mode == "even":
        return f"its block begins on {node_name(home)}"
    if len(topology.nodes_with_cpus) == 1:
        return f"only {node_name(home)} has CPUs"
    if gpu.numa_node is None:
        return f"{node_name(home)} was home to the fewest ranks"
    lack = "allowed CPU" if topology.node_cores.get(gpu.numa_node) else "CPU"
    distance = topology.distance(gpu.numa_node, home)
    shown = "unknown" if distance == float("inf") else f"{distance:.0f}"
    return (
        f"that node has no {lack}; {node_name(home)} is nearest of those that do (distance {shown})"
    )


def _division(topology: Topology, demand: Demand, rank: int, hands: Hands) -> str:
    cores = hands[rank]
    nodes = sorted({core.node for core in cores}, key=lambda number: topology.node_of[number].order)
    total = sum(len(topology.node_cores[number]) for number in nodes)
    mine = {core.cpus[0] for core in cores}
    sharers = sum(1 for other in hands.values() if not mine.isdisjoint(c.cpus[0] for c in other))
    together = f", shared by {sharers} ranks" if sharers > 1 else ""
    where = " and ".join(node_name(number) for number in nodes)
    return f"{demand.options.mode}: {count(len(cores), 'core')} of the {total} of {where}{together}"


def _left_to_others(
    topology: Topology, demand: Demand, mode: Mode, home: int | None, hands: Hands, *, share: str
) -> Iterator[str]:
    if share == "node":
        yield f"share=node: each GPU of {node_name(home)} has its own block, whoever asks"
    elif mode.balances:
        given = {core for cores in hands.values() for core in cores if core.node == home}
        spare = len(usable(topology.node_cores[home], demand.allowed)) - len(given)
        cause = "balanced" if demand.options.balanced else "an equal division"
        if spare:
            yield f"{cause} leaves {count(spare, 'core')} of {node_name(home)} unused"


def _left_out(
    topology: Topology, demand: Demand, mode: Mode, cores: Sequence[Core], home: int | None
) -> Iterator[str]:
    options = demand.options
    place, cpus = _reach(topology, mode, options, home)
    if reserved := cpus - demand.whole:
        yield f"CPUs {format_list(reserved)} of {place} are reserved"
    if outside := (cpus & demand.whole) - demand.allowed:
        yield f"CPUs {format_list(outside)} of {place} are outside the cpuset"
    most = options.max_physical_cores
    if mode.counts and most is not None and len(cores) > most:
        yield f"max_physical_cores leaves out {count(len(cores) - most, 'core')}"
        cores = cores[:most]
    if options.multithreading == "single_logical":
        siblings = [cpu for core in cores for cpu in core.cpus[1:]]
        if siblings:
            yield f"single_logical leaves out the siblings {format_list(siblings)}"


def _reach(
    topology: Topology, mode: Mode, options: Options, home: int | None
) -> tuple[str, CpuSet]:
    """Return what a mode takes cores from, by name, and its CPUs."""
    if mode.everywhere:
        return "the machine", topology.online
    if (mode.scope or options.scope) == "node":
        return node_name(home), topology.cpus_of_node(home)
    cores = (bundle[0] for bundle in socket(topology, home, topology.online))
    return f"{node_name(home)}'s socket", frozenset(cpu for core in cores for cpu in core.cpus)


def away(rank: RankPlan) -> str:
    """Return the line for a remote rank."""
    return (
        f"rank {rank.rank} has CPUs away from NUMA node {rank.gpu.numa_node}, where its GPU "
        f"{rank.gpu.index} is; its home is {node_name(rank.home_node)}"
    )


def too_few(demand: Demand, rank: int, hands: Hands, least: int) -> str:
    """Return the line for a rank that has fewer cores than it must, and what could be had."""
    smallest = min(len(cores) for cores in hands.values())
    could = (
        f"min_physical_cores={smallest} would do"
        if smallest
        else "ask for fewer ranks, a wider cpuset, or a mode whose ranks share cores, like node"
    )
    return (
        f"rank {rank} (GPU {demand.gpus[rank].index}) would have "
        f"{count(len(hands[rank]), 'physical core')}, fewer than {least}: "
        f"{count(len(demand.gpus), 'rank')}, {count(len(demand.allowed), 'allowed CPU')}; {could}"
    )


def warnings(demand: Demand, mode: Mode, ranks: Iterable[RankPlan], share: str) -> Iterator[Warn]:
    """Yield what a caller should know before it uses the plan."""
    yield from _ignored(demand.options, mode)
    wants_node = demand.options.share != "requested" and mode.shares_node
    unconfined = demand.allowed == demand.whole
    if wants_node and share != "node" and (unconfined or demand.options.share == "node"):
        yield Warn(
            "share_unavailable",
            "a node has fewer allowed cores than GPUs: the cores were divided among the requested "
            "GPUs alone, and jobs on its other GPUs may be given the same ones",
        )
    entries = Counter(gpu.key for gpu in demand.gpus)
    for rank in ranks:
        gpu = rank.gpu
        if rank.locality == "remote":
            yield Warn("remote_home", away(rank), rank.rank)
        if rank.locality == "unknown":
            yield Warn(
                "unknown_locality",
                f"rank {rank.rank}: the machine does not say on which NUMA node GPU {gpu.index} is",
                rank.rank,
            )
        if entries[gpu.key] > 1:
            yield Warn(
                "shared_gpu",
                f"rank {rank.rank} is one of {entries[gpu.key]} ranks on GPU {gpu.index}",
                rank.rank,
            )


def _ignored(options: Options, mode: Mode) -> Iterator[Warn]:
    defaults = Options()
    heeded = {
        "scope": mode.scope is None,
        "balanced": mode.balances,
        "min_physical_cores": mode.counts,
        "max_physical_cores": mode.counts,
        "share": mode.shares_node or options.share != "node",
    }
    for name, is_heeded in heeded.items():
        value = getattr(options, name)
        if not is_heeded and value != getattr(defaults, name):
            shown = str(value).lower()  # a boolean as it is written
            yield Warn("parameter_ignored", f"{name}={shown} means nothing to mode {options.mode}")


def node_name(number: int | None) -> str:
    """Return a NUMA node's name for people."""
    return "the CPUs of no NUMA node" if number is None else f"node {number}"


def count(number: int, noun: str) -> str:
    """Return `1 core`, `2 cores`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
