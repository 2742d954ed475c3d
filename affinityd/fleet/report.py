"""The report: which jobs were placed far, by which cause, and how many GPU-hours that concerned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.facts.job import KUBERNETES, SLURM
from affinityd.errors import PrometheusError
from affinityd.fleet.prometheus import Sample
from affinityd.fleet.queries import CAUSE, DAEMONS, RULES, STEP, Queries, Source
from affinityd.text import count, printable
from affinityd.topology.nearness import ALLOCATION, MASK

NEVER = Sample({}, (0.0, "inf"))  #: when series begin that there are not
RowKey = tuple[str, ...]  #: the values of a row's labels
#: Asks Prometheus, as of a time in seconds since the epoch, or now; raises PrometheusError.
Ask = Callable[[str, float | None], Sequence[Sample]]

#: Scheduler → the settings by which it gives jobs near CPUs.
ALLOCATED = {
    SLURM: "Slurm: gres.conf Cores=, --gres-flags=enforce-binding",
    KUBERNETES: "kubelet: topologyManagerPolicy, cpuManagerPolicy: static",
}
OF_A_SCHEDULER = "the scheduler: its cpusets"
MASKED = "job: affinityd exec, or its --cpu-bind, numactl, taskset"
NO_PIN = "job: affinityd exec, or the daemon: --enforce pin"

NO_SERIES = (
    "it has no series of affinityd in this time: does it scrape the daemons? "
    "docs/monitoring.md shows the configuration"
)
NO_JOBS = (
    "it has series of {daemons}, and no GPU-hours of jobs: daemons of this release count "
    "them with --job-series (in the chart settings.jobSeries)"
)


@dataclass(frozen=True)
class FleetRow:
    """A job, namespace, node or cause, and its GPU-hours. None: not asked for."""

    labels: Mapping[str, str]  #: as `by` says; empty ones are left out
    nodes: Sequence[str]  #: with a mismatch of it
    gpus: int | None  #: of a job: the most that it had
    gpu_hours: float
    far_gpu_hours: float  #: with a process that may run on far CPUs
    causes: Mapping[str, float]  #: cause → its far GPU-hours, most first
    remedy: str  #: of the first cause: who can correct it, and the setting


@dataclass(frozen=True)
class FleetReport:
    """The document of `affinityd fleet --json`."""

    by: str
    seconds: int  #: the window, which ended at `end`
    source: str  #: rules or daemons: which series were asked
    beginning: float  #: of the series in the window, seconds since the epoch
    end: float
    gpu_hours: float  #: of all jobs, also those without a mismatch
    far_gpu_hours: float
    rows: Sequence[FleetRow]  #: most far GPU-hours first


def report(ask: Ask, queries: Queries) -> FleetReport:
    """Return the report. Raises PrometheusError: no answer, or no series of jobs."""
    source, beginning, end = _source(ask, queries)
    held = _numbers(ask(queries.held(source), end), queries.held_keys)
    gpus = _numbers(
        ask(queries.gpus(source), end) if queries.by == "job" else (), queries.held_keys
    )
    of: defaultdict[RowKey, list[Sample]] = defaultdict(list)
    for sample in ask(queries.far(source), end):
        of[_key(sample, queries.keys)].append(sample)
    rows = [
        _row(dict(zip(queries.keys, key, strict=True)), of[key], held, gpus) for key in sorted(of)
    ]
    rows.sort(key=lambda row: -row.far_gpu_hours)
    return FleetReport(
        queries.by,
        queries.window,
        source.name,
        beginning,
        end,
        sum(held.values()),
        sum(row.far_gpu_hours for row in rows),
        rows,
    )


def remedy(scheduler: str, cause: str) -> str:
    """Return who can correct a cause, and by which setting."""
    if cause == ALLOCATION:
        return ALLOCATED.get(scheduler, OF_A_SCHEDULER)
    return MASKED if cause == MASK else NO_PIN


def _source(ask: Ask, queries: Queries) -> tuple[Source, float, float]:
    """Return the source that reaches back further, the beginning of its series, and now.

    The records come first: they are few. Their rates begin some minutes after the counters.
    """
    found = {source: ask(queries.beginning(source), None) for source in (RULES, DAEMONS)}
    known = {source: its[0] for source, its in found.items() if its}
    if not known:
        number = sum(int(it.number) for it in ask(queries.daemons(), None))
        daemons = count(number, "daemon")
        raise PrometheusError(NO_JOBS.format(daemons=daemons) if number else NO_SERIES)
    recorded, told = (known.get(it, NEVER) for it in (RULES, DAEMONS))
    source = RULES if recorded.number <= told.number + STEP else DAEMONS
    return source, known[source].number, known[source].value[0]


def _row(
    labels: Mapping[str, str],
    samples: Sequence[Sample],
    held: Mapping[RowKey, float],
    gpus: Mapping[RowKey, float],
) -> FleetRow:
    key = tuple(text for name, text in labels.items() if name != CAUSE)
    causes: defaultdict[tuple[str, str], float] = defaultdict(float)
    for sample in samples:
        cause, scheduler = _key(sample, (CAUSE, "scheduler"))
        causes[cause, scheduler] += sample.number
    most_first = sorted(causes, key=lambda it: -causes[it])
    cause, scheduler = most_first[0]
    return FleetRow(
        labels={name: printable(text) for name, text in labels.items() if text},
        nodes=sorted({printable(_label(it, "node")) for it in samples} - {""}),
        gpus=round(gpus[key]) if key in gpus else None,
        gpu_hours=held.get(key, 0.0),
        far_gpu_hours=sum(causes.values()),
        causes={name: sum(causes[it] for it in causes if it[0] == name) for name, _ in most_first},
        remedy=remedy(scheduler, cause),
    )


def _numbers(samples: Sequence[Sample], keys: Sequence[str]) -> dict[RowKey, float]:
    return {_key(it, keys): it.number for it in samples}


def _key(sample: Sample, keys: Sequence[str]) -> RowKey:
    return tuple(_label(sample, key) for key in keys)


def _label(sample: Sample, name: str) -> str:
    return sample.metric.get(name, "")
