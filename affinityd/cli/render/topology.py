"""A node as a tree: packages, NUMA nodes, LLC groups, and the devices where they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from affinityd.cli.console import COLUMN_GAP, aligned, justified
from affinityd.cli.parser import Parser
from affinityd.cpuset import format_list, several
from affinityd.errors import OutputError
from affinityd.grouping import grouped
from affinityd.text import count
from affinityd.topology.model import PHB, PIX, PXB, Core, Nic, Topology, cpus_of
from affinityd.topology.words import (
    devices_at,
    gpu_model,
    gpu_word,
    memory,
    nic_kind,
    node_label,
    nodes_without_cpus,
    places,
    totals,
)

TREE_WIDTH = 100  #: columns, where the last cell of a line allows it

#: SGR parameters (ECMA-48 §8.3.117).
BOLD = "1"
DIM = "2"
GREEN = "32"
YELLOW = "33"
CYAN = "36"


@dataclass(frozen=True)
class Branch:
    """A line of a tree: two cells or more, the last of which may wrap."""

    kind: str  #: lines of one kind have aligned cells
    cells: tuple[str, ...]
    color: str = ""  #: of the first cell
    below: tuple[Branch, ...] = ()


class _Row(NamedTuple):
    branch: Branch
    stem: str  #: connects the line to its parent's
    rest: str  #: the text below the stem, where the line wraps


def paint(text: str, style: str, *, color: bool) -> str:
    """Return the text in a style, or as it is."""
    return f"\x1b[{style}m{text}\x1b[0m" if color and style and text else text


def render(branches: Sequence[Branch], *, color: bool) -> Iterator[str]:
    """Yield the lines of a tree; the stem counts as part of a line's first cell."""
    rows = list(_rows(branches, ""))
    heads = {
        kind: justified(
            [(row.stem + row.branch.cells[0], *row.branch.cells[1:-1]) for row in alike],
            AMOUNTS if kind == PLACE else (),
        )
        for kind, alike in grouped(rows, lambda row: row.branch.kind).items()
    }
    for row in rows:
        yield from _lines(row, f"{next(heads[row.branch.kind])}{COLUMN_GAP}", color=color)


def _rows(branches: Sequence[Branch], indent: str) -> Iterator[_Row]:
    for place, branch in enumerate(branches, start=1):
        is_last = place == len(branches)
        stem, rest = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield _Row(branch, indent + stem, indent + rest + ("│" if branch.below else ""))
        yield from _rows(branch.below, indent + rest)


def _lines(row: _Row, head: str, *, color: bool) -> Iterator[str]:
    """Yield a row's lines; `head` is the text before its last cell."""
    name = row.branch.cells[0]
    width = max(1, TREE_WIDTH - len(head))
    cell = wrap(row.branch.cells[-1], width, break_on_hyphens=False, break_long_words=False)
    last, *wrapped = cell or [""]
    stem, rest = (paint(text, DIM, color=color) for text in (row.stem, row.rest))
    painted = paint(name, row.branch.color, color=color)
    yield f"{stem}{painted}{head[len(row.stem + name) :]}{last}".rstrip()
    for line in wrapped:
        yield rest + " " * (len(head) - len(row.rest)) + line


PLACE = "place"
SHARED_BRANCH = "share"
BARE = "bare"
UNPLACED = "unplaced"
DEVICE = "device"
AMOUNTS = (1, 2)  #: the columns of a place that stand to the right


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
            continue
        cores = [*chain.from_iterable(topology.node_cores[number] for number in place.nodes)]
        name = several("package", place.packages)
        amount = count(len(cores), "core")
        nodes = tuple(_node(topology, number) for number in place.nodes)
        yield Branch(PLACE, (name, "", amount, format_list(cpus_of(cores))), BOLD, nodes)


def _node(topology: Topology, number: int | None, packages: Sequence[int] = ()) -> Branch:
    """Return a NUMA node; `packages` are those to name before it."""
    cores = topology.node_cores[number]
    below = (
        *_shares("packages", cores, lambda core: core.package),
        *_shares("LLC", cores, lambda core: core.llc),
        *(_devices(topology, number) if number is not None else ()),
    )
    name = node_label(number, packages)
    size = memory(topology.node_of[number])
    cells = (name, size, count(len(cores), "core"), format_list(cpus_of(cores)))
    return Branch(PLACE, cells, BOLD, below)


