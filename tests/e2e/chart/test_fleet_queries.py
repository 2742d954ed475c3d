"""The queries of `affinityd fleet`, played by promtool, by both kinds of series."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.fleet.queries import DAEMONS, RULES, Queries, Source
from tests.e2e.chart.promtool import Played, asked, play
from tests.e2e.chart.series import GPU07, GPU08, Series, clustered, labels
from tests.e2e.prometheus.queries import documents

WINDOW, NOW = 7200, 80  #: seconds, and the minute of the question
SLURM = {"scheduler": "slurm", "job_id": "4711"}
POD = {"scheduler": "kubernetes", "job_id": "8a1f", "namespace": "team", "pod": "train-0"}
GOOD = {"scheduler": "slurm", "job_id": "4712"}
HOUR = "0+60x60 3600x5 stale"  #: of one GPU, and the five minutes that a daemon remembers a job


def told(place: Mapping[str, str], job: Mapping[str, str], held: str, **far: str) -> Series:
    """Return a daemon's series of a job: the seconds of its GPUs, and those far by cause."""
    name, its = "affinityd_job_{}gpu_seconds_total", {**place, **job}
    by_cause = {cause: far.get(cause, "0x65 stale") for cause in ("allocation", "mask")}
    return {f"{name.format('')}{labels(its)}": held} | {
        f"{name.format('mismatched_')}{labels(its, cause=cause)}": text
        for cause, text in by_cause.items()
    }


#: A job on two nodes: on the second the daemon restarts after half an hour, and has a new address.
SPANS = {
    **told(GPU07, SLURM, "0+120x60 7200x5 stale", allocation="0+120x60 7200x5 stale"),
    **told(GPU08, SLURM, "0+60x30 stale", mask="0+60x30 stale"),
    **told(
        {**GPU08, "instance": "c"},
        SLURM,
        "_x31 0+60x30 1800x5 stale",
        mask="_x31 0+60x30 1800x5 stale",
    ),
}
#: One whose daemon restarts at the same address; its second half is near.
RESTARTS = told(GPU07, POD, "0+60x30 0+60x30 1800x5 stale", mask="0+60x30 0x36 stale")
PLAYED = {**SPANS, **RESTARTS, **told(GPU08, GOOD, HOUR)}

ALLOCATED = {"cause": "allocation", "node": "gpu07"}
MASKED = {"cause": "mask"}
FAR: Mapping[str, Mapping[str, float]] = {
    "job": {
        labels(SLURM, **ALLOCATED): 2,
        labels(SLURM, **MASKED, node="gpu08"): 1,
        labels(POD, **MASKED, node="gpu07"): 0.5,
    },
    "node": {
        labels(ALLOCATED, scheduler="slurm"): 2,
        labels(MASKED, node="gpu08", scheduler="slurm"): 1,
        labels(MASKED, node="gpu07", scheduler="kubernetes"): 0.5,
    },
    "namespace": {
        labels(ALLOCATED, scheduler="slurm"): 2,
        labels(MASKED, node="gpu08", scheduler="slurm"): 1,
        labels(MASKED, node="gpu07", scheduler="kubernetes", namespace="team"): 0.5,
    },
}
HELD: Mapping[str, Mapping[str, float]] = {
    "job": {labels(SLURM): 3, labels(POD): 1, labels(GOOD): 1},
    "node": {labels(node="gpu07"): 3, labels(node="gpu08"): 2},
    "namespace": {"{}": 4, labels(namespace="team"): 1},
    "cause": {labels(scheduler="slurm"): 4, labels(scheduler="kubernetes"): 1},
}
FAR = {**FAR, "cause": FAR["node"]}


def rounded(expr: str, answers: Mapping[str, float]) -> Played:
    """Return a test: to a tenth, a query of two clusters has these answers."""
    return asked(f"round({expr}, 0.1)", {**PLAYED, **clustered(PLAYED, "east")}, NOW, answers)


def in_both(answers: Mapping[str, float]) -> Mapping[str, float]:
    """Return answers of a cluster without a name, and of one with a name."""
    named = {
        its.replace("{", '{cluster="east",', 1).replace(",}", "}"): value
        for its, value in answers.items()
    }
    return {**answers, **named}


@pytest.mark.parametrize("source", [RULES, DAEMONS], ids=lambda it: it.name)
@pytest.mark.parametrize("by", FAR)
def test_gpu_hours_survive_restarts_and_new_addresses(
    tmp_path: Path, by: str, source: Source
) -> None:
    queries = Queries(by, WINDOW)
    play(
        tmp_path,
        rounded(queries.far(source), in_both(FAR[by])),
        rounded(queries.held(source), in_both(HELD[by])),
    )


def test_the_dashboards_table_has_the_same_gpu_hours(tmp_path: Path) -> None:
    chosen = {"$cluster": "", "$job": "affinityd", "$node": ".*", "$__range": f"{WINDOW}s"}
    panels = (it for name, board in documents() if name == "fleet" for it in board["panels"])
    (table,) = (it for it in panels if it["title"].startswith("Which jobs were placed far"))
    rows = [labels(SLURM, cause="allocation"), labels(SLURM, **MASKED), labels(POD, **MASKED)]
    answers = ((2, 1, 0.5), (0.7, 0.3, 0.5), (1, 1, 1))  # hours, their share, nodes
    tests = []
    for target, values in zip(table["targets"], answers, strict=True):
        expr = target["expr"].replace("$job_id", ".*")
        for name, value in chosen.items():
            expr = expr.replace(name, value)
        tests.append(rounded(expr, dict(zip(rows, values, strict=True))))
    play(tmp_path, *tests)


def test_the_most_gpus_of_a_job_are_those_of_its_nodes_together(tmp_path: Path) -> None:
    gpus = {
        f"affinityd_job_gpus{labels(place, **SLURM)}": samples
        for place, samples in ((GPU07, "1x9 2x50 0x5 stale"), (GPU08, "8x60 0x5 stale"))
    }
    answers = {labels(SLURM): 10.0}
    tests = (asked(Queries("job", WINDOW).gpus(it), gpus, NOW, answers) for it in (RULES, DAEMONS))
    play(tmp_path, *tests)


def test_series_begin_where_they_begin(tmp_path: Path) -> None:
    late, later = (dict.fromkeys(PLAYED, f"_x{minutes} 0+9x70") for minutes in (20, 21))
    queries, of_week = Queries("job", WINDOW), Queries("job", 7 * 86400)
    play(
        tmp_path,
        asked(queries.beginning(DAEMONS), late, NOW, {"{}": 20 * 60}),
        asked(queries.beginning(RULES), late, NOW, {"{}": 22 * 60}),
        # Younger than a step of a long window.
        asked(of_week.beginning(DAEMONS), later, 24, {"{}": 24 * 60}),
        asked(of_week.beginning(RULES), later, 24, {}),
    )
