"""Prometheus metrics as rows of a table: each row is one value of many objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from affinityd.text import one_line
from affinityd.topology.model import Gpu

if TYPE_CHECKING:
    from affinityd.audit.document import AuditGpuDocument

T = TypeVar("T")

GPU_LABELS = ("vendor", "gpu", "uuid", "pci_bus_id")  #: an index counts per vendor


@dataclass(frozen=True)
class MetricFamily(Generic[T]):
    """A metric: a counter if its name ends in `_total`, else a gauge."""

    name: str
    help: str
    #: Returns its one sample of a thing; None: there is none; a mapping: one for each value of
    #: `label`.
    read: Callable[[T], float | Mapping[str, float] | None]
    label: str = ""


def each(names: Iterable[str], counted: Mapping[str, float]) -> dict[str, float]:
    """Return a sample for each name, 0 if it was not counted."""
    return {name: counted.get(name, 0) for name in names}


def gpu_labels(gpu: Gpu | AuditGpuDocument) -> tuple[str, ...]:
    """Return the values of GPU_LABELS."""
    return gpu.vendor, str(gpu.index), one_line(gpu.uuid or ""), gpu.pci_bus_id


def filled(
    families: Iterable[MetricFamily[T]],
    things: Collection[tuple[Sequence[str], T]],
    labels: tuple[str, ...] = (),
) -> Iterator[Metric]:
    """Yield the metrics that have samples of these things, each with its values of `labels`."""
    for family in families:
        kind = CounterMetricFamily if family.name.endswith("_total") else GaugeMetricFamily
        label = (family.label,) if family.label else ()
        metric = kind(family.name, family.help, labels=(*labels, *label))
        for values, thing in things:
            read = family.read(thing)
            if isinstance(read, Mapping):
                for value, number in read.items():
                    metric.add_metric([*values, value], number)
            elif read is not None:
                metric.add_metric(values, read)
        if metric.samples:
            yield metric


def whole(families: Iterable[MetricFamily[T]], thing: T) -> Iterator[Metric]:
    """Yield metrics without labels."""
    return filled(families, [((), thing)])
