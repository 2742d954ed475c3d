"""A node as a tree: packages, NUMA nodes, LLC groups, and the devices where they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby

from affinityd.cli.console import GAP, aligned
from affinityd.cli.render.topology_devices import draw_devices
from affinityd.cli.render.tree import BOLD, YELLOW, Branch, Kind, paint, render
from affinityd.cpuset import format_list, several
from affinityd.grouping import grouped
from affinityd.text import count
from affinityd.topology.model import Core, NumaNode, Topology
from affinityd.topology.words import Place, memory, places, totals

PLACE = Kind("place", amounts=(1, 2))
SHARE, BARE, UNPLACED = Kind("share"), Kind("bare"), Kind("unplaced")


def draw(topology: Topology, *, color: bool) -> Iterator[str]:
    """Yield the lines of a drawing, in 100 columns where that can be; colors are ANSI's."""
    yield f"{paint(topology.name, BOLD, color=color)}: {', '.join(totals(topology))}"
    branches = (*_places(topology), *_nodes_without_cpus(topology), *_unplaced(topology))
    yield from render(branches, color=color)
    yield from _distances(topology)
    yield from _notes(topology, color=color)


def _places(topology: Topology) -> Iterator[Branch]:
    """Yield packages with their nodes; a node of several packages is on its own."""
    for place in places(topology):
        if len(place.nodes) == 1:
            yield _node(topology, place.nodes[0], place.packages)
        else:
            yield _package(topology, place)


def _package(topology: Topology, place: Place) -> Branch:
    cores = [core for number in place.nodes for core in topology.node_cores[number]]
    cells = (several("package", place.packages), "", count(len(cores), "core"), _cpulist(cores))
    return Branch(PLACE, cells, BOLD, tuple(_node(topology, number) for number in place.nodes))


def _node(topology: Topology, number: int | None, packages: Sequence[int] = ()) -> Branch:
    """Return a NUMA node; `packages` are those to name before it."""
    cores = topology.node_cores[number]
    name = "no NUMA node" if number is None else f"NUMA node {number}"
    label = f"{several('package', packages)}, {name}" if packages else name
    below = (
        *_shares("packages", cores, lambda core: core.package),
        *_shares("LLC", cores, lambda core: core.llc),
        *(draw_devices(topology, number) if number is not None else ()),
    )
    cells = (label, memory(topology.node_of[number]), count(len(cores), "core"), _cpulist(cores))
    return Branch(PLACE, cells, BOLD, below)


def _shares(label: str, cores: Sequence[Core], of: Callable[[Core], Hashable]) -> Iterator[Branch]:
    """Yield a line for each size of the groups, if several, that something makes of the cores."""
    groups = sorted(grouped(cores, of).values(), key=len, reverse=True)
    if len(groups) == len(cores) > 1:
        yield Branch(SHARE, (label, "one for each core"))
    elif len(groups) > 1:
        for size, same in groupby(groups, len):
            lists = [_cpulist(group) for group in same]
            cells = (label, f"{len(lists)} x {count(size, 'core')}", GAP.join(lists))
            yield Branch(SHARE, cells)


def _nodes_without_cpus(topology: Topology) -> Iterator[Branch]:
    """Yield the nodes without CPUs; nodes that differ only in their number share a line."""
    bare = [node for node in topology.nodes if not topology.node_cores[node.number]]
    devices = {node.number: tuple(draw_devices(topology, node.number)) for node in bare}
    alike = grouped(bare, lambda node: (memory(node), devices[node.number] and node.number))
    for nodes in alike.values():
        numbers = [node.number for node in nodes if node.number is not None]
        each = " each" if len(nodes) > 1 and nodes[0].memory_bytes else ""
        cells = (several("NUMA node", numbers), memory(nodes[0]) + each, "no CPUs")
        yield Branch(BARE, cells, BOLD, devices[nodes[0].number])


def _unplaced(topology: Topology) -> Iterator[Branch]:
    if devices := tuple(draw_devices(topology, None)):
        yield Branch(UNPLACED, ("NUMA node unknown", ""), YELLOW, devices)


def _distances(topology: Topology) -> Iterator[str]:
    """Yield a table of the SLIT distances between the nodes that have CPUs, if several."""
    numbers = [number for number in topology.nodes_with_cpus if number is not None]
    if len(numbers) > 1:
        heads = list(map(str, numbers))
        rows = [(f"node {number}", *_row(topology.node_of[number], numbers)) for number in numbers]
        yield from ("", *aligned(("distance", *heads), rows, heads))


def _row(node: NumaNode, numbers: Iterable[int]) -> Iterator[str]:
    return (str(node.distances.get(number, "?")) for number in numbers)


def _notes(topology: Topology, *, color: bool) -> Iterator[str]:
    offline = topology.possible - topology.online
    notes = (*([f"not online: {several('CPU', offline)}"] if offline else ()), *topology.notices)
    if notes:
        yield ""
    for note in notes:
        yield f"{paint('note:', YELLOW, color=color)} {note}"


def _cpulist(cores: Iterable[Core]) -> str:
    return format_list(cpu for core in cores for cpu in core.cpus)
