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

PLACE = Kind("place", amounts=(1, 2))
SHARE, BARE, UNPLACED = Kind("share"), Kind("bare"), Kind("unplaced")

#: Amounts of memory below this many GiB are drawn with a tenth.
LITTLE = 10


def draw(topology: Topology, *, color: bool) -> Iterator[str]:
    """Yield the lines of a drawing, in 100 columns where that can be; colors are ANSI's."""
    yield f"{paint(topology.name, BOLD, color=color)}: {', '.join(_totals(topology))}"
    branches = (*_places(topology), *_nodes_without_cpus(topology), *_unplaced(topology))
    yield from render(branches, color=color)
    yield from _distances(topology)
    yield from _notes(topology, color=color)


def _totals(topology: Topology) -> Iterator[str]:
    nodes = [node.number for node in topology.nodes if node.number is not None]
    with_cpus = sum(1 for number in nodes if topology.node_cores[number])
    yield count(len(topology.online), "CPU")
    yield count(len(topology.cores), "core")
    threads = {len(core.cpus) for core in topology.cores}
    yield "no SMT" if threads <= {1} else f"SMT{format_list(threads)}"
    yield count(len(_packages(topology.cores) - {None}), "package")
    yield count(len(nodes), "NUMA node") + (
        f" ({with_cpus} with CPUs)" if with_cpus < len(nodes) else ""
    )
    yield count(len({core.llc for core in topology.cores}), "LLC group")
    yield count(len(topology.gpus), "GPU")


def _places(topology: Topology) -> Iterator[Branch]:
    """Yield packages with their nodes; a node of several packages is on its own."""
    owners = {number: _packages(topology.node_cores[number]) for number in topology.nodes_with_cpus}
    # A core of no package belongs beneath none.
    torn = {None}.union(*(packages for packages in owners.values() if len(packages) > 1))
    for package in sorted(_packages(topology.cores) - torn, key=lambda number: number or 0):
        yield _package(topology, package, [n for n in owners if package in owners[n]])
    for number, packages in owners.items():
        if packages & torn:
            yield _node(topology, number, packages)


def _package(topology: Topology, package: int | None, nodes: Sequence[int | None]) -> Branch:
    if len(nodes) == 1:
        return _node(topology, nodes[0], {package})
    cores = [core for core in topology.cores if core.package == package]
    cells = (f"package {package}", "", count(len(cores), "core"), _cpulist(cores))
    return Branch(PLACE, cells, BOLD, tuple(_node(topology, number) for number in nodes))


def _node(topology: Topology, number: int | None, packages: Iterable[int | None] = ()) -> Branch:
    """Return a NUMA node; `packages` are those to name before it."""
    cores = topology.node_cores[number]
    name = "no NUMA node" if number is None else f"NUMA node {number}"
    known = [package for package in packages if package is not None]
    label = f"{several('package', known)}, {name}" if known else name
    below = (
        *_shares("packages", cores, lambda core: core.package),
        *_shares("LLC", cores, lambda core: core.llc),
        *(draw_devices(topology, number) if number is not None else ()),
    )
    memory = _memory(topology.node_of[number])
    cells = (label, memory, count(len(cores), "core"), _cpulist(cores))
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
    alike = grouped(bare, lambda node: (_memory(node), devices[node.number] and node.number))
    for nodes in alike.values():
        numbers = [node.number for node in nodes if node.number is not None]
        each = " each" if len(nodes) > 1 and nodes[0].memory_bytes else ""
        cells = (several("NUMA node", numbers), _memory(nodes[0]) + each, "no CPUs")
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


def _packages(cores: Iterable[Core]) -> set[int | None]:
    return {core.package for core in cores}


def _cpulist(cores: Iterable[Core]) -> str:
    return format_list(cpu for core in cores for cpu in core.cpus)


def _memory(node: NumaNode) -> str:
    if node.memory_bytes is None:
        return ""
    if node.memory_bytes == 0:
        return "no memory"
    gib = node.memory_bytes / 2**30
    return f"{gib:.0f} GiB" if gib >= LITTLE else f"{gib:.1f} GiB"
