"""The GPU-hours of the fleet dashboard's table of jobs, played by promtool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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


def rounded(expr: str, answers: Mapping[str, float]) -> Played:
    """Return a test: to a tenth, a query of two clusters has these answers."""
    return asked(f"round({expr}, 0.1)", {**PLAYED, **clustered(PLAYED, "east")}, NOW, answers)


def test_gpu_hours_survive_restarts_and_new_addresses(tmp_path: Path) -> None:
    chosen = {"$cluster": "", "$job": "affinityd", "$node": ".*", "$__range": f"{WINDOW}s"}
    panels = (it for name, board in documents() if name == "fleet" for it in board["panels"])
    (table,) = (it for it in panels if it["title"].startswith("Which jobs were placed far"))
    rows = [
        labels(SLURM, cause="allocation"),
        labels(SLURM, cause="mask"),
        labels(POD, cause="mask"),
    ]
    answers = ((2, 1, 0.5), (0.7, 0.3, 0.5), (1, 1, 1))  # hours, their share, nodes
    tests = []
    for target, values in zip(table["targets"], answers, strict=True):
        expr = target["expr"].replace("$job_id", ".*")
        for name, value in chosen.items():
            expr = expr.replace(name, value)
        tests.append(rounded(expr, dict(zip(rows, values, strict=True))))
    play(tmp_path, *tests)
