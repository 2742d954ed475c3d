"""The document of `affinityd measure --json`, and its file, which the daemon reads."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated

from affinityd.errors import OutputError
from affinityd.grouping import grouped
from affinityd.json_codec import OneOf, dumps, loads
from affinityd.linux.files import EXECUTABLE, read_regular, write_whole
from affinityd.topology.model import Topology

VERSION = 2

TO_DEVICE, TO_DEVICE_PAGEABLE = "host_to_device_pinned", "host_to_device_pageable"
TO_HOST, TO_HOST_PAGEABLE = "device_to_host_pinned", "device_to_host_pageable"
TO_ALL_DEVICES = "host_to_device_pinned_all_gpus"  #: of one GPU, while the others copy as well
OF_GPUS = (TO_DEVICE, TO_HOST, TO_DEVICE_PAGEABLE, TO_HOST_PAGEABLE)
READ = "memory_read"

#: The words of each quantity, in the order in which they are judged.
WORDS: Mapping[str, str] = {
    TO_DEVICE: "host to device, pinned",
    TO_ALL_DEVICES: "host to device, pinned, all GPUs at once",
    TO_HOST: "device to host, pinned",
    TO_DEVICE_PAGEABLE: "host to device, pageable",
    TO_HOST_PAGEABLE: "device to host, pageable",
    READ: "memory, read by one thread",
}

#: The PCI bus id of a GPU, or the number of a memory's node.
Target = int | str | None


@dataclass(frozen=True)
class Figure:
    """One measurement, by a process on the CPUs of a NUMA node."""

    quantity: Annotated[str, OneOf(tuple(WORDS))]
    numa_node: int  #: of the CPUs
    memory_node: int | None  #: whose memory was read; None: a GPU was measured
    gpu: str | None  #: PCI bus id
    value: float | None = None  #: bytes per second: of all rounds the median
    values: Sequence[float] = ()  #: of each round
    why: str | None = None  #: why there is no value

    @property
    def target(self) -> Target:
        """The GPU or memory that was measured from the node."""
        return self.memory_node if self.gpu is None else self.gpu


@dataclass(frozen=True)
class MeasuredGpu:
    """A GPU of the figures, and the NUMA nodes of the CPUs near it; without any: unknown."""

    vendor: str
    index: int
    uuid: str | None
    pci_bus_id: str
    near: Sequence[int]


@dataclass(frozen=True)
class Comparison:
    """How many times better near is than far, for one quantity, over all rounds."""

    quantity: str
    ratio: float  #: the median
    low: float  #: of the interval of 99 %, by bootstrap over the rounds
    high: float
    sentence: str

    @property
    def is_noise(self) -> bool:
        """Whether the rounds do not tell near from far."""
        return self.low < ALIKE and self.high > 1 / ALIKE


@dataclass(frozen=True)
class Measurement:
    """The figures of a node, in the order in which they were measured."""

    version: int
    node: str
    time: str  #: RFC 3339
    sentence: str  #: the result for near and far
    comparisons: Sequence[Comparison]
    gpus: Sequence[MeasuredGpu]
    figures: Sequence[Figure]
    notices: Sequence[str] = ()  #: for people


ALIKE = 1.05  #: a smaller ratio changes no decision
ENOUGH = 5  #: rounds with a figure, for an interval
RESAMPLES = 2000
TAIL = 0.005  #: of the resamples, on each side of the interval

ONE_NODE = "one NUMA node has CPUs here: no CPU is far, and placement by node gains nothing"
NOT_COMPARED = "near and far cannot be compared: no quantity was measured from both in every round"


def near_nodes(figure: Figure, gpus: Iterable[MeasuredGpu]) -> Collection[int]:
    """Return the nodes whose CPUs are near a figure's target: memory's own, or those of a GPU."""
    if figure.memory_node is not None:
        return (figure.memory_node,)
    return next((gpu.near for gpu in gpus if gpu.pci_bus_id == figure.gpu), ())


def by_round(
    figures: Iterable[Figure], gpus: Collection[MeasuredGpu], quantity: str
) -> Mapping[tuple[Target, int], Sequence[float]]:
    """Return (target, NUMA node of CPUs) → of each round near's figure over that node's.

    1.8: near copies 1.8 times as many bytes per second. Near is the median of the near nodes; a
    target without a near figure is left out.
    """
    of_quantity = [
        figure
        for figure in figures
        if figure.quantity == quantity and figure.values and all(figure.values)
    ]
    ratios: dict[tuple[Target, int], Sequence[float]] = {}
    for target, alike in grouped(of_quantity, lambda figure: figure.target).items():
        homes = near_nodes(alike[0], gpus)
        near = [figure.values for figure in alike if figure.numa_node in homes]
        best = [median(values) for values in zip(*near, strict=False)]
        for figure in alike if best else ():
            pairs = zip(best, figure.values, strict=False)
            ratios[target, figure.numa_node] = [at / value for at, value in pairs]
    return ratios


def compare(quantity: str, rounds: Sequence[float]) -> Comparison | None:
    """Return the median of near over far and its interval; None: too few rounds, or no ratios."""
    if len(rounds) < ENOUGH or not all(0 < ratio < inf for ratio in rounds):
        return None
    draw = random.Random(RESAMPLES)  # noqa: S311 - the same figures have the same interval
    medians = sorted(median(draw.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    end = int(RESAMPLES * TAIL)
    ratio, low, high = median(rounds), medians[end], medians[-1 - end]
    comparison = Comparison(quantity, ratio, low, high, "")
    if comparison.is_noise:
        verdict = f"no difference beyond noise (± {max(high, 1 / low, ALIKE) - 1:.0%})"
    elif ratio < 1:
        verdict = (
            f"far is {1 / ratio:.1f} × as fast as near ({1 / high:.1f} to {1 / low:.1f}): the "
            "machine reports wrong nodes, or other work disturbed this"
        )
    else:
        verdict = (
            f"near is {ratio:.1f} × as fast as far ({low:.1f} to {high:.1f}); a job that waits for "
            f"nothing else gains up to {ratio - 1:.0%}"
        )
    return replace(comparison, sentence=f"{WORDS[quantity]}: {verdict}")


def compared(figures: Sequence[Figure], gpus: Sequence[MeasuredGpu]) -> list[Comparison]:
    """Compare near with far, each quantity that was measured from both by itself."""
    homes = {figure.target: near_nodes(figure, gpus) for figure in figures}
    comparisons = []
    for quantity in WORDS:
        far = [
            rounds
            for (target, node), rounds in by_round(figures, gpus, quantity).items()
            if node not in homes[target] and len(rounds) >= ENOUGH
        ]
        rounds_of_all = zip(*far, strict=False)
        comparisons.append(compare(quantity, [median(ratios) for ratios in rounds_of_all]))
    return [comparison for comparison in comparisons if comparison is not None]


def sentence(comparisons: Sequence[Comparison], *, nodes: int) -> str:
    """Return the first comparison that tells near from far; `nodes`: how many have CPUs."""
    if nodes <= 1:
        return ONE_NODE
    told = [comparison for comparison in comparisons if not comparison.is_noise]
    return next((comparison.sentence for comparison in (*told, *comparisons)), NOT_COMPARED)


MAX_BYTES = 16 * 1024 * 1024


def save(measurement: Measurement, path: Path) -> None:
    """Write it atomically, readable by every user, with its folder. Raises OutputError."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(EXECUTABLE)  # independent of the umask
        write_whole(path, f"{dumps(measurement)}\n".encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None


def read(path: str) -> Measurement:
    """Read it back. Raises OSError; ValueError, one line."""
    content = read_regular(path, MAX_BYTES)
    measurement = loads(Measurement, content, os.path.basename(path))  # noqa: PTH119
    if measurement.version != VERSION:
        raise ValueError(f"{path} is of version {measurement.version}, not {VERSION}")
    return measurement


def gpu_ratios(
    path: str, topology: Topology
) -> tuple[Mapping[tuple[str, int], Mapping[int, float]], tuple[str, ...]]:
    """Return the ratios of host-to-device copies from pinned memory, and notices for people.

    GPU key → NUMA node of CPUs → near bandwidth over that node's, 1.0 where the rounds do not tell
    them apart. GPUs that were not measured, by PCI bus id and UUID, and nodes that do not exist
    have none. Without a file both are empty; a file that cannot be read is a notice.
    """
    try:
        measurement = read(path)
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        return {}, (f"{path} is not used: {getattr(error, 'strerror', None) or error}",)
    measured = {(gpu.pci_bus_id, gpu.uuid) for gpu in measurement.gpus}
    here: Mapping[Target, tuple[str, int]] = {
        gpu.pci_bus_id: gpu.key for gpu in topology.gpus if (gpu.pci_bus_id, gpu.uuid) in measured
    }
    ratios: dict[tuple[str, int], dict[int, float]] = {}
    rounds_by_place = by_round(measurement.figures, measurement.gpus, TO_DEVICE)
    for (bus_id, node), rounds in rounds_by_place.items():
        key, comparison = here.get(bus_id), compare(TO_DEVICE, rounds)
        if key is not None and comparison is not None and node in topology.nodes_with_cpus:
            ratio = 1.0 if comparison.is_noise else comparison.ratio
            ratios.setdefault(key, {})[node] = ratio
    return ratios, ()
