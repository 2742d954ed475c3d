"""Alert and recording rules, judged and played by promtool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.e2e.chart.alert_cases import (
    CASES,
    FAR,
    GPU07,
    TOTAL,
    UNPLACED,
    labels,
    left,
    mismatch,
    would_pin,
)
from tests.e2e.chart.promtool import RULES, promtool, rules, try_rules
from tests.e2e.chart.rendering import objects

pytestmark = pytest.mark.chart


@pytest.mark.parametrize(("alert", "series", "minutes", "fires"), CASES)
def test_an_alert_fires_when_it_should(
    tmp_path: Path, alert: str, series: Mapping[str, str], minutes: int, fires: bool
) -> None:
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    wanted = {
        "expr": f"count by (job, instance, node) ({firing})",
        "eval_time": f"{minutes}m",
        "exp_samples": [{"labels": labels(GPU07), "value": 1}] if fires else [],
    }
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})


@pytest.mark.parametrize(
    ("target", "place"),
    [(GPU07, "gpu07"), ({"job": "affinityd", "instance": "10.0.0.7:9465"}, "10.0.0.7:9465")],
    ids=["its node", "else its address"],
)
def test_an_alert_names(tmp_path: Path, target: Mapping[str, str], place: str) -> None:
    (alert,) = (it for it in rules("alert") if it["alert"] == "AffinitydDown")
    summary = f"affinityd on {place} does not answer."
    wanted = {
        "alertname": "AffinitydDown",
        "eval_time": "6m",
        "exp_alerts": [
            {
                "exp_labels": {**target, **alert["labels"]},
                "exp_annotations": {**alert["annotations"], "summary": summary},
            }
        ],
    }
    try_rules(tmp_path, {f"up{labels(target)}": "0x20"}, {"alert_rule_test": [wanted]})


@pytest.mark.parametrize("alert", list(rules("alert")), ids=lambda alert: alert["alert"])
def test_an_alert_says_where_it_is_and_what_to_do(alert: Mapping[str, Mapping[str, str]]) -> None:
    assert "{{ or $labels.node $labels.instance }}" in alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    assert alert["labels"]["severity"] in {"info", "warning"}


def test_every_alert_is_tested_both_ways() -> None:
    names = {alert["alert"] for alert in rules("alert")}
    for both in (True, False):
        assert {alert for alert, _, _, fires in CASES if fires == both} == names


NODE = {"job": "affinityd", "node": "gpu07"}
TWO_AND_THREE = {
    mismatch("mask", 0): "1x9",
    mismatch("unpinned", 0): "1x9",
    mismatch("mask", 1): "1x9",
    mismatch("mask", 2): "0x9",
}


@pytest.mark.parametrize(
    ("record", "series", "values"),
    [
        ("node:affinityd_gpu_numa_mismatch:sum_max", TWO_AND_THREE, {"": 2}),
        ("node_cause:affinityd_gpu_numa_mismatch:sum", TWO_AND_THREE, {"mask": 2, "unpinned": 1}),
        (
            "node:affinityd_gpu_cpu_seconds:rate5m",
            {TOTAL: "0+120x9", FAR: "0+30x9", UNPLACED: "0+600x9"},
            {"": 2},
        ),
        (
            "node:affinityd_gpu_remote_cpu_seconds:rate5m",
            {TOTAL: "0+120x9", FAR: "0+30x9"},
            {"": 0.5},
        ),
    ],
)
def test_what_is_recorded(
    tmp_path: Path, record: str, series: Mapping[str, str], values: Mapping[str, float]
) -> None:
    samples = [
        {
            "labels": f"{record}{labels({**NODE, **({'cause': cause} if cause else {})})}",
            "value": it,
        }
        for cause, it in values.items()
    ]
    wanted = {"expr": record, "eval_time": "8m", "exp_samples": samples}
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})


REMEDIED = "node_gpu_remedy:affinityd_gpu_numa_mismatch:max"
FITTING = {left("allocation"): "0x9", left("young"): "0x9", would_pin("mask"): "0x9"}


@pytest.mark.parametrize(
    ("series", "remedy"),
    [
        ({mismatch("mask"): "0x9", would_pin("share"): "1x9", left("young"): "0x9"}, None),
        ({mismatch("mask"): "1x9"}, None),
        ({mismatch("mask"): "1x9", **FITTING}, "neither"),
        ({mismatch("mask"): "1x9", **FITTING, would_pin("mask"): "1x9"}, "pin"),
        ({mismatch("mask"): "1x9", **FITTING, left("waiting"): "1x9"}, "pin"),
        ({mismatch("mask"): "1x9", **FITTING, left("young"): "1x9"}, None),
        ({mismatch("mask"): "1x9", **FITTING, left("on_purpose"): "1x9"}, "neither"),
        (
            {mismatch("mask"): "1x9", **FITTING, would_pin("mask"): "1x9", left("policy"): "1x9"},
            "neither",
        ),
        (
            {
                mismatch("allocation"): "1x9",
                mismatch("mask"): "1x9",
                **FITTING,
                would_pin("mask"): "1x9",
                left("allocation"): "1x9",
            },
            "allocation",
        ),
        (
            {mismatch("allocation"): "1x9", **FITTING, left("allocation", 1): "1x9"},
            "neither",
        ),
    ],
    ids=[
        *("near, on another's CPUs", "nobody enforces", "it fits by the policy", "a pin"),
        *("a pin, later", "it is young", "on purpose", "one of two is left", "an allocation"),
        "an allocation, on another GPU",
    ],
)
def test_by_what_mends_it_a_gpu_is_recorded(
    tmp_path: Path, series: Mapping[str, str], remedy: str | None
) -> None:
    gpu = {**NODE, "gpu": "0", "pci_bus_id": "0000:00:00.0"}
    sample = {"labels": f"{REMEDIED}{labels({**gpu, 'remedy': str(remedy)})}", "value": 1}
    wanted = {"expr": REMEDIED, "eval_time": "8m", "exp_samples": [sample] if remedy else []}
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})


def test_every_record_is_tested() -> None:
    marks = test_what_is_recorded.pytestmark  # type: ignore[attr-defined]
    tested = {case[0] for case in marks[0].args[1]} | {REMEDIED}
    assert tested == {it["record"] for it in rules("record")}


def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    said = promtool("check", "rules", str(RULES))
    assert f"SUCCESS: {len([*rules('alert'), *rules('record')])} rules found" in said


def test_the_custom_resource_has_the_rules_as_they_are() -> None:
    rule = objects("prometheus-rule")["PrometheusRule/affinityd"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
