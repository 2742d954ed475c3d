"""The metrics of what is enforced, as a scrape has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from affinityd.config.settings import OBSERVE
from affinityd.daemon.metrics import enforcement
from affinityd.enforce.document import Enforced
from affinityd.enforce.policy import PolicyState
from tests.support.enforce_reports import drifted, enforced, fits, left, totals
from tests.support.scans import GPU0, GPU1
from tests.unit.daemon.metrics.test_audit import FOUND, samples, scanned, told


def scraped(*reports: Enforced) -> list[str]:
    metrics = scanned(FOUND)
    for found in reports:
        metrics.show("enforce", partial(enforcement.metrics, found))
    return told(metrics)


def some(found: dict[str, float]) -> dict[str, float]:
    return {labels: value for labels, value in found.items() if value}


DRIFT = enforced(
    fits(1),
    drifted(2, "mask"),
    drifted(3, "unpinned"),
    *(drifted(4, "share"), drifted(5, "share")),
    left(6, "allocation", cause="allocation"),
    left(7, "young", would="share"),
    left(8, "waiting", would="mask", cause="mask"),
    left(9, "no_job"),
    left(10, "daemon", cause="mask", is_daemon=True),
    drifted(11, "mask", gpu=GPU1),
)
WOULD, LEFT = "enforce_would_pin_processes", "enforce_left_processes"


@pytest.mark.parametrize(
    ("name", "gpu", "values"),
    [
        (WOULD, "0", {"mask": 1, "unpinned": 1, "share": 2}),
        (WOULD, "1", {"mask": 1}),
        (LEFT, "0", {"allocation": 1, "young": 1, "waiting": 1}),
        (LEFT, "1", {}),
    ],
)
def test_a_gpu_has_drifted_processes_by_cause_and_left_ones_by_reason(
    name: str, gpu: str, values: dict[str, float]
) -> None:
    assert some(samples(scraped(DRIFT), name, gpu)) == values


def test_a_gpu_without_drift_has_samples_of_0() -> None:
    for name, number in ((WOULD, 3), (LEFT, 14)):
        found = samples(scraped(enforced()), name, "0")
        assert (len(found), set(found.values())) == (number, {0.0})


def test_a_gpu_with_unknown_processes_has_no_samples() -> None:
    lines = scraped(enforced(drifted(1, gpu=GPU1), unknown={GPU0: "NVML is silent"}))
    assert samples(lines, WOULD, "0") == {}
    assert some(samples(lines, WOULD, "1")) == {"mask": 1}


TOTALS = {"totals": totals(pinned=3, refused=1, threads=40, resets=2)}
POLICY = {"policy": PolicyState("/etc/p", 1700000000.5, 2, "line 3")}
HINDERED = {"does": OBSERVE, "hindrance": "no"}


@pytest.mark.parametrize(
    ("more", "name", "values"),
    [
        ({}, "mode", {"observe": 0, "pin": 1}),
        (HINDERED, "mode", {"observe": 1, "pin": 0}),
        ({}, "hindered", {"": 0}),
        (HINDERED, "hindered", {"": 1}),
        (TOTALS, "pins_total", {"pinned": 3, "cut": 0, "refused": 1, "unsettled": 0}),
        (TOTALS, "pinned_threads_total", {"": 40}),
        (TOTALS, "resets_total", {"": 2}),
        (POLICY, "policy_error", {"": 1}),
        (POLICY, "policy_read_timestamp_seconds", {"": 1700000000.5}),
        ({}, "policy_read_timestamp_seconds", {}),
        ({"unreached": 5}, "unreached_processes", {"": 5}),
        ({"seconds": 0.25}, "duration_seconds", {"": 0.25}),
    ],
)
def test_the_metrics_of_enforcement_are(
    more: Mapping[str, Any], name: str, values: dict[str, float]
) -> None:
    assert samples(scraped(DRIFT, enforced(**more)), f"enforce_{name}") == values


def test_a_daemon_that_does_not_enforce_has_no_metrics_of_enforcement() -> None:
    assert not [line for line in scraped() if "enforce" in line]
