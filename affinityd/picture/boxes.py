"""Boxes in boxes, and how they flow into rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

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
    """Return boxes in rows, as many in each as fit; at least one."""
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
    """Return boxes below each other; empty ones take no place."""
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
    those = list(boxes)
    width = max((box.width for box in those), default=0)
    return (replace(box, width=width) for box in those)
