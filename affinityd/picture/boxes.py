"""A machine as boxes: packages, NUMA nodes, LLC groups, cores with their CPUs, and devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from affinityd.cpuset import CpuSet, format_list, several
from affinityd.grouping import grouped
from affinityd.text import count, printable
from affinityd.topology import words
from affinityd.topology.model import Core, Gpu, Nic, Topology, cpus_of

GAP = 4  #: pixels between boxes
PAD = 3  #: pixels inside a frame's border
FRAME_HEADING = 16  #: pixels of a frame's heading
LETTER = 8  #: pixels of the widest usual letter in a bold heading


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text, and the boxes inside with their x and y."""

    kind: str  #: its CSS class
    width: float
    height: float
    lines: tuple[str, ...] = ()
    title: str = ""  #: shown when the pointer is on it
    name: str = ""  #: id for the page: a CPU's number, or a GPU as a plan names it
    inside: tuple[tuple[float, float, Box], ...] = field(default=())


def flow(boxes: Iterable[Box], width: float, gap: float = GAP) -> Box:
    """Arrange boxes in rows, as many as fit in each, at least one."""
    placed: list[tuple[float, float, Box]] = []
    x = y = height = widest = 0.0
    for box in boxes:
        if x and x + box.width > width:
            x = 0.0
            y = y + height + gap
            height = 0.0
        placed.append((x, y, box))
        x = x + box.width + gap
        height = max(height, box.height)
        widest = max(widest, x - gap)
    return Box("", widest, y + height, inside=tuple(placed))


def stacked(boxes: Iterable[Box], gap: float = GAP) -> Box:
    """Stack boxes vertically; empty boxes take no space."""
    return flow((box for box in boxes if box.inside or box.lines), 0, gap)


def framed(kind: str, inside: Box, *, lines: Sequence[str] = (), title: str = "") -> Box:
    """Return a frame around boxes, with a heading if there are lines."""
    head = FRAME_HEADING if lines else 0
    width = max([inside.width, *(len(line) * LETTER for line in lines)]) + 2 * PAD
    placed = tuple((x + PAD, y + PAD + head, box) for x, y, box in inside.inside)
    height = inside.height + head + 2 * PAD
    return Box(kind, width, height, tuple(lines), title, inside=placed)


def alike(boxes: Iterable[Box]) -> Iterator[Box]:
    """Yield boxes as wide as the widest of them."""
    boxes = list(boxes)
    width = max((box.width for box in boxes), default=0)
    return (replace(box, width=width) for box in boxes)


WIDTH = 960  #: approximate width of a picture in pixels
CPU_WIDTH = 24
CPU_HEIGHT = 15
RANK_HEIGHT = 11
DEVICE_WIDTH = 111
DEVICE_HEIGHT = 30
DEVICE_LETTERS = (15, 20)  #: letters that fit a device's lines; the second has smaller letters
#: Up to so many CPUs that are not online are drawn one by one.
MOST_OFFLINE = 256


@lru_cache(maxsize=8)
def machine(topology: Topology) -> Box:
    """Return the picture of a machine."""
    places = words.places(topology)
    of_place = WIDTH if len(places) == 1 else WIDTH / 2 - 8
    boxes = []
    for packages, numbers in places:
        if len(numbers) == 1 or not packages:
            boxes += [_node(topology, number, of_place, packages) for number in numbers]
        else:
            inside = of_place - 8
            nodes = flow(alike(_node(topology, number, inside) for number in numbers), inside, 8)
            boxes.append(framed("package", nodes, lines=[several("package", packages)]))
    rows = [flow(alike(boxes), WIDTH, 8), flow(_nodes_without_cpus(topology), WIDTH, 8)]
    unplaced = _devices(topology, None, WIDTH - 8)
    if unplaced.inside:
        rows.append(framed("node", unplaced, lines=["NUMA node unknown"]))
    if offline := topology.possible - topology.online:
        rows.append(_offline(offline))
    return stacked(rows, 8)


