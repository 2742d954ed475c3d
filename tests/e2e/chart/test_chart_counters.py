"""Rules over counters that have gaps, restart or are new, or that two daemons of a node report.

A counter begins at 0, so a rate counts all of it: tests/unit/daemon/metrics checks that.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.chart.promtool import (
    FAR,
    RECORDS,
    TOTAL,
    Series,
    asked,
    clustered,
    labels,
    mismatch,
    of_gpu,
    play,
    series,
)

NODE = {"job": "affinityd", "node": "gpu07"}
JOB = {"scheduler": "slurm", "job_id": "7"}

#: A recorded rate → the counters behind the rate, and the labels of the recorded sample.
RATES: Mapping[str, tuple[list[str], Mapping[str, str]]] = {
    "node:affinityd_gpu_cpu_seconds:rate5m": ([TOTAL, FAR], NODE),
    "node:affinityd_gpu_remote_cpu_seconds:rate5m": ([FAR], NODE),
    "node_job:affinityd_job_gpu_seconds:rate5m": (
        [series("affinityd_job_gpu_seconds_total", **JOB)],
        {**NODE, **JOB},
    ),
    "node_job_cause:affinityd_job_mismatched_gpu_seconds:rate5m": (
        [series("affinityd_job_mismatched_gpu_seconds_total", **JOB, cause="mask")],
        {**NODE, **JOB, "cause": "mask"},
    ),
}

STEADY = "0+120x20"  #: 2 CPU seconds in each second
#: A history → one daemon's samples, a second daemon's, a minute, and the rate in that minute.
HISTORIES: Mapping[str, tuple[str, str | None, int, float | None]] = {
    "two scrapes are missing": ("0+120x4 _ _ 840+120x9", None, 9, 2),
    "four minutes after a restart of the daemon": ("0+120x4 0+120x9", None, 8, 1.6),
    "long after a restart": ("0+120x4 0+120x9", None, 12, 2),
    "a new counter: all of it is counted": ("_ _ _ _ _ 0+100x9", None, 8, 1),  # 300 in 300 s
    "a new counter that stays at 0": ("_ _ _ _ _ 0x9", None, 8, 0),
    "scrapes are missing for more than five minutes": ("0+120x4 _x9", None, 12, None),
    "the node is gone": ("0+120x9 stale", None, 15, None),
    "two daemons that count the same": (STEADY, STEADY, 8, 2),
    "two daemons, of which one was started later": (STEADY, "_ _ _ _ _ 0+120x9", 8, 2),
    "two daemons, of which one was restarted": ("0+120x4 0+120x9", STEADY, 8, 2),
    "one daemon after another on its node": ("0+120x9 stale", "_x9 0+120x20", 18, 2),
}
#: This rate is not recorded for a job that never ran far.
ABOVE_ZERO = "node_job_cause:affinityd_job_mismatched_gpu_seconds:rate5m"


def of_two(names: list[str], first: str, second: str | None) -> Series:
    played = dict.fromkeys(names, first)
    if second is not None:
        played |= {name.replace('instance="a"', 'instance="b"'): second for name in names}
    return played


@pytest.mark.parametrize("history", HISTORIES)
def test_a_recorded_rate_counts_each_second_once(tmp_path: Path, history: str) -> None:
    first, second, minute, rate = HISTORIES[history]
    tests = []
    for record, (names, its) in RATES.items():
        answers = {}
        if rate is not None and (rate, record) != (0, ABOVE_ZERO):
            for cluster in ({}, {"cluster": "east"}):
                answers[f"{record}{labels(its, **cluster)}"] = rate
        played = of_two(names, first, second)
        tests.append(asked(record, {**played, **clustered(played, "east")}, minute, answers))
    play(tmp_path, *tests)
    assert {record for record in RECORDS if "rate" in record} == {*RATES}


@pytest.mark.parametrize(
    ("first", "second", "minute", "gpus"),
    [
        ("1x9", None, 8, 1),
        ("1x9", "1x9", 8, 1),
        ("1x9", "_ _ 0x9", 8, 1),  # the other daemon has not scanned since the process moved
        ("1x3 _ _ 1x9", None, 5, 1),  # two scrapes are missing
        ("1x3 stale", None, 5, None),
        ("1x3 stale", "_x4 1x9", 8, 1),
    ],
)
def test_a_recorded_number_of_gpus_counts_each_gpu_once(
    tmp_path: Path, first: str, second: str | None, minute: int, gpus: int | None
) -> None:
    causes = ("mask", "unpinned")  # of two processes
    played = of_two([mismatch(cause) for cause in causes], first, second)
    once: Mapping[str, float] = {}
    each: Mapping[str, float] = {}
    if gpus is not None:
        once = {f"node:affinityd_gpu_numa_mismatch:sum_max{labels(NODE)}": gpus}
        by_cause = "node_cause:affinityd_gpu_numa_mismatch:sum"
        each = {f"{by_cause}{labels(NODE, cause=cause)}": gpus for cause in causes}
    play(
        tmp_path,
        asked("node:affinityd_gpu_numa_mismatch:sum_max", played, minute, once),
        asked("node_cause:affinityd_gpu_numa_mismatch:sum", played, minute, each),
    )


WAITED = of_gpu("affinityd_gpu_wait_seconds_total")
OK, REFUSED = (
    series("affinityd_plans_total", mode="node", result=result, locality=locality, client="job")
    for result, locality in (("ok", "local"), ("404", ""))
)


@pytest.mark.parametrize(
    ("alert", "played"),
    [
        ("AffinitydRemoteCpuTimeIsHigh", {TOTAL: "0+1200x{n}", FAR: "0+600x{n}"}),
        ("AffinitydGpuWaits", {WAITED: "0+60x{n}", TOTAL: "0+60x{n}"}),
        ("AffinitydRefusesPlans", {OK: "0+1x{n}", REFUSED: "0+3x{n}"}),
    ],
)
def test_an_alert_of_counters_outlasts_a_restart_and_a_missing_scrape(
    tmp_path: Path, alert: str, played: Series
) -> None:
    """A firing alert outlasts a restart and a gap; a new series makes no alert fire too soon."""
    for samples, minute, fires in (
        ("{before} {before}", 150, True),  # a restart in the middle
        ("{before} _ _ {before}", 152, True),
        ("_x70 {before}", 85, False),  # a new series, which is not old enough
        ("{before} stale", 150, False),
    ):
        histories = {
            name: samples.format(before=text.format(n=90)) for name, text in played.items()
        }
        play(tmp_path, fired(alert, histories, minute, fires=fires))


def fired(alert: str, played: Series, minute: int, *, fires: bool) -> Mapping[str, object]:
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return asked(query, played, minute, {"{}": 1} if fires else {})
