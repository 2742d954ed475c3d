"""The document of `affinityd measure --json`, and its file, which the daemon reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated

from affinityd.errors import OutputError
from affinityd.grouping import grouped
from affinityd.json_codec import OneOf, dumps, loads
from affinityd.linux.files import EXECUTABLE, read_regular, write_whole
from affinityd.topology.model import Topology

VERSION = 1

TO_DEVICE, TO_DEVICE_PAGEABLE = "host_to_device_pinned", "host_to_device_pageable"
TO_HOST, TO_HOST_PAGEABLE = "device_to_host_pinned", "device_to_host_pageable"
LAUNCH = "kernel_launch"  #: from the launch of an empty kernel until it has ended
READ, LATENCY = "memory_read", "memory_latency"

OF_GPUS = (TO_DEVICE, TO_HOST, TO_DEVICE_PAGEABLE, TO_HOST_PAGEABLE, LAUNCH)
OF_MEMORY = (READ, LATENCY)
TIMES = (LAUNCH, LATENCY)  #: in seconds, less is better; the others are bytes per second


#: The PCI bus id of a GPU, or the number of a memory's node.
Target = int | str | None


@dataclass(frozen=True)
class Figure:
    """One measurement, by a process on the CPUs of a NUMA node."""

    quantity: Annotated[str, OneOf((*OF_GPUS, *OF_MEMORY))]
    numa_node: int  #: of the CPUs
    memory_node: int | None  #: whose memory was read; None: a GPU was measured
    gpu: str | None  #: PCI bus id
    value: float | None = None  #: bytes per second, or seconds; None: not measured
    why: str | None = None  #: why it was not measured

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
class Measurement:
    """The figures of a node, in the order in which they were measured."""

    version: int
    node: str
    time: str  #: RFC 3339
    sentence: str  #: the result for near and far
    gpus: Sequence[MeasuredGpu]
    figures: Sequence[Figure]
    notices: Sequence[str] = ()  #: for people


ALIKE = 1.05  #: a smaller ratio is within what measurements of a tenth of a second vary

#: The quantities of the sentence, the first that was measured near and far, and its words.
COMPARED = {
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
    of_quantity = [figure for figure in figures if figure.quantity == quantity and figure.value]
    by_target: dict[Target, Mapping[int, float]] = {}
    for target, alike in grouped(of_quantity, lambda figure: figure.target).items():
        homes = near_nodes(alike[0], gpus)
        values = {figure.numa_node: figure.value for figure in alike if figure.value}
        at_home = [value for node, value in values.items() if node in homes]
        if at_home:
            best, power = median(at_home), -1 if quantity in TIMES else 1
            by_target[target] = {node: (best / value) ** power for node, value in values.items()}
    return by_target


def sentence(figures: Sequence[Figure], gpus: Sequence[MeasuredGpu], *, nodes: int) -> str:
    """Compare near with far, on one line; `nodes`: how many have CPUs."""
    if nodes <= 1:
        return ONE_NODE
    for quantity, words in COMPARED.items():
        by_target = ratios(figures, gpus, quantity)
        far = [
            by_target[figure.target][figure.numa_node]
            for figure in figures
            if figure.quantity == quantity and figure.value and figure.target in by_target
            if figure.numa_node not in near_nodes(figure, gpus)
        ]
        if far:
            without = UNMEASURED if quantity == READ and gpus else ""
            return _comparison(median(far), words) + without
    return NOT_COMPARED


def _comparison(ratio: float, words: str) -> str:
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

    GPU key → NUMA node of CPUs → near bandwidth over that node's. GPUs that were not measured, by
    PCI bus id and UUID, and nodes that do not exist have none. Without a file both are empty; a
    file that cannot be read is a notice.
    """
    try:
        measurement = read(path)
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        return {}, (f"{path} is not used: {getattr(error, 'strerror', None) or error}",)
    measured = {(gpu.pci_bus_id, gpu.uuid) for gpu in measurement.gpus}
    by_target = ratios(measurement.figures, measurement.gpus, TO_DEVICE)
    here = {
        gpu.key: {
            node: ratio
            for node, ratio in by_target.get(gpu.pci_bus_id, {}).items()
            if node in topology.nodes_with_cpus and 0 < ratio < inf
        }
        for gpu in topology.gpus
        if (gpu.pci_bus_id, gpu.uuid) in measured
    }
    return {key: by_node for key, by_node in here.items() if by_node}, ()