def _shares(label: str, cores: Sequence[Core], of: Callable[[Core], Hashable]) -> Iterator[Branch]:
    """Yield a line for each size of the groups of cores by `of`; none for a single group."""
    groups = sorted(grouped(cores, of).values(), key=len, reverse=True)
    if len(groups) == len(cores) > 1:
        yield Branch(SHARED_BRANCH, (label, "one for each core"))
    elif len(groups) > 1:
        for size, same in groupby(groups, len):
            lists = [format_list(cpus_of(group)) for group in same]
            cells = (label, f"{len(lists)} x {count(size, 'core')}", COLUMN_GAP.join(lists))
            yield Branch(SHARED_BRANCH, cells)


def _nodes_without_cpus(topology: Topology) -> Iterator[Branch]:
    """Yield the nodes without CPUs; nodes that differ only in their number share a line."""
    for nodes in nodes_without_cpus(topology):
        numbers = [node.number for node in nodes if node.number is not None]
        each = " each" if len(nodes) > 1 and nodes[0].memory_bytes else ""
        cells = (several("NUMA node", numbers), memory(nodes[0]) + each, "no CPUs")
        yield Branch(BARE, cells, BOLD, tuple(_devices(topology, nodes[0].number)))


def _unplaced(topology: Topology) -> Iterator[Branch]:
    if devices := tuple(_devices(topology, None)):
        yield Branch(UNPLACED, ("NUMA node unknown", ""), YELLOW, devices)


def _distances(topology: Topology) -> Iterator[str]:
    numbers = [number for number in topology.nodes_with_cpus if number is not None]
    if len(numbers) > 1:
        heads = list(map(str, numbers))
        rows = []
        for number in numbers:
            distances = topology.node_of[number].distances
            rows.append((f"node {number}", *(str(distances.get(to, "?")) for to in numbers)))
        yield from ("", *aligned(("distance", *heads), rows, heads))


def _notes(topology: Topology, *, color: bool) -> Iterator[str]:
    offline = topology.possible - topology.online
    notes = (*([f"not online: {several('CPU', offline)}"] if offline else ()), *topology.notices)
    if notes:
        yield ""
    for note in notes:
        yield f"{paint('note:', YELLOW, color=color)} {note}"


#: The nearness that is worth a word, nearest first: beneath one switch, or one host bridge.
NEAR_LINKS = (PIX, PXB, PHB)


def _devices(topology: Topology, number: int | None) -> Iterator[Branch]:
    gpus, nics = devices_at(topology, number)
    for gpu in gpus:
        name = f"{gpu_word(topology, gpu)} {gpu.index}"
        mig = f"{len(gpu.mig)} x MIG" if gpu.mig else ""
        yield Branch(DEVICE, (name, gpu.pci_bus_id, gpu_model(topology, gpu), mig), GREEN)
    for nic in nics:
        kind = ", ".join(nic_kind(nic))
        interfaces = f"{', '.join(nic.names)} ({kind})" if nic.names else kind
        near = ", ".join(_near(topology, nic))
        yield Branch(DEVICE, ("NIC", nic.pci_bus_id, interfaces, near), CYAN)


def _near(topology: Topology, nic: Nic) -> Iterator[str]:
    for nearness in NEAR_LINKS:
        near = [gpu for gpu in topology.gpus if topology.nearness(gpu, nic) == nearness]
        names = [
            f"{word} {format_list(gpu.index for gpu in gpus)}"
            for word, gpus in groupby(near, lambda gpu: gpu_word(topology, gpu))
        ]
        if names:
            yield f"{nearness} to {', '.join(names)}"


if TYPE_CHECKING:
    from affinityd.picture import Marks


def add_svg(parser: Parser) -> None:
    """Add --svg."""
    parser.add_argument("--svg", metavar="FILE", type=Path, help="also draw a picture, as SVG")


def write_svg(path: Path, topology: Topology, marks: Marks) -> None:
    """Write the picture with its marks. Raises OutputError."""
    from affinityd.picture import draw  # noqa: PLC0415 - few ask for a picture

    try:
        path.write_text(draw(topology, marks), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
