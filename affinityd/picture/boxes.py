"""A machine as boxes: packages, NUMA nodes, LLC groups, cores with their CPUs, and devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from affinityd.cpuset import CpuSet, format_list, several
from affinityd.grouping import grouped
from affinityd.text import count, printable
from affinityd.topology.model import Core, Gpu, Nic, NumaNode, Topology
from affinityd.topology.words import Place, gpu_model, gpu_word, home, memory, nic_kind, places

GAP, PAD, HEAD = 4, 3, 16  #: pixels between boxes, at a frame's border, of its heading
LETTER = 8  #: pixels of a heading's widest usual letter, bold


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text, and the boxes inside with their x and y."""

    kind: str  #: its CSS class
    width: float
    height: float
    lines: tuple[str, ...] = ()
    title: str = ""  #: shown where the pointer is
    name: str = ""  #: by which the page finds it: a CPU's number, a GPU as a plan names it
    inside: tuple[tuple[float, float, Box], ...] = field(default=())


def flow(boxes: Iterable[Box], width: float, gap: float = GAP) -> Box:
    """Arrange boxes in rows, as many as fit in each, at least one."""
    placed: list[tuple[float, float, Box]] = []
    x = y = height = widest = 0.0
    for box in boxes:
        if x and x + box.width > width:
            x, y, height = 0.0, y + height + gap, 0.0
        placed.append((x, y, box))
        x, height = x + box.width + gap, max(height, box.height)
        widest = max(widest, x - gap)
    return Box("", widest, y + height, inside=tuple(placed))


def stacked(boxes: Iterable[Box], gap: float = GAP) -> Box:
    """Stack boxes vertically; empty ones take no space."""
    return flow((box for box in boxes if box.inside or box.lines), 0, gap)


def framed(kind: str, inside: Box, *, lines: Sequence[str] = (), title: str = "") -> Box:
    """Return a frame around boxes, with a heading if there are lines."""
    head = HEAD if lines else 0
    width = max([inside.width, *(len(line) * LETTER for line in lines)]) + 2 * PAD
    placed = tuple((x + PAD, y + PAD + head, box) for x, y, box in inside.inside)
    height = inside.height + head + 2 * PAD
    return Box(kind, width, height, tuple(lines), title, inside=placed)


def alike(boxes: Iterable[Box]) -> Iterator[Box]:
    """Yield boxes as wide as the widest of them."""
    boxes = list(boxes)
    width = max((box.width for box in boxes), default=0)
    return (replace(box, width=width) for box in boxes)


WIDTH, NARROW = 960, 472  #: pixels of a picture, about; the narrow one has a package in a row
CPU_WIDTH, CPU_HEIGHT, RANK_HEIGHT = 24, 15, 11
DEVICE_WIDTH, DEVICE_HEIGHT = 111, 30
DEVICE_LETTERS = (15, 20)  #: of a device's lines, the second in smaller ones
#: CPUs that are not online are drawn one by one up to so many.
MOST_OFFLINE = 256


@lru_cache(maxsize=4)
def machine(topology: Topology) -> Box:
    """Return the picture of a machine."""
    return _machine(topology, WIDTH, WIDTH if len(list(places(topology))) == 1 else WIDTH / 2 - 8)


@lru_cache(maxsize=4)
def narrow_machine(topology: Topology) -> Box:
    """Return the picture for a narrow place: a phone, or half a window."""
    return _machine(topology, NARROW, NARROW)


def _machine(topology: Topology, width: float, of_place: float) -> Box:
    rows = (
        flow(alike(_place(topology, place, of_place) for place in places(topology)), width, 8),
        flow(_nodes_without_cpus(topology, width), width, 8),
        _unplaced(topology, width),
        _offline(topology.possible - topology.online, width),
    )
    return stacked(rows, 8)


def _place(topology: Topology, place: Place, width: float) -> Box:
    if len(place.nodes) == 1:
        return _node(topology, place.nodes[0], width, place.packages)
    nodes = flow(alike(_node(topology, node, width - 8) for node in place.nodes), width - 8, 8)
    return framed("package", nodes, lines=[several("package", place.packages)])


