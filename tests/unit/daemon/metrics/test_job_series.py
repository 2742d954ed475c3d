"""Which jobs have metrics of their own, and that no counter ever goes back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from affinityd.audit.facts.job import Job
from affinityd.audit.model import AuditedProcess, CpuTime, Scan
from affinityd.daemon.metrics.audit import OTHERS, JobRow, JobSeries
from affinityd.topology.nearness import CAUSES
from tests.support.scans import GPU0, GPU1, process, scan

ONE, TWO, THREE, FOUR = (Job("slurm", str(number)) for number in range(1, 5))


def ran(times: Mapping[Job, float]) -> Scan:
    """Return a scan by which these jobs have used so many seconds, half of them far away."""
    return scan(job_time={job: CpuTime(total, total / 2) for job, total in times.items()})


def totals(rows: tuple[JobRow, ...]) -> dict[str, float]:
    return {row.job.id: row.time.total for row in rows}


def test_the_jobs_that_were_seen_first_have_rows_and_the_others_share_one() -> None:
    series = JobSeries(2)
    assert totals(series.scanned(ran({ONE: 1, TWO: 2}))) == {"1": 1, "2": 2}
    later = ran({THREE: 4, ONE: 1, TWO: 3, FOUR: 8})
    for _ in range(2):  # a scan that is told twice counts once
        assert totals(series.scanned(later)) == {"1": 1, "2": 3, "other": 12}


def test_the_shared_counters_grow_by_what_is_used_and_never_fall_as_jobs_go() -> None:
    series = JobSeries(1)
    series.scanned(ran({ONE: 1, TWO: 2, THREE: 4}))
    assert totals(series.scanned(ran({ONE: 1, TWO: 3, THREE: 4})))["other"] == 7
    # A job that shares goes on sharing, and a new one takes the place that is free.
    assert totals(series.scanned(ran({THREE: 5, FOUR: 1}))) == {"4": 1, "other": 8}
    (row,) = series.scanned(ran({}))
    assert (row.job, row.time) == (OTHERS, CpuTime(8, 4))


def test_a_row_tells_the_jobs_gpus_and_those_that_it_is_far_from_and_since_when() -> None:
    found = scan(
        process(1, GPU0, job=ONE, cause="mask", placement="remote"),
        process(2, GPU0, job=ONE),
        process(3, GPU1, job=ONE),
        process(4, GPU1, job=TWO, cause="mask", placement="remote"),
        process(5, GPU1, job=THREE),
        process(6, GPU0, job=TWO, is_daemon=True),
        process(7, GPU1),
        job_time={ONE: CpuTime(2.0, 1.0), TWO: CpuTime(4.0, 0.0), THREE: CpuTime()},
        since={ONE: 1700000000.0, TWO: 1700000001.0},
    )
    none = dict.fromkeys(CAUSES, 0.0)
    assert JobSeries(1).scanned(found) == (
        JobRow(ONE, 2, 1, CpuTime(2.0, 1.0), 1700000000.0, 0.0, none),
        JobRow(OTHERS, 1, 1, CpuTime(4.0, 0.0), None, 0.0, none),
    )


FAR, UNPINNED = (
    process(cause=cause, job=ONE, placement=placement)
    for cause, placement in (("mask", "remote"), ("unpinned", "unpinned"))
)
NEAR, ON_BOTH = process(job=ONE), process(job=ONE, gpu=GPU1)
SHARES = process(job=TWO, cause="mask", placement="remote", gpu=GPU1)
Held = tuple[float, dict[str, float]]  #: seconds of GPUs, and of those with a mismatch


@pytest.mark.parametrize(
    ("scans", "own", "shared"),
    [
        ([[NEAR]], (0, {}), None),  # the counters begin at 0
        ([[NEAR], [NEAR]], (10, {}), None),
        ([[FAR], [NEAR]], (10, {"mask": 10}), None),  # a finding holds until the next scan
        ([[NEAR, FAR], [NEAR, FAR]], (10, {"mask": 10}), None),  # a GPU counts once,
        ([[UNPINNED, FAR], [FAR]], (10, {"mask": 10}), None),  # by its first cause
        ([[UNPINNED], [FAR], []], (20, {"mask": 10, "unpinned": 10}), None),
        ([[FAR, ON_BOTH], [NEAR, ON_BOTH]], (20, {"mask": 10}), None),
        ([[FAR], [], [], [FAR], [FAR]], (20, {"mask": 20}), None),
        ([[NEAR, SHARES], [NEAR, SHARES], [NEAR]], (20, {}), (20, {"mask": 20})),
    ],
)
def test_the_seconds_of_gpus_are_counted_and_those_of_a_mismatch_by_its_cause(
    scans: list[list[AuditedProcess]], own: Held, shared: Held | None
) -> None:
    series, rows = JobSeries(1), {}
    jobs = {ONE: CpuTime(), **({TWO: CpuTime()} if shared else {})}
    for number, processes in enumerate(scans):
        found = scan(*processes, job_time=jobs, boot=1000.0 + 10 * number)
        for _ in range(2):  # a scan that is told twice counts once
            rows = {row.job: row for row in series.scanned(found)}
    expected = {ONE: own} | ({OTHERS: shared} if shared else {})
    assert {
        job: (row.gpu_seconds, {it: by for it, by in row.mismatched_gpu_seconds.items() if by})
        for job, row in rows.items()
    } == expected
