"""Alert and recording rules, judged and played by promtool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.chart.alert_cases import (
    BUILD,
    CASES,
    FAR,
    FLEET,
    GPU07,
    TOTAL,
    UNPLACED,
    UNTENDED,
    clustered,
    labels,
    left,
    mismatch,
    series,
    would_pin,
)
from tests.e2e.chart.promtool import RULES, RUNBOOK, promtool, rules, try_rules
from tests.e2e.chart.rendering import objects, with_values


@pytest.mark.parametrize(("alert", "series", "minutes", "fires"), CASES)
def test_an_alert_fires_when_it_should(
    tmp_path: Path, alert: str, series: Mapping[str, str], minutes: int, fires: bool
) -> None:
    where = {} if alert in FLEET else GPU07
    samples = [{"labels": labels(where), "value": 1}] if fires else []
    try_rules(tmp_path, series, {"promql_expr_test": [firing(alert, minutes, samples)]})


@pytest.mark.parametrize(
    ("alert", "series", "minutes"), [(*case, minutes) for *case, minutes, fires in CASES if fires]
)
def test_an_alert_fires_in_each_cluster(
    tmp_path: Path, alert: str, series: Mapping[str, str], minutes: int
) -> None:
    where = {} if alert in FLEET else GPU07
    samples = [
        {"labels": labels({"cluster": cluster, **where}), "value": 1}
        for cluster in ("east", "west")
    ]
    wanted = firing(alert, minutes, samples)
    try_rules(tmp_path, clustered(series, "east", "west"), {"promql_expr_test": [wanted]})


def firing(alert: str, minutes: int, samples: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return what promtool is to find of an alert, by its place."""
    alerts = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    return {
        "expr": f"count by (cluster, job, instance, node) ({alerts})",
        "eval_time": f"{minutes}m",
        "exp_samples": samples,
    }


#: Nodes of two clusters and of one that has no name; in each gpu07 and gpu08 are other machines.
FLEETS = {
    **clustered(UNTENDED, "east"),
    **clustered({it.replace("gpu07", "gpu08"): text for it, text in UNTENDED.items()}, "east"),
    **clustered(UNTENDED, "west"),
    **clustered({mismatch("unpinned", 1): "0x90"}, "west"),
    **clustered({it.replace('"a"', '"b"'): "0x90" for it in UNTENDED}, "west"),
    **UNTENDED,
}


@pytest.mark.parametrize("alert", sorted(FLEET))
def test_a_fleets_alert_is_one_and_counts_nodes(tmp_path: Path, alert: str) -> None:
    (rule,) = (it for it in rules("alert") if it["alert"] == alert)
    wanted = {
        "expr": rule["expr"],
        "eval_time": "80m",
        "exp_samples": [
            {"labels": '{cluster="east"}', "value": 2},
            {"labels": '{cluster="west"}', "value": 1},
            {"labels": "{}", "value": 1},
        ],
    }
    try_rules(tmp_path, FLEETS, {"promql_expr_test": [wanted]})


def test_on_its_first_day_a_fleet_that_loses_nothing_has_its_two_alerts_alone(
    tmp_path: Path,
) -> None:
    calm = {TOTAL: "0+1200x90", FAR: "0x90", BUILD: "1x90", series("up"): "1x90"}
    everything = {**UNTENDED, **calm, series("affinityd_topology_generation"): "1x90"}
    nodes = {**everything, **{it.replace("gpu07", "gpu08"): v for it, v in everything.items()}}
    samples = [{"labels": labels({"alertname": it}), "value": 1} for it in sorted(FLEET)]
    wanted = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "80m",
        "exp_samples": samples,
    }
    try_rules(tmp_path, nodes, {"promql_expr_test": [wanted]})


OTHERS = {"job": "pods", "instance": "a", "node": "gpu07"}  #: a scrape job of many kinds of pods


