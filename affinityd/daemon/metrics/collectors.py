"""Metrics that are asked for at each scrape: NVML's failures, and how old the last scan is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class NvmlCollector:
    """Says how often NVML did not answer."""

    def __init__(self, failures: Mapping[str, int]) -> None:
        """Take the numbers so far, by question."""
        self._failures = failures

    def describe(self) -> list[Metric]:
        """Return nothing: the numbers say it."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        found = CounterMetricFamily(
            "affinityd_nvml_failures",
            "Questions that NVML did not answer, by what it was asked for: topology or processes.",
            labels=["question"],
        )
        for question, number in self._failures.items():
            found.add_metric([question], number)
        yield found


class ScanCollector:
    """Says how old the last scan is, and may be: of one that hangs, that is all there is to see."""

    def __init__(self, interval: float | None, age: Callable[[], float | None]) -> None:
        """Take both in seconds; None: there are no scans, and before the first."""
        self._interval = interval
        self._age = age

    def describe(self) -> list[Metric]:
        """Return nothing: there has been no scan yet when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what is known of them."""
        if self._interval is not None:
            yield GaugeMetricFamily(
                "affinityd_scan_interval_seconds",
                "How often the processes are looked at.",
                value=self._interval,
            )
        if (age := self._age()) is not None:
            yield GaugeMetricFamily(
                "affinityd_scan_age_seconds",
                "How long ago the last finished scan of the processes began.",
                value=age,
            )
