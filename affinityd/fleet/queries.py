"""The queries of the report: GPU-hours by the records of the rules, or by the daemons' series."""

from __future__ import annotations

from dataclasses import dataclass

STEP = 300  #: seconds between two samples of a record, whose rates are of 5 minutes
FEWEST = 60  #: samples in a short window

#: The kinds of rows, each with its labels. `cause` is a label of mismatches alone.
KEYS = {
    "job": ("cluster", "scheduler", "job_id", "namespace", "pod", "container"),
    "namespace": ("cluster", "namespace"),
    "node": ("cluster", "node"),
    "cause": ("cluster", "scheduler", "cause"),
}
CAUSE = "cause"


@dataclass(frozen=True)
class Source:
    """Series with the GPU-hours of jobs."""

    name: str  #: rules, or daemons
    held: str  #: GPUs, or seconds of GPUs, that jobs held
    far: str  #: those with a mismatch, with its cause
    gpus: str
    hours: str  #: a query: the GPU-hours of a series in a window


RULES = Source(
    "rules",
    "node_job:affinityd_job_gpu_seconds:rate5m",
    "node_job_cause:affinityd_job_mismatched_gpu_seconds:rate5m",
    "node_job:affinityd_job_gpus:max",
    "sum_over_time({series}[{window}s:{step}s]) * {step} / 3600",
)
DAEMONS = Source(
    "daemons",
    "affinityd_job_gpu_seconds_total",
    "affinityd_job_mismatched_gpu_seconds_total",
    "affinityd_job_gpus",
    "increase({series}[{window}s]) / 3600",
)


@dataclass(frozen=True)
class Queries:
    """The queries of one report, which ends now."""

    by: str  #: one of KEYS
    window: int  #: seconds

    @property
    def step(self) -> int:
        """Seconds between two samples of a record."""
        return max(1, min(STEP, self.window // FEWEST))

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels of a row."""
        return KEYS[self.by]

    @property
    def held_keys(self) -> tuple[str, ...]:
        """The labels of a row that all GPU-hours have."""
        return tuple(key for key in self.keys if key != CAUSE)

    def far(self, source: Source) -> str:
        """Return the query for the GPU-hours with a mismatch, by row, node, scheduler and cause."""
        labels = dict.fromkeys((*self.keys, "node", "scheduler", CAUSE))
        return f"sum by ({', '.join(labels)}) ({self._hours(source, source.far)}) > 0"

    def held(self, source: Source) -> str:
        """Return the query for all GPU-hours, by row."""
        return f"sum by ({', '.join(self.held_keys)}) ({self._hours(source, source.held)})"

    def gpus(self, source: Source) -> str:
        """Return the query for the most GPUs that a row had on each of its nodes, summed up."""
        most = f"max_over_time({source.gpus}[{self.window}s])"
        return f"sum by ({', '.join(self.held_keys)}) ({most})"

    def beginning(self, source: Source) -> str:
        """Return the query for the first step of the window at which there were such series.

        The daemons' series may be younger than a step; records of a step are none.
        """
        now = f"timestamp(count({source.held}))"
        first = f"min_over_time({now}[{self.window}s:{self.step}s])"
        return f"{first} or {now}" if source is DAEMONS else first

    def daemons(self) -> str:
        """Return the query for the number of daemons in the window."""
        return f"count(max_over_time(affinityd_build_info[{self.window}s]))"

    def _hours(self, source: Source, series: str) -> str:
        return source.hours.format(series=series, window=self.window, step=self.step)
