"""The fleet's report as a table, most far GPU-hours first, and its sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from affinityd.cli.console import aligned
from affinityd.fleet.report import FleetReport, FleetRow
from affinityd.text import count

NONE = "-"
HOUR, DAY = 3600, 86400
LATE = 0.1  #: of a window: a later beginning of the series is said
MOST_NODES = 2  #: that a cell names

Cell = Callable[[FleetRow], str]
NUMBERS = {"gpus", "gpu-hours", "far", "share"}


def lines(report: FleetReport, most: int | None) -> Iterator[str]:
    """Yield the lines; `most`: rows of the table, None: all of them."""
    rows = report.rows[:most]
    if rows:
        columns = _columns(report)
        cells = ([cell(row) for cell in columns.values()] for row in rows)
        yield from aligned([*columns], cells, NUMBERS)
    if more := report.rows[len(rows) :]:
        hours = _hours(sum(row.far_gpu_hours for row in more))
        yield f"and {count(len(more), 'row')} more, {hours} GPU-hours far: --all"
    share = _share(report.far_gpu_hours, report.gpu_hours)
    yield (
        f"{_hours(report.far_gpu_hours)} of {_hours(report.gpu_hours)} GPU-hours of jobs were far "
        f"({share}), in {_window(report.seconds)}"
    )
    if report.beginning - (report.end - report.seconds) > LATE * report.seconds:
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.beginning))
        yield f"this Prometheus has no older series of jobs than of {began}"


def _columns(report: FleetReport) -> Mapping[str, Cell]:
    clusters: Mapping[str, Cell] = {"cluster": lambda row: row.labels.get("cluster", NONE)}
    of_jobs: Mapping[str, Cell] = {"gpus": lambda row: NONE if row.gpus is None else str(row.gpus)}
    nodes: Mapping[str, Cell] = {"nodes": lambda row: _nodes(row.nodes)}
    causes: Mapping[str, Cell] = {"cause": lambda row: ", ".join(row.causes)}
    return {
        **(clusters if any("cluster" in row.labels for row in report.rows) else {}),
        report.by: NAMES[report.by],
        **(nodes if report.by != "node" else {}),
        **(of_jobs if report.by == "job" else {}),
        "gpu-hours": lambda row: _hours(row.gpu_hours),
        "far": lambda row: _hours(row.far_gpu_hours),
        "share": lambda row: _share(row.far_gpu_hours, row.gpu_hours),
        **(causes if report.by != "cause" else {}),
        "remedy": lambda row: row.remedy,
    }


def _job(row: FleetRow) -> str:
    """Return `slurm 7`, `team/train-0/main`, or `kubernetes 8a1f…` without names."""
    names = [row.labels[it] for it in ("namespace", "pod", "container") if it in row.labels]
    ids = [row.labels[it] for it in ("scheduler", "job_id") if it in row.labels]
    return "/".join(names) or " ".join(ids) or NONE


def _cause(row: FleetRow) -> str:
    return " ".join(row.labels[it] for it in ("scheduler", "cause") if it in row.labels)


NAMES: Mapping[str, Cell] = {
    "job": _job,
    "namespace": lambda row: row.labels.get("namespace", NONE),
    "node": lambda row: row.labels.get("node", NONE),
    "cause": _cause,
}


def _nodes(nodes: Sequence[str]) -> str:
    more = [f"+{len(nodes) - MOST_NODES}"] if len(nodes) > MOST_NODES else []
    return " ".join([*nodes[:MOST_NODES], *more]) or NONE


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 0.05 or not hours else "<0.1"  # noqa: PLR2004 - rounds to it


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else NONE


def _window(seconds: int) -> str:
    for unit, size in (("d", DAY), ("h", HOUR), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
