"""Measurements for tests, as short as a table needs them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from affinityd.measure.document import READ, TO_DEVICE, VERSION, Figure, MeasuredGpu, Measurement
from affinityd.measure.run import ROUNDS

GPU = MeasuredGpu("nvidia", 0, None, "0000:10:00.0", [0])
UNPLACED = MeasuredGpu("nvidia", 1, None, "0000:11:00.0", [])


def copies(node: int, value: float | None, gpu: MeasuredGpu = GPU, **more: Any) -> Figure:  # noqa: ANN401
    quantity = more.pop("quantity", TO_DEVICE)
    return in_rounds(Figure(quantity, node, None, gpu.pci_bus_id, value, **more))


def memory(node: int, of: int, value: float | None, *, why: str | None = None) -> Figure:
    return in_rounds(Figure(READ, node, of, None, value, why=why))


def in_rounds(figure: Figure) -> Figure:
    if figure.value is None or figure.values:
        return figure
    return replace(figure, values=(figure.value,) * ROUNDS)


def measurement(figures: Sequence[Figure], **changes: Any) -> Measurement:  # noqa: ANN401
    its = {
        "version": VERSION,
        "node": "made",
        "time": "now",
        "sentence": "it is so",
        "comparisons": [],
        **changes,
    }
    return Measurement(gpus=its.pop("gpus", [GPU]), figures=figures, **its)
