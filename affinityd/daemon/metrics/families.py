"""Prometheus metrics as rows of a table: what each says of one thing of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from affinityd.text import one_line
from affinityd.topology.model import Gpu

T = TypeVar("T")
Samples = Iterable[tuple[Sequence[str], float]]  #: each with the labels that only its metric has

GPU_LABELS = ("vendor", "gpu", "uuid", "pci_bus_id")  #: an index counts per vendor


@dataclass(frozen=True)
class MetricFamily(Generic[T]):
    """A metric: what it says of one thing of many."""

    name: str
    help: str
    samples: Callable[[T], Samples]
    labels: tuple[str, ...] = ()
    kind: type[CounterMetricFamily | GaugeMetricFamily] = GaugeMetricFamily


def one(value: float | None) -> Samples:
    """Return the sample of a metric without labels of its own; None: there is none."""
    return () if value is None else (((), value),)


def each(names: Iterable[str], counted: Mapping[str, float]) -> Samples:
    """Return a sample for each name, 0 of what was not counted."""
    return (((name,), counted.get(name, 0)) for name in names)


def whole(family: MetricFamily[T], thing: T) -> Metric:
    """Return a metric of one thing alone, which needs no labels to be told from others."""
    return filled(family, (), [((), thing)])


def gpu_labels(gpu: Gpu) -> tuple[str, ...]:
    """Return the values of GPU_LABELS."""
    return gpu.vendor, str(gpu.index), one_line(gpu.uuid or ""), gpu.pci_bus_id


def filled(
    family: MetricFamily[T], labels: tuple[str, ...], things: Iterable[tuple[Sequence[str], T]]
) -> Metric:
    """Return a metric with the samples of these things, each with its values of `labels`."""
    metric = family.kind(family.name, family.help, labels=(*labels, *family.labels))
    for values, thing in things:
        for more, value in family.samples(thing):
            metric.add_metric([*values, *more], value)
    return metric