@pytest.mark.parametrize(
    ("build", "up", "down"),
    [
        ("1x3 stale", "1x3 0x20", True),
        ("1x3 stale", "1x3 0x2 1x20", False),
        ("1x3 stale", "1x3 0x2 stale", False),
        ("_x20", "1x3 0x20", False),
    ],
    ids=["it stopped", "it came back", "its node is gone", "it never was a daemon"],
)
def test_a_daemon_that_stops_is_known_by_any_job(
    tmp_path: Path, build: str, up: str, down: bool
) -> None:
    samples = {f"affinityd_build_info{labels(OTHERS)}": build, f"up{labels(OTHERS)}": up}
    where = [{"labels": labels(OTHERS), "value": 1}] if down else []
    wanted = firing("AffinitydDown", 20, where)
    try_rules(tmp_path, samples, {"promql_expr_test": [wanted]})


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
def test_an_alert_says_where_it_is_and_what_to_do(alert: Mapping[str, Any]) -> None:
    place = "$labels.cluster" if alert["alert"] in FLEET else "or $labels.node $labels.instance"
    assert place in alert["annotations"]["summary"]
    assert "Look at " in alert["annotations"]["description"]
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


@pytest.mark.parametrize("cluster", [{}, {"cluster": "east"}], ids=["", "of a cluster"])
@pytest.mark.parametrize(
    ("record", "series", "values"),
    [
        ("instance:affinityd_up:known", {series("up"): "1x9", 'up{job="node"}': "1x9"}, {"": 1}),
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
    tmp_path: Path,
    record: str,
    series: Mapping[str, str],
    values: Mapping[str, float],
    cluster: Mapping[str, str],
) -> None:
    at = {**(GPU07 if record.startswith("instance:") else NODE), **cluster}
    samples = [
        {"labels": f"{record}{labels({**at, **({'cause': cause} if cause else {})})}", "value": it}
        for cause, it in values.items()
    ]
    wanted = {"expr": record, "eval_time": "8m", "exp_samples": samples}
    played = clustered(series, *cluster.values()) if cluster else series
    try_rules(tmp_path, played, {"promql_expr_test": [wanted]})


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
    gpu = {**NODE, "gpu": "0", "pci_bus_id": "0000:00:00.0", "remedy": str(remedy)}
    samples = [
        {"labels": f"{REMEDIED}{labels({**gpu, 'cluster': cluster})}", "value": 1}
        for cluster in ("east", "west")
    ]
    wanted = {"expr": REMEDIED, "eval_time": "8m", "exp_samples": samples if remedy else []}
    try_rules(tmp_path, clustered(series, "east", "west"), {"promql_expr_test": [wanted]})


def test_every_record_is_tested() -> None:
    marks = test_what_is_recorded.pytestmark  # type: ignore[attr-defined]
    tested = {case[0] for case in marks[0].args[1]} | {REMEDIED}
    assert tested == {it["record"] for it in rules("record")}


def test_an_alert_of_a_fleet_names_its_cluster(tmp_path: Path) -> None:
    (alert,) = (it for it in rules("alert") if it["alert"] == "AffinitydUnpinned")
    both = " run GPU processes that nothing has pinned."
    wanted = {
        "alertname": "AffinitydUnpinned",
        "eval_time": "80m",
        "exp_alerts": [
            {
                "exp_labels": {**cluster, **alert["labels"]},
                "exp_annotations": {**alert["annotations"], "summary": f"{nodes}{both}"},
            }
            for cluster, nodes in (
                ({"cluster": "east"}, "2 node(s) of east"),
                ({"cluster": "west"}, "1 node(s) of west"),
                ({}, "1 node(s)"),
            )
        ],
    }
    try_rules(tmp_path, FLEETS, {"alert_rule_test": [wanted]})


def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    said = promtool("check", "rules", str(RULES))
    assert f"SUCCESS: {len([*rules('alert'), *rules('record')])} rules found" in said


def test_the_custom_resource_has_the_rules_as_they_are() -> None:
    rule = objects("prometheus-rule")["PrometheusRule/affinityd"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_the_page_that_explains_the_alerts_can_be_another() -> None:
    other = "https://wiki.example.org/gpu?page=$1"
    rule = {"enabled": True, "runbookUrl": other}
    made = with_values({"metrics": {"prometheusRule": rule}})["PrometheusRule/affinityd"]
    groups = yaml.safe_load(RULES.read_text().replace(RUNBOOK, other))
    assert made["spec"] == groups != yaml.safe_load(RULES.read_text())
