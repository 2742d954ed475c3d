"""The document of `affinityd measure --json` and of the file that the daemon reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from affinityd.json_codec import OneOf

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
