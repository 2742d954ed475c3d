"""Boxes as SVG 1.1: classes and no styles of its own, so that a strict page may contain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from affinityd.picture.boxes import Box
from affinityd.picture.machine import machine, narrow_machine
from affinityd.picture.marks import Marks, color
from affinityd.picture.sentences import sentences, summary
from affinityd.text import printable
from affinityd.topology.derived import derived
from affinityd.topology.model import Topology

MARGIN, LINE = 6, 15
#: A box's lines of text: attributes, and the place from its left and top, in pixels.
DEVICE = (("", 5, 13), (' class="more"', 5, 25))
TEXTS = {"gpu": DEVICE, "nic": DEVICE, "cpu": (("", 12, 11),)}
HEADING = (("", 5, 13),)
#: Lines that explain classes of CPUs, where these occur.
MEANINGS = {"reserved": "reserved for the system", "disallowed": "not allowed by the cpuset"}

wide_boxes, narrow_boxes = derived(machine), derived(narrow_machine)


@cache
def stylesheet() -> str:
    """Return the style of pictures, which also holds for those in the daemon's page."""
    return (files(__package__) / "picture.css").read_text(encoding="utf-8")


def draw(topology: Topology, marks: Marks | None = None) -> str:
    """Return a machine as an SVG document to be shown alone, with a plan's marks.

    It has its style, and lines that explain the marks.
    """
    marks = marks or Marks()
    legend = list(_legend(topology, marks))
    style = f'<style>{stylesheet()}</style>\n<rect class="paper" width="100%" height="100%"/>'
    return _picture(topology, wide_boxes(topology), marks, legend=legend, style=style)


def draw_within(topology: Topology, marks: Marks) -> str:
    """Return a machine as two SVG elements of a page, which shows the one that it has room for."""
    return "".join(
        _picture(topology, boxes, marks, kind=f" {kind}")
        for kind, boxes in (("wide", wide_boxes(topology)), ("narrow", narrow_boxes(topology)))
    )


def _picture(
    topology: Topology,
    root: Box,
    marks: Marks,
    *,
    kind: str = "",
    legend: Sequence[tuple[str, str]] = (),
    style: str = "",
) -> str:
    width = root.width + 2 * MARGIN
    height = root.height + 2 * MARGIN + LINE * len(legend)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture{kind}" role="img"',
        f'aria-label="{_text(summary(topology))}" width="{width:g}" height="{height:g}"',
        f'viewBox="0 0 {width:g} {height:g}">',
        f"<desc>{_text(' '.join(sentences(topology)))}</desc>",
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
    """Yield a box and those inside, as elements with absolute places."""
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
    for (kind, dx, dy), line in zip(TEXTS.get(box.kind, HEADING), box.lines, strict=False):
        yield f'<text{kind} x="{x + dx:g}" y="{y + dy:g}">{_text(line)}</text>'
    for dx, dy, inner in box.inside:
        yield from _drawn(inner, x + dx, y + dy, marks)
    if box.kind == "core":
        ranks = marks.of_core([int(cpu.name) for _, _, cpu in box.inside])
        middle, bottom = x + box.width / 2, y + box.height - 2
        yield f'<text class="rank" x="{middle:g}" y="{bottom:g}">{ranks}</text>'
    if box.kind == "gpu":
        yield f'<text class="job" x="{x + box.width - 5:g}" y="{y + 13:g}"></text>'
    yield "</g>"


def _legend(topology: Topology, marks: Marks) -> Iterator[tuple[str, str]]:
    """Yield a class and a line for each mark that occurs."""
    yield from ((f"cpu {color(rank)}", line) for rank, line in marks.legend)
    found = {word for cpu in topology.online for word in marks.of_cpu(cpu).split()}
    yield from ((f"cpu {word}", line) for word, line in MEANINGS.items() if word in found)


def _text(text: str) -> str:
    return escape(printable(text))
