"""A measurement as heat maps, one for each quantity: green is near, red is much worse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from affinityd.cli.render.topology import BOLD, YELLOW, paint
from affinityd.cpuset import several
from affinityd.grouping import grouped
from affinityd.measure.document import (
    LATENCY,
    LAUNCH,
    READ,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    TO_HOST,
    TO_HOST_PAGEABLE,
    Figure,
    Measurement,
    Target,
    near_nodes,
    ratios,
)

#: Ratios of near to a figure, from the worst, and the colors of its cell.
HEAT = ((1.5, "97;41"), (1.1, "30;43"), (0.0, "30;42"))
NONE = "-"
NEAR = "*"


@dataclass(frozen=True)
class Look:
    """How a quantity is shown."""

    title: str
    scale: float  #: units of the document in one that is shown
    digits: int


LOOKS: Mapping[str, Look] = {
    READ: Look("memory, read by one thread, GB/s", 1e9, 1),
    LATENCY: Look("memory, latency of a load, ns", 1e-9, 0),
    TO_DEVICE: Look("host to device, pinned, GB/s", 1e9, 1),
    TO_HOST: Look("device to host, pinned, GB/s", 1e9, 1),
    TO_DEVICE_PAGEABLE: Look("host to device, pageable, GB/s", 1e9, 1),
    TO_HOST_PAGEABLE: Look("device to host, pageable, GB/s", 1e9, 1),
    LAUNCH: Look("launch of an empty kernel, and the wait for it, µs", 1e-6, 1),
}


def lines(measurement: Measurement, *, color: bool) -> Iterator[str]:
    """Yield the tables, the figures that are missing and why, and the sentence."""
    for quantity in LOOKS:
        if any(
            figure.quantity == quantity and figure.value is not None
            for figure in measurement.figures
        ):
            yield from (*_table(measurement, quantity, color=color), "")
    notes = [*_missing(measurement), *measurement.notices]
    yield from (f"{paint('note:', YELLOW, color=color)} {note}" for note in notes)
    yield measurement.sentence


def _table(measurement: Measurement, quantity: str, *, color: bool) -> Iterator[str]:
    """Yield a row for each node of CPUs and a column for each target that has a figure."""
    figures = {
        (figure.numa_node, figure.target): figure
        for figure in measurement.figures
        if figure.quantity == quantity and figure.value is not None
    }
    columns = {
        target: name for target, name in _names(measurement).items() if _has(figures, target)
    }
    rows = sorted({node for node, _ in figures})
    cells = [
        ["CPUs of", *columns.values()],
        *(
            [f"node {row}", *(_cell(measurement, figures.get((row, it))) for it in columns)]
            for row in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    worse = ratios(measurement.figures, measurement.gpus, quantity)
    yield paint(f"{LOOKS[quantity].title} ({NEAR}: near)", BOLD, color=color)
    plain = [""] * len(columns)
    heat = [[_heat(worse.get(target, {}).get(row)) for target in columns] for row in rows]
    for texts, styles in zip(cells, [plain, *heat], strict=True):
        padded = (text.rjust(width) for text, width in zip(texts, widths, strict=True))
        drawn = (
            paint(text, style, color=color)
            for text, style in zip(padded, ["", *styles], strict=True)
        )
        yield "  ".join(drawn).rstrip()


def _has(figures: Collection[tuple[int, Target]], target: Target) -> bool:
    return any(of == target for _, of in figures)


def _names(measurement: Measurement) -> dict[Target, str]:
    nodes = sorted(
        {figure.memory_node for figure in measurement.figures if figure.memory_node is not None}
    )
    return {
        **{node: f"memory {node}" for node in nodes},
        **{gpu.pci_bus_id: f"GPU {gpu.index}" for gpu in measurement.gpus},
    }


def _cell(measurement: Measurement, figure: Figure | None) -> str:
    """Return a figure, marked if it is near, in the width of an unmarked one."""
    if figure is None or figure.value is None:
        return f"{NONE} "
    look, homes = LOOKS[figure.quantity], near_nodes(figure, measurement.gpus)
    mark = NEAR if figure.numa_node in homes else " "
    return f"{figure.value / look.scale:.{look.digits}f}{mark}"


def _heat(ratio: float | None) -> str:
    return "" if ratio is None else next(style for least, style in HEAT if ratio >= least)


def _missing(measurement: Measurement) -> Iterator[str]:
    missing = [figure for figure in measurement.figures if figure.why is not None]
    gpus = {gpu.pci_bus_id: gpu.index for gpu in measurement.gpus}
    for why, figures in grouped(missing, lambda figure: figure.why).items():
        memory = {figure.memory_node for figure in figures if figure.memory_node is not None}
        used = {gpus[figure.gpu] for figure in figures if figure.gpu in gpus}
        about = [
            *([f"memory of {several('node', memory)}"] if memory else []),
            *([several("GPU", used)] if used else []),
        ]
        nodes = several("node", {figure.numa_node for figure in figures})
        yield f"{', '.join(about)} from {nodes}: {why}"