def _node(
    topology: Topology, number: int | None, width: float, packages: tuple[int, ...] = ()
) -> Box:
    cores = topology.node_cores[number]
    name = "no NUMA node" if number is None else f"NUMA node {number}"
    named = f"{several('package', packages)}, {name}" if packages else name
    heading = "  ·  ".join(filter(None, [named, memory(topology.node_of[number])]))
    groups = []
    for group in grouped(cores, lambda core: core.llc).values():
        title = f"LLC group of {count(len(group), 'core')}: CPUs {_cpus(group)}"
        groups.append(framed("llc", flow(map(_core, group), width - 16, 3), title=title))
    parts = [flow(groups, width - 8)]
    parts += [] if number is None else [_devices(topology, number, width - 8)]
    return framed("node", stacked(parts), lines=[heading], title=f"{named}: CPUs {_cpus(cores)}")


def _core(core: Core) -> Box:
    """Return a core: its CPUs below each other, two beside each other from SMT4 on."""
    columns = 1 if len(core.cpus) <= 2 else 2  # noqa: PLR2004
    cpus = flow(map(_cpu, core.cpus), columns * CPU_WIDTH + 1, 1)
    title = f"core with {several('CPU', core.cpus)}"
    return replace(cpus, kind="core", height=cpus.height + RANK_HEIGHT, title=title)


def _cpu(number: int) -> Box:
    return Box("cpu", CPU_WIDTH, CPU_HEIGHT, (str(number),), name=str(number))


def _nodes_without_cpus(topology: Topology, width: float) -> Iterator[Box]:
    """Yield the nodes without CPUs; those that differ only in their number share a box."""
    bare = [node for node in topology.nodes if not topology.node_cores[node.number]]
    devices = {node.number: _devices(topology, node.number, min(width, WIDTH / 2)) for node in bare}

    def same(node: NumaNode) -> object:
        return memory(node), node.number if devices[node.number].inside else None

    for nodes in grouped(bare, same).values():
        named = several("NUMA node", (node.number for node in nodes if node.number is not None))
        text = "  ·  ".join(filter(None, [named, memory(nodes[0]), "no CPUs"]))
        yield framed("node", devices[nodes[0].number], lines=[text])


def _unplaced(topology: Topology, width: float) -> Box:
    devices = _devices(topology, None, width - 8)
    if not devices.inside:
        return devices
    return stacked([framed("node", devices, lines=["NUMA node unknown"])])


def _devices(topology: Topology, number: int | None, width: float) -> Box:
    gpus = (_gpu(topology, gpu) for gpu in topology.gpus if home(topology, gpu) == number)
    nics = (_nic(nic) for nic in topology.nics if home(topology, nic) == number)
    return flow((*gpus, *nics), width)


def _gpu(topology: Topology, gpu: Gpu) -> Box:
    name, model = f"{gpu_word(topology, gpu)} {gpu.index}", gpu_model(topology, gpu)
    parts = (name, gpu.pci_bus_id, model, gpu.uuid, gpu.mig and f"{len(gpu.mig)} x MIG")
    short = model[len(gpu.vendor) + 1 :] if model.lower().startswith(f"{gpu.vendor} ") else model
    return _device("gpu", (name, short or gpu.pci_bus_id), parts, "{}:{}".format(*gpu.key))


def _nic(nic: Nic) -> Box:
    kind = ", ".join(nic_kind(nic))
    parts = ("NIC", nic.pci_bus_id, ", ".join(nic.names), kind)
    return _device("nic", (nic.names[0] if nic.names else nic.pci_bus_id, kind), parts, "")


def _device(kind: str, lines: tuple[str, ...], parts: Iterable[object], name: str) -> Box:
    title = printable(", ".join(str(part) for part in parts if part))
    short = tuple(map(shortened, map(printable, lines), DEVICE_LETTERS))
    return Box(kind, DEVICE_WIDTH, DEVICE_HEIGHT, short, title, name)


def shortened(text: str, letters: int) -> str:
    """Return the text, cut to so many letters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _offline(cpus: CpuSet, width: float) -> Box:
    if not cpus:
        return Box("", 0, 0)
    shown = sorted(cpus) if len(cpus) <= MOST_OFFLINE else []
    inside = flow(map(_cpu, shown), width - 8, 1)
    listed = f"not online: {several('CPU', cpus)}"
    line = listed if len(listed) <= width / LETTER else f"not online: {count(len(cpus), 'CPU')}"
    return stacked([framed("offline", inside, lines=[line], title=listed)])


def _cpus(cores: Iterable[Core]) -> str:
    return format_list(cpu for core in cores for cpu in core.cpus)
