"""Alert rules and dashboards: judged by promtool, and by what a real daemon exports."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.daemons import running
from tests.e2e.chart import grafana, tools
from tests.e2e.chart.rendering import CHART, objects

pytestmark = pytest.mark.chart

RULES = CHART / "rules" / "affinityd.yaml"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))

A, B = '{job="affinityd",instance="a",node="gpu07"}', '{job="affinityd",instance="b"}'
GPU07 = {"job": "affinityd", "instance": "a", "node": "gpu07"}


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plans(**labels: str) -> str:
    pairs = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f'affinityd_plans_total{{job="affinityd",instance="a",node="gpu07",mode="node",{pairs}}}'


LOCAL = plans(result="ok", locality="local")
REMOTE = plans(result="ok", locality="remote")
REFUSED = plans(result="404", locality="")


@pytest.mark.parametrize(
    ("alert", "series", "minutes", "fires"),
    [
        ("AffinitydDown", {f"up{A}": "0x20"}, 6, True),
        ("AffinitydDown", {f"up{A}": "0x20"}, 4, False),
        ("AffinitydDown", {f"up{A}": "1x20"}, 6, False),
        ("AffinitydDown", {'up{job="node",instance="a"}': "0x20"}, 6, False),
        ("AffinitydNotReady", {f"affinityd_build_info{A}": "1x20"}, 6, True),
        (
            "AffinitydNotReady",
            {
                f"affinityd_build_info{A}": "1x20",
                f"affinityd_topology_generation{A}": "1x20",
                f"affinityd_topology_generation{B}": "1x20",
            },
            6,
            False,
        ),
        ("AffinitydSeesNoGpu", {f"affinityd_topology_generation{A}": "1x30"}, 16, True),
        (
            "AffinitydSeesNoGpu",
            {
                f"affinityd_topology_generation{A}": "1x30",
                'affinityd_gpus{job="affinityd",instance="a",node="gpu07",vendor="amd"}': "8x30",
            },
            16,
            False,
        ),
        ("AffinitydPlansAreRemote", {LOCAL: "0+6x90", REMOTE: "0+1x90"}, 80, True),
        ("AffinitydPlansAreRemote", {LOCAL: "0+20x90", REMOTE: "0+1x90"}, 80, False),
        ("AffinitydPlansAreRemote", {LOCAL: "0+6x90"}, 80, False),
        ("AffinitydPlansAreRemote", {LOCAL: "5x90", REMOTE: "5x90"}, 80, False),
        ("AffinitydRefusesPlans", {LOCAL: "0+1x90", REFUSED: "0+3x90"}, 80, True),
        ("AffinitydRefusesPlans", {LOCAL: "0+3x90", REFUSED: "0+1x90"}, 80, False),
        (
            "AffinitydTopologyKeepsChanging",
            {f"affinityd_topology_generation{A}": "1+1x20"},
            20,
            True,
        ),
        (
            "AffinitydTopologyKeepsChanging",
            {f"affinityd_topology_generation{A}": "1x20 2x20"},
            40,
            False,
        ),
    ],
)
def test_an_alert_fires_when_it_should(
    tmp_path: Path, alert: str, series: Mapping[str, str], minutes: int, fires: bool
) -> None:
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    wanted = {
        "expr": f"count by (job, instance, node) ({firing})",
        "eval_time": f"{minutes}m",
        "exp_samples": [{"labels": as_series(GPU07), "value": 1}] if fires else [],
    }
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})


@pytest.mark.parametrize(
    ("labels", "place"),
    [(GPU07, "gpu07"), ({"job": "affinityd", "instance": "10.0.0.7:9465"}, "10.0.0.7:9465")],
    ids=["its node", "else its address"],
)
def test_an_alert_names(tmp_path: Path, labels: Mapping[str, str], place: str) -> None:
    (alert,) = (it for it in alerts() if it["alert"] == "AffinitydDown")
    summary = f"affinityd on {place} does not answer."
    wanted = {
        "alertname": "AffinitydDown",
        "eval_time": "6m",
        "exp_alerts": [
            {
                "exp_labels": {**labels, **alert["labels"]},
                "exp_annotations": {**alert["annotations"], "summary": summary},
            }
        ],
    }
    try_rules(tmp_path, {f"up{as_series(labels)}": "0x20"}, {"alert_rule_test": [wanted]})


def try_rules(folder: Path, series: Mapping[str, str], wanted: Mapping[str, object]) -> None:
    """Let promtool play series, a sample a minute, and see what the rules make of them."""
    samples = [{"series": name, "values": text} for name, text in series.items()]
    case = {"interval": "1m", "input_series": samples, **wanted}
    (folder / "rules.yaml").write_text(RULES.read_text())
    file = folder / "tests.yaml"
    file.write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": [case]}))
    promtool("test", "rules", str(file))


def as_series(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{text}"' for name, text in labels.items()) + "}"


def alerts() -> Iterator[Mapping[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def test_every_alert_is_tested() -> None:
    marks = test_an_alert_fires_when_it_should.pytestmark  # type: ignore[attr-defined]
    tested = {case[0] for case in marks[0].args[1] if case[3]}
    assert tested == {alert["alert"] for alert in alerts()}


def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    said = promtool("check", "rules", str(RULES))
    assert f"SUCCESS: {len(list(alerts()))} rules found" in said


def test_the_custom_resource_has_the_rules_as_they_are() -> None:
    rule = objects("prometheus-rule")["PrometheusRule/affinityd"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_the_config_map_has_the_dashboards_as_they_are() -> None:
    made = objects("dashboards")["ConfigMap/affinityd-dashboards"]
    assert made["data"] == {path.name: path.read_text() for path in DASHBOARDS}
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "GPU nodes"}


def panels(path: Path) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = json.loads(path.read_text())["panels"]
    return found


def expressions(path: Path) -> list[str]:
    """Return what a dashboard asks Prometheus, with its variables filled in."""
    asked = [target["expr"] for panel in panels(path) for target in panel["targets"]]
    return [it.replace("$__rate_interval", "5m").replace("$node", ".*") for it in asked]


def test_grafana_knows_every_field_of_the_dashboards() -> None:
    documents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert tools.judged(grafana.__file__, tools.GRAFANA, documents) == []


def test_grafanas_models_tell_of_a_fault() -> None:
    document = json.loads(DASHBOARDS[0].read_text())
    document["panels"][0]["options"]["graphMod"] = "none"
    document["refreshed"] = "1m"
    told = tools.judged(grafana.__file__, tools.GRAFANA, [document])
    assert told == ["affinityd: $.panels[0].options.graphMod", "affinityd: $.refreshed"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboards_panels_do_not_lie_upon_each_other(path: Path) -> None:
    covered = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels(path))
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(covered) == len(set(covered))
    assert max(x for x, _ in covered) < 24
    assert len({panel["id"] for panel in panels(path)}) == len(panels(path))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_prometheus_can_read_what_a_dashboard_asks(path: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"asked:{number}", "expr": expr} for number, expr in enumerate(expressions(path))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(file))


def test_what_rules_and_dashboards_ask_for_is_what_a_daemon_exports(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        daemon.plan("gpus=0")
        exported = set(re.findall(r"^(affinityd_\w+)", daemon.get("/metrics").text, re.MULTILINE))
    asked = " ".join(
        [*(alert["expr"] for alert in alerts()), *(e for it in DASHBOARDS for e in expressions(it))]
    )
    assert set(re.findall(r"\baffinityd_\w+", asked)) <= exported
