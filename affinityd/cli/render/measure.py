"""A measurement as heat maps, one for each quantity: green is as near, red is much worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from affinityd.cli.render.topology import BOLD, YELLOW, paint
from affinityd.cpuset import several
from affinityd.grouping import grouped
from affinityd.measure.document import (
    READ,
    WORDS,
    Figure,
    Measurement,
    Target,
    by_round,
    compare,
    near_nodes,
)

#: Ratios of near to a figure, from the worst, and the colors of its cell.
HEAT = ((1.5, "97;41"), (1.1, "30;43"), (0.0, "30;42"))
NONE = "-"
NEAR = "*"


def lines(measurement: Measurement, *, color: bool) -> Iterator[str]:
    """Yield the tables, which figures are missing and why, and what the comparisons say."""
    with_value = [figure for figure in measurement.figures if figure.value is not None]
    by_quantity = grouped(with_value, lambda figure: figure.quantity)
    for quantity in (READ, *(quantity for quantity in WORDS if quantity != READ)):
        if quantity in by_quantity:
            yield from (*_table(measurement, quantity, by_quantity[quantity], color=color), "")
    notes = [*_missing(measurement), *measurement.notices]
    yield from (f"{paint('note:', YELLOW, color=color)} {note}" for note in notes)
    others = (each.sentence for each in measurement.comparisons)
    yield from (each for each in others if each != measurement.sentence)
    yield measurement.sentence


def _table(
    measurement: Measurement, quantity: str, figures: Sequence[Figure], *, color: bool
) -> Iterator[str]:
    """Yield a row for each node of CPUs and a column for each target that has a figure."""
    by_place = {(figure.numa_node, figure.target): figure for figure in figures}
    nodes = sorted({figure.memory_node for figure in figures if figure.memory_node is not None})
    names: dict[Target, str] = {node: f"memory {node}" for node in nodes}
    names |= {gpu.pci_bus_id: f"GPU {gpu.index}" for gpu in measurement.gpus}
    columns = [target for target in names if any(target == of for _, of in by_place)]
    rounds = by_round(measurement.figures, measurement.gpus, quantity)
    rows = [["CPUs of", *(names[target] for target in columns)]]
    styles = [[""] * (len(columns) + 1)]
    for row in sorted({node for node, _ in by_place}):
        rows.append([f"node {row}"])
        styles.append([""])
        for target in columns:
            figure = by_place.get((row, target))
            comparison = compare(quantity, rounds.get((target, row), ()))
            value = NONE if figure is None else f"{(figure.value or 0.0) / 1e9:.1f}"
            is_near = figure is not None and row in near_nodes(figure, measurement.gpus)
            rows[-1].append(f"{value}{NEAR if is_near else ' '}")
            worse = 1.0 if comparison is None or comparison.is_noise else comparison.ratio
            heat = next(style for least, style in HEAT if worse >= least)
            styles[-1].append("" if comparison is None else heat)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield paint(f"{WORDS[quantity]}, GB/s ({NEAR}: near)", BOLD, color=color)
    for texts, colors in zip(rows, styles, strict=True):
        painted = (
            paint(text.rjust(width), style, color=color)
            for text, width, style in zip(texts, widths, colors, strict=True)
        )
        yield "  ".join(painted).rstrip()


def _missing(measurement: Measurement) -> Iterator[str]:
    missing = [figure for figure in measurement.figures if figure.why is not None]
    gpus = {gpu.pci_bus_id: gpu.index for gpu in measurement.gpus}
    for why, figures in grouped(missing, lambda figure: figure.why).items():
        memory = {figure.memory_node for figure in figures if figure.memory_node is not None}
        used = {gpus[figure.gpu] for figure in figures if figure.gpu in gpus}
        about = [f"memory of {several('node', memory)}"] if memory else []
        about += [several("GPU", used)] if used else []
        nodes = several("node", {figure.numa_node for figure in figures})
        yield f"{', '.join(about)} from {nodes}: {why}"
