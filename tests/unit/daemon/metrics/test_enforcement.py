"""The metrics of what is enforced, as a scrape has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from affinityd.config.settings import OBSERVE
from affinityd.daemon.metrics import enforcement
from affinityd.daemon.metrics.registry import Metrics
from affinityd.enforce.enforcer import Enforced
from affinityd.enforce.policy.model import PolicyState
from tests.support.enforce_reports import drifted, enforced, fits, left, totals
from tests.support.scans import GPU0, GPU1
from tests.unit.daemon.metrics.test_audit import FOUND, samples

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


def scraped(found: Enforced, accept: str = "") -> list[str]:
    metrics = Metrics(lambda: None)
    metrics.scanned(FOUND)
    metrics.show("enforce", lambda: enforcement.metrics(found))
    return metrics.exposition(accept)[0].decode().splitlines()


def some(found: dict[str, float]) -> dict[str, float]:
    return {labels: value for labels, value in found.items() if value}


FOUND_DRIFT = enforced(
    fits(1),
    drifted(2, "mask"),
    drifted(3, "unpinned"),
    drifted(4, "share"),
    drifted(5, "share"),
    left(6, "allocation", cause="allocation"),
    left(7, "young", would="share"),
    left(8, "waiting", would="mask", cause="mask"),
    left(9, "no_job"),
    left(10, "daemon", cause="mask", is_daemon=True),
    drifted(11, "mask", gpu=GPU1),
)


@pytest.mark.parametrize(
    ("name", "gpu", "values"),
    [
        ("would_pin_processes", "0", {"mask": 1, "unpinned": 1, "share": 2}),
        ("would_pin_processes", "1", {"mask": 1}),
        ("left_processes", "0", {"allocation": 1, "young": 1, "waiting": 1}),
        ("left_processes", "1", {}),
    ],
)
def test_a_gpu_has_its_processes_by_cause_and_those_let_alone_that_matter_by_reason(
    name: str, gpu: str, values: dict[str, float]
) -> None:
    assert some(samples(scraped(FOUND_DRIFT), f"affinityd_enforce_{name}", gpu)) == values


@pytest.mark.parametrize(("name", "number"), [("would_pin_processes", 3), ("left_processes", 14)])
def test_a_gpu_that_is_well_has_a_sample_of_0_for_each(name: str, number: int) -> None:
    found = samples(scraped(enforced()), f"affinityd_enforce_{name}", "0")
    assert (len(found), set(found.values())) == (number, {0.0})


def test_a_gpu_whose_processes_are_not_known_has_no_samples() -> None:
    lines = scraped(enforced(drifted(1, gpu=GPU1), unknown={GPU0: "NVML is silent"}))
    assert samples(lines, "affinityd_enforce_would_pin_processes", "0") == {}
    assert some(samples(lines, "affinityd_enforce_would_pin_processes", "1")) == {"mask": 1}


TOTALS = totals(pinned=3, refused=1, threads=40, resets=2)
POLICY = PolicyState("/etc/p", 1700000000.5, 2, "line 3")


@pytest.mark.parametrize(
    ("more", "name", "values"),
    [
        ({}, "mode", {"observe": 0, "pin": 1}),
        ({"wanted": OBSERVE, "does": OBSERVE}, "mode", {"observe": 1, "pin": 0}),
        ({"does": OBSERVE, "hindrance": "no"}, "mode", {"observe": 1, "pin": 0}),
        ({}, "hindered", {"": 0}),
        ({"does": OBSERVE, "hindrance": "no"}, "hindered", {"": 1}),
        (
            {"totals": TOTALS},
            "pins_total",
            {"pinned": 3, "cut": 0, "refused": 1, "unsettled": 0},
        ),
        ({"totals": TOTALS}, "pinned_threads_total", {"": 40}),
        ({"totals": TOTALS}, "resets_total", {"": 2}),
        ({"totals": TOTALS}, "migrations_total", {}),
        (
            {"totals": totals(migrations={"moved": 1, "partly": 0})},
            "migrations_total",
            {"moved": 1, "partly": 0},
        ),
        ({"policy": POLICY}, "policy_error", {"": 1}),
        ({"policy": POLICY}, "policy_read_timestamp_seconds", {"": 1700000000.5}),
        ({}, "policy_error", {"": 0}),
        ({}, "policy_read_timestamp_seconds", {}),
        ({"unreached": 5}, "unreached_processes", {"": 5}),
        ({"seconds": 0.25}, "duration_seconds", {"": 0.25}),
    ],
)
def test_the_daemon_has(more: Mapping[str, Any], name: str, values: dict[str, float]) -> None:
    assert samples(scraped(enforced(**more)), f"affinityd_enforce_{name}") == values


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
def test_they_stand_behind_the_scans_with_one_end_and_each_described_once(accept: str) -> None:
    lines = scraped(FOUND_DRIFT, accept)
    assert lines.count("# EOF") == (accept == OPEN_METRICS)
    assert not accept or lines[-1] == "# EOF"
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert {"affinityd_gpu_audited", "affinityd_enforce_mode"} <= set(described)


def test_a_daemon_that_does_not_enforce_has_none_of_them() -> None:
    metrics = Metrics(lambda: None)
    metrics.scanned(FOUND)
    assert b"enforce" not in metrics.exposition("")[0]


def test_a_new_report_is_told_and_the_old_one_is_not() -> None:
    metrics, told = Metrics(lambda: None), list[float]()
    for found in (enforced(), enforced(unreached=3)):
        metrics.show("enforce", partial(enforcement.metrics, found))
        lines = metrics.exposition("")[0].decode().splitlines()
        told += samples(lines, "affinityd_enforce_unreached_processes").values()
    assert told == [0.0, 3.0]
