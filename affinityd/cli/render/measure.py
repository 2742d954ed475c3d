"""A measurement as tables, one for each quantity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from affinityd.cli.console import aligned
from affinityd.cpuset import several
from affinityd.grouping import grouped
from affinityd.measure.document import READ, WORDS, Figure, Measurement, Target, near_nodes

NONE = "-"
NEAR = "*"


def lines(measurement: Measurement) -> Iterator[str]:
    """Yield the tables, which figures are missing and why, and what the comparisons say."""
    with_value = [figure for figure in measurement.figures if figure.value is not None]
    by_quantity = grouped(with_value, lambda figure: figure.quantity)
    for quantity in (READ, *(quantity for quantity in WORDS if quantity != READ)):
        if quantity in by_quantity:
            yield from (*_table(measurement, quantity, by_quantity[quantity]), "")
    yield from (f"note: {note}" for note in (*_missing(measurement), *measurement.notices))
    others = (each.sentence for each in measurement.comparisons)
    yield from (each for each in others if each != measurement.sentence)
    yield measurement.sentence


def _table(measurement: Measurement, quantity: str, figures: Sequence[Figure]) -> Iterator[str]:
    """Yield a row for each node of CPUs and a column for each target that has a figure."""
    by_place = {(figure.numa_node, figure.target): figure for figure in figures}
    nodes = sorted({figure.memory_node for figure in figures if figure.memory_node is not None})
    names: dict[Target, str] = {node: f"memory {node}" for node in nodes}
    names |= {gpu.pci_bus_id: f"GPU {gpu.index}" for gpu in measurement.gpus}
    columns = [target for target in names if any(target == of for _, of in by_place)]
    rows = []
    for row in sorted({node for node, _ in by_place}):
        cells = [f"node {row}"]
        for target in columns:
            figure = by_place.get((row, target))
            value = NONE if figure is None else f"{(figure.value or 0.0) / 1e9:.1f}"
            is_near = figure is not None and row in near_nodes(figure, measurement.gpus)
            cells.append(f"{value}{NEAR if is_near else ' '}")
        rows.append(cells)
    yield f"{WORDS[quantity]}, GB/s ({NEAR}: near)"
    heads = ("CPUs of", *(names[target] for target in columns))
    yield from aligned(heads, rows, heads)


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
