"""The report's rows, from answers of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from affinityd.cli.render.fleet import lines
from affinityd.errors import PrometheusError
from affinityd.fleet.prometheus import Sample
from affinityd.fleet.queries import DAEMONS, KEYS, RULES, STEP, Queries, Source
from affinityd.fleet.report import MASKED, NO_PIN, Ask, FleetReport, remedy, report
from affinityd.topology.nearness import CAUSES
from tests.support.paths import REPOSITORY

WEEK, NOW = 7 * 86400, 1_800_000_000.0


def sample(number: float, **labels: str) -> Sample:
    return Sample(labels, (NOW, str(number)))


def answering(
    answers: Mapping[str, Sequence[Sample]], *, beginnings: Mapping[Source, float], daemons: int = 0
) -> Ask:
    """Return a Prometheus with these series; `answers`: far, held and gpus, by their queries."""

    def ask(expr: str, at: float | None) -> Sequence[Sample]:
        for source, began in beginnings.items():
            for by in KEYS:
                queries = Queries(by, WEEK)
                if expr == queries.beginning(source):
                    return [sample(began)]
                for kind in ("far", "held", "gpus"):
                    if expr == getattr(queries, kind)(source):
                        assert at == NOW, "one moment for all"
                        return answers[kind]
        return [sample(daemons)] if daemons and expr == Queries("job", WEEK).daemons() else []

    return ask


SPANS = {"scheduler": "slurm", "job_id": "7"}
POD = {"scheduler": "kubernetes", "job_id": "8a", "namespace": "team", "pod": "train-0"}
POD |= {"container": "main"}
OTHER = {"job_id": "other"}
JOBS = {
    "far": [
        sample(210, **SPANS, node="gpu07", cause="mask"),
        sample(250, **SPANS, node="gpu08", cause="allocation"),
        sample(210, **SPANS, node="gpu09", cause="mask"),
        sample(0.04, **OTHER, node="gpu07", cause="unpinned"),
        sample(1312.4, **POD, node="gpu10", cause="allocation"),
    ],
    "held": [
        sample(960, **SPANS),
        sample(1344, **POD),
        sample(5, **OTHER),
        sample(8500, scheduler="slurm", job_id="8"),
    ],
    "gpus": [sample(24, **SPANS), sample(8, **POD), sample(1, **OTHER)],
}
PAGE = (REPOSITORY / "docs" / "monitoring.md").read_text()
(TABLE,) = re.findall(r"^\$ affinityd fleet.*\n((?:.+\n)+?)```", PAGE, re.MULTILINE)


def reported(by: str = "job", jobs: Mapping[str, Sequence[Sample]] = JOBS) -> FleetReport:
    return report(answering(jobs, beginnings={RULES: NOW - WEEK}), Queries(by, WEEK))


def test_a_job_that_spans_nodes_is_one_row_and_a_job_that_is_near_none() -> None:
    assert [*lines(reported(), None)] == TABLE.splitlines()


def test_rows_that_are_left_out_are_counted() -> None:
    cut = list(lines(reported(), 1))
    assert cut[2] == "and 2 rows more, 670.0 GPU-hours far: --all"
    assert cut[3] == TABLE.splitlines()[-1]


def test_without_a_mismatch_there_is_the_sum_alone() -> None:
    near = {**JOBS, "far": []}
    assert [*lines(reported(jobs=near), None)] == [
        "0.0 of 10,809.0 GPU-hours of jobs were far (0%), in 7 d"
    ]


def test_clusters_have_a_column_if_there_are_any() -> None:
    east = {
        kind: [*its, *(Sample({**it.metric, "cluster": "east"}, it.value) for it in its)]
        for kind, its in JOBS.items()
    }
    head, *rows = lines(reported(jobs=east), None)
    assert head.split()[:2] == ["cluster", "job"]
    assert [row.split()[0] for row in rows[:2]] == ["-", "east"]


@pytest.mark.parametrize(
    ("began", "source"),
    [
        ({RULES: 0}, RULES),
        ({DAEMONS: 0}, DAEMONS),
        ({RULES: 0, DAEMONS: 0}, RULES),
        ({RULES: STEP, DAEMONS: 0}, RULES),  # the rates begin later than the counters
        ({RULES: STEP + 1, DAEMONS: 0}, DAEMONS),  # the rules were loaded later
    ],
)
def test_the_series_that_reach_back_further_are_asked(
    began: Mapping[Source, float], source: Source
) -> None:
    beginnings = {it: NOW - WEEK + late for it, late in began.items()}
    found = report(answering(JOBS, beginnings=beginnings), Queries("job", WEEK))
    assert (found.source, found.beginning) == (source.name, beginnings[source])


def test_a_window_that_the_series_do_not_fill_is_said() -> None:
    ask = answering(JOBS, beginnings={RULES: NOW - 86400})
    *_, last = lines(report(ask, Queries("job", WEEK)), None)
    assert last == "this Prometheus has no older series of jobs than of 2027-01-14 08:00 UTC"


@pytest.mark.parametrize(
    ("daemons", "words"),
    [(0, "does it scrape the daemons?"), (3, "of 3 daemons, and no GPU-hours")],
)
def test_without_series_of_jobs_it_says_what_is_missing(daemons: int, words: str) -> None:
    with pytest.raises(PrometheusError, match=words):
        report(answering({}, beginnings={}, daemons=daemons), Queries("job", WEEK))


def test_every_cause_has_a_remedy_by_the_scheduler_that_gave_the_cpus() -> None:
    found = {
        (it, cause): remedy(it, cause) for it in ("slurm", "kubernetes", "") for cause in CAUSES
    }
    assert len(set(found.values())) == 5
    assert (found["slurm", "mask"], found["", "unpinned"]) == (MASKED, NO_PIN)
    assert "gres.conf" in found["slurm", "allocation"]
    assert "topologyManagerPolicy" in found["kubernetes", "allocation"]
