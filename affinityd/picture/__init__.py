"""A machine as an SVG picture, with the marks of a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from itertools import chain

from affinityd.cpuset import CpuSet, format_list
from affinityd.picture.boxes import Box, machine, shortened
from affinityd.request.resolve import Reply
from affinityd.text import count, printable
from affinityd.topology.model import Topology
from affinityd.topology.words import totals, tree

COLORS = 8  #: number of colors in picture.css: .r0 to .r7


def color(rank: int) -> str:
    """Return the CSS class of a rank; ranks that may share a GPU, such as 0 and 8, differ."""
    return f"r{(rank + rank // COLORS) % COLORS}"


@dataclass(frozen=True)
class Marks:
    """What a picture marks; by default nothing."""

    reserved: CpuSet = frozenset()
    allowed: CpuSet | None = None  #: CPUs that the plan's request allows; None: all
    ranks: Mapping[int, Collection[int]] = field(default_factory=dict)  #: CPU → its ranks, sorted
    legend: tuple[tuple[int, str], ...] = ()  #: ranks, each with a line of explanation

    def of_cpu(self, cpu: int) -> str:
        """Return the CSS classes of a CPU."""
        classes = ["cpu"]
        if cpu in self.reserved:
            classes.append("reserved")
        elif self.allowed is not None and cpu not in self.allowed:
            classes.append("disallowed")
        if ranks := self.ranks.get(cpu):
            classes.append(color(min(ranks)))
        return " ".join(classes)


def marks_of(reply: Reply, reserved: CpuSet) -> Marks:
    """Return the marks of a plan."""
    ranks: dict[int, list[int]] = {}
    legend: list[tuple[int, str]] = []
    for rank in reply.ranks:
        cores = count(rank.physical_cores, "core")
        cpus = format_list(rank.cpus)
        line = f"rank {rank.rank}: GPU {rank.gpu.index}, {rank.locality}, {cores}, CPUs {cpus}"
        legend.append((rank.rank, line))
        for cpu in rank.cpus:
            ranks.setdefault(cpu, []).append(rank.rank)
    return Marks(reserved, reply.allowed, ranks, tuple(legend))


MARGIN = 6
LINE = 15
#: The lines of text in a box: attributes, and distance from its left and top, in pixels.
DEVICE_TEXT = (("", 5, 13), (' class="more"', 5, 25))
TEXTS = {"gpu": DEVICE_TEXT, "nic": DEVICE_TEXT, "cpu": (("", 12, 11),)}


@cache
def stylesheet() -> str:
    """Return the style sheet of pictures, also of those in the daemon's page."""
    return (files(__package__) / "picture.css").read_text(encoding="utf-8")


def draw(topology: Topology, marks: Marks | None = None) -> str:
    """Return a machine as an SVG document, with the marks of a plan and their meanings."""
    marks = marks or Marks()
    legend = [(f"cpu {color(rank)}", line) for rank, line in marks.legend]
    classes = " ".join(marks.of_cpu(cpu) for cpu in topology.online).split()
    if "reserved" in classes:
        legend.append(("cpu reserved", "reserved for the system"))
    if "disallowed" in classes:
        legend.append(("cpu disallowed", "not allowed by the cpuset"))
    style = f'<style>{stylesheet()}</style>\n<rect class="paper" width="100%" height="100%"/>'
    return draw_within(topology, marks, legend, style)


def draw_within(
    topology: Topology, marks: Marks, legend: Sequence[tuple[str, str]] = (), style: str = ""
) -> str:
    """Return a machine as an SVG element, by default for the page, which has the style sheet."""
    root = machine(topology)
    width = root.width + 2 * MARGIN
    height = root.height + 2 * MARGIN + LINE * len(legend)
    label = f"{topology.name}: {', '.join(totals(topology))}"
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img"',
        f'aria-label="{_text(label)}" width="{width:g}" height="{height:g}"',
        f'viewBox="0 0 {width:g} {height:g}">',
        f"<desc>{_text('; '.join(map(str.strip, tree(topology))))}</desc>",
    ]
    lines += [style] if style else []
    lines.extend(_drawn(root, MARGIN, MARGIN, marks))
    for place, (mark, line) in enumerate(legend):
        y = root.height + 2 * MARGIN + LINE * place
        lines.append(
            f'<g class="{mark}"><rect x="{MARGIN}" y="{y:g}" width="12" height="12"/></g>'
            f'<text class="legend" x="{MARGIN + 18}" y="{y + 10:g}">{_text(line)}</text>'
        )
    return "\n".join((*lines, "</svg>", ""))


def _drawn(box: Box, x: float, y: float, marks: Marks) -> Iterator[str]:
    """Yield a box and the boxes inside as SVG elements with absolute coordinates."""
    if not box.kind:
        for dx, dy, inner in box.inside:
            yield from _drawn(inner, x + dx, y + dy, marks)
        return
    is_cpu = box.kind == "cpu"
    kind = marks.of_cpu(int(box.name)) if is_cpu else box.kind
    name = f' data-name="{_text(box.name)}"' if box.name else ""
    title = f"<title>{_text(box.title)}</title>" if box.title else ""
    yield (
        f'<g class="{kind}"{name}>{title}'
        f'<rect x="{x:g}" y="{y:g}" width="{box.width:g}" height="{box.height:g}"/>'
    )
    if is_cpu:
        colors = list(dict.fromkeys(map(color, sorted(marks.ranks.get(int(box.name), ())))))
        part = (box.width - 2) / max(len(colors), 1)
        for place, its in enumerate(colors if len(colors) > 1 else ()):
            yield (
                f'<g class="shared {its}"><rect x="{x + 1 + place * part:g}" y="{y + 1:g}" '
                f'width="{part:g}" height="{box.height - 2:g}"/></g>'
            )
    for (kind, dx, dy), line in zip(TEXTS.get(box.kind, DEVICE_TEXT[:1]), box.lines, strict=False):
        yield f'<text{kind} x="{x + dx:g}" y="{y + dy:g}">{_text(line)}</text>'
    for dx, dy, inner in box.inside:
        yield from _drawn(inner, x + dx, y + dy, marks)
    if box.kind == "core":
        cpus = (int(cpu.name) for _, _, cpu in box.inside)
        numbers = set(chain.from_iterable(marks.ranks.get(cpu, ()) for cpu in cpus))
        ranks = shortened(f"r{format_list(numbers)}" if numbers else "", 6)
        middle = x + box.width / 2
        bottom = y + box.height - 2
        yield f'<text class="rank" x="{middle:g}" y="{bottom:g}">{ranks}</text>'
    if box.kind == "gpu":
        yield f'<text class="job" x="{x + box.width - 5:g}" y="{y + 13:g}"></text>'
    yield "</g>"


def _text(text: str) -> str:
    return escape(printable(text))