def _node(
    topology: Topology, number: int | None, width: float, packages: tuple[int, ...] = ()
) -> Box:
    cores = topology.node_cores[number]
    named = words.node_label(number, packages)
    heading = "  ·  ".join(filter(None, [named, words.memory(topology.node_of[number])]))
    groups = []
    for group in grouped(cores, lambda core: core.llc).values():
        title = f"LLC group of {count(len(group), 'core')}: CPUs {format_list(cpus_of(group))}"
        groups.append(framed("llc", flow(map(_core, group), width - 16, 3), title=title))
    parts = [flow(groups, width - 8)]
    parts += [] if number is None else [_devices(topology, number, width - 8)]
    return framed(
        "node",
        stacked(parts),
        lines=[heading],
        title=f"{named}: CPUs {format_list(cpus_of(cores))}",
    )


def _core(core: Core) -> Box:
    """Return a core: its CPUs one below the other; from SMT4 on in two columns."""
    columns = 1 if len(core.cpus) <= 2 else 2  # noqa: PLR2004
    cpus = flow(map(_cpu, core.cpus), columns * CPU_WIDTH + 1, 1)
    title = f"core with {several('CPU', core.cpus)}"
    return replace(cpus, kind="core", height=cpus.height + RANK_HEIGHT, title=title)


def _cpu(number: int) -> Box:
    return Box("cpu", CPU_WIDTH, CPU_HEIGHT, (str(number),), name=str(number))


def _nodes_without_cpus(topology: Topology) -> Iterator[Box]:
    for nodes in words.nodes_without_cpus(topology):
        named = several("NUMA node", (node.number for node in nodes if node.number is not None))
        text = "  ·  ".join(filter(None, [named, words.memory(nodes[0]), "no CPUs"]))
        devices = _devices(topology, nodes[0].number, WIDTH / 2)
        yield framed("node", devices, lines=[text])


def _devices(topology: Topology, number: int | None, width: float) -> Box:
    gpus, nics = words.devices_at(topology, number)
    return flow([*(_gpu(topology, gpu) for gpu in gpus), *map(_nic, nics)], width)


def _gpu(topology: Topology, gpu: Gpu) -> Box:
    name = f"{words.gpu_word(topology, gpu)} {gpu.index}"
    model = words.gpu_model(topology, gpu)
    parts = (name, gpu.pci_bus_id, model, gpu.uuid, gpu.mig and f"{len(gpu.mig)} x MIG")
    short = model[len(gpu.vendor) + 1 :] if model.lower().startswith(f"{gpu.vendor} ") else model
    return _device("gpu", (name, short or gpu.pci_bus_id), parts, "{}:{}".format(*gpu.key))


def _nic(nic: Nic) -> Box:
    kind = ", ".join(words.nic_kind(nic))
    parts = ("NIC", nic.pci_bus_id, ", ".join(nic.names), kind)
    return _device("nic", (nic.names[0] if nic.names else nic.pci_bus_id, kind), parts, "")


def _device(kind: str, lines: tuple[str, ...], parts: Iterable[object], name: str) -> Box:
    title = printable(", ".join(str(part) for part in parts if part))
    short = tuple(map(shortened, map(printable, lines), DEVICE_LETTERS))
    return Box(kind, DEVICE_WIDTH, DEVICE_HEIGHT, short, title, name)


def shortened(text: str, letters: int) -> str:
    """Return the text, cut to `letters` characters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _offline(cpus: CpuSet) -> Box:
    shown = sorted(cpus) if len(cpus) <= MOST_OFFLINE else []
    inside = flow(map(_cpu, shown), WIDTH - 8, 1)
    listed = f"not online: {several('CPU', cpus)}"
    line = listed if len(listed) <= WIDTH / LETTER else f"not online: {count(len(cpus), 'CPU')}"
    return framed("offline", inside, lines=[line], title=listed)
