"""A node drawn for a person: packages, NUMA nodes, LLC groups, and the devices where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from affinityd.cpuset import format_list
from affinityd.outline import BOLD, CYAN, GREEN, YELLOW, Branch, paint, render
from affinityd.topology import PHB, PIX, PXB, Core, Gpu, Nic, NumaNode, Topology

#: The kinds of nearness that are worth a word: beneath one switch, or one host bridge.
NEAR = (PIX, PXB, PHB)


def draw(topology: Topology, *, colour: bool) -> Iterator[str]:
    """Yield the lines of a drawing, at most 100 columns wide where that can be, ANSI-coloured."""
    name = paint(topology.name, BOLD, colour=colour)
    yield f"{name}: {', '.join(_totals(topology))}"
    yield from render([*_places(topology), *_bare_nodes(topology), *_lost(topology)], colour=colour)
    yield from _distances(topology)
    for note in _notes(topology):
        yield f"{paint('note:', YELLOW, colour=colour)} {note}"


def _totals(topology: Topology) -> Iterator[str]:
    nodes = [node.number for node in topology.nodes if node.number is not None]
    with_cpus = sum(1 for number in nodes if topology.node_cores[number])
    some = f" ({with_cpus} with CPUs)" if with_cpus < len(nodes) else ""
    yield _count(len(topology.online), "CPU")
    yield _count(len(topology.cores), "core")
    yield _smt({len(core.cpus) for core in topology.cores})
    yield _count(len({core.package for core in topology.cores} - {None}), "package")
    yield _count(len(nodes), "NUMA node") + some
    yield _count(len({core.llc for core in topology.cores}), "LLC group")
    yield _count(len(topology.gpus), "GPU")
    yield _count(len(topology.nics), "NIC")


def _smt(threads: set[int]) -> str:
    return "no SMT" if threads <= {1} else f"SMT{format_list(threads)}"


def _places(topology: Topology) -> Iterator[Branch]:
    """Yield the packages with their nodes, and the nodes that lie in several packages."""
    packages = sorted({core.package for core in topology.cores}, key=_none_last)
    of_node = {
        number: {core.package for core in topology.node_cores[number]}
        for number in topology.nodes_with_cpus
    }
    torn = {package for owners in of_node.values() if len(owners) > 1 for package in owners}
    for package in packages:
        if package is not None and package not in torn:
            yield _package(topology, package)
    for number, owners in of_node.items():
        if owners & (torn | {None}):
            yield _node(topology, number)


def _package(topology: Topology, package: int) -> Branch:
    cores = [core for core in topology.cores if core.package == package]
    nodes = [n for n in topology.nodes_with_cpus if any(core.node == n for core in cores)]
    if len(nodes) == 1:
        return _node(topology, nodes[0], prefix=f"package {package}, ")
    cells = (f"package {package}", "", _count(len(cores), "core"), _cpulist(cores))
    below = tuple(_node(topology, number) for number in nodes)
    return Branch("place", cells, BOLD, below)


def _node(topology: Topology, number: int | None, prefix: str = "") -> Branch:
    cores = topology.node_cores[number]
    size = _memory(topology.node_of[number])
    cells = (prefix + _node_name(number), size, _count(len(cores), "core"), _cpulist(cores))
    packages = _groups(cores, lambda core: core.package)
    llcs = _groups(cores, lambda core: core.llc)
    below = (
        *(_shares("packages", packages) if len(packages) > 1 else ()),
        *_shares("LLC", llcs),
        *(_devices(topology, number) if number is not None else ()),
    )
    return Branch("place", cells, BOLD, below)
