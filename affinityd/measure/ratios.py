"""How many times better near is than far, and one sentence on it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

from affinityd.grouping import grouped
from affinityd.measure.document import (
    READ,
    TIMES,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    Figure,
    MeasuredGpu,
    Target,
)

ALIKE = 1.05  #: a smaller ratio is within what measurements of a tenth of a second vary

#: The quantities of the sentence, the first that was measured near and far, and its words.
SAID = {
    TO_DEVICE: "host-to-device copies from pinned memory",
    TO_DEVICE_PAGEABLE: "host-to-device copies from pageable memory",
    READ: "reading memory with one thread",
}

ONE_NODE = "one NUMA node has CPUs here: no CPU is far, and placement by node gains nothing"
NOT_COMPARED = "near and far cannot be compared: no quantity was measured from both"
UNMEASURED = "; no GPU was measured"


def near_nodes(figure: Figure, gpus: Iterable[MeasuredGpu]) -> Collection[int]:
    """Return the nodes whose CPUs are near a figure's target: memory's own, or those of a GPU."""
    if figure.memory_node is not None:
        return (figure.memory_node,)
    return next((gpu.near for gpu in gpus if gpu.pci_bus_id == figure.gpu), ())


def ratios(
    figures: Iterable[Figure], gpus: Collection[MeasuredGpu], quantity: str
) -> Mapping[Target, Mapping[int, float]]:
    """Return GPU or memory node → NUMA node of CPUs → near's figure over that node's.

    1.8: near copies 1.8 times as many bytes per second, or takes a 1.8th of the time. Near is the
    median of the near nodes; a target without a near figure is left out.
    """
    known = [it for it in figures if it.quantity == quantity and it.value]
    found: dict[Target, Mapping[int, float]] = {}
    for target, its in grouped(known, lambda it: it.target).items():
        homes = near_nodes(its[0], gpus)
        values = {it.numa_node: it.value for it in its if it.value}
        at_home = [value for node, value in values.items() if node in homes]
        if at_home:
            best, power = median(at_home), -1 if quantity in TIMES else 1
            found[target] = {node: (best / value) ** power for node, value in values.items()}
    return found


def sentence(figures: Sequence[Figure], gpus: Sequence[MeasuredGpu], *, nodes: int) -> str:
    """Compare near with far, on one line; `nodes`: how many have CPUs."""
    if nodes <= 1:
        return ONE_NODE
    for quantity, words in SAID.items():
        far = list(_far(figures, gpus, quantity))
        if far:
            without = UNMEASURED if quantity == READ and gpus else ""
            return _said(median(far), words) + without
    return NOT_COMPARED


def _far(figures: Sequence[Figure], gpus: Sequence[MeasuredGpu], quantity: str) -> Iterator[float]:
    """Yield the ratio of each pair of far nodes, or of a GPU and a node far from it."""
    found = ratios(figures, gpus, quantity)
    for it in figures:
        ratio = found.get(it.target, {}).get(it.numa_node)
        if it.quantity == quantity and ratio and it.numa_node not in near_nodes(it, gpus):
            yield ratio


def _said(ratio: float, words: str) -> str:
    if ratio < 1 / ALIKE:
        return (
            f"far is {1 / ratio:.1f} × near for {words} on this node: other work disturbed the "
            "measurement, or the machine reports wrong nodes"
        )
    if ratio < ALIKE:
        return f"near is {ratio:.2f} × far for {words} on this node: they are alike"
    return (
        f"near is {ratio:.1f} × far for {words} on this node; a job that waits for nothing else "
        f"gains up to {ratio - 1:.0%}"
    )
