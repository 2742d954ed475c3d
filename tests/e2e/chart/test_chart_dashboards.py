"""Dashboards: those that deploy/grafana writes, judged by Grafana's own models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from affinityd.enforce.model import REASONS
from affinityd.topology.nearness import CAUSES
from tests.e2e.chart import dashboards, grafana, tools
from tests.e2e.chart.alert_cases import FAR, GPU07, TOTAL, UNPLACED, labels, remedied
from tests.e2e.chart.dcgm_series import far_gpu, util
from tests.e2e.chart.promtool import try_rules
from tests.e2e.chart.rendering import objects

DASHBOARDS = sorted(dashboards.FOLDER.glob("*.json"))
EACH = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
#: Of GPU07 in alert_cases, which has no label `cluster`.
CHOSEN = {"cluster": "", **GPU07, "__range": "5m", "__rate_interval": "5m"}


def panels(path: Path) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = json.loads(path.read_text())["panels"]
    return found


def test_there_are_a_fleet_view_and_a_node_view() -> None:
    assert [path.stem for path in DASHBOARDS] == ["affinityd-fleet", "affinityd-node"]


def test_the_dashboards_are_those_that_are_written_now(tmp_path: Path) -> None:
    dashboards.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in DASHBOARDS]
    for path in DASHBOARDS:
        assert path.read_text() == (tmp_path / path.name).read_text(), dashboards.REMAKE


def test_the_config_map_has_the_dashboards_as_they_are() -> None:
    made = objects("dashboards")["ConfigMap/affinityd-dashboards"]
    assert made["data"] == {path.name: path.read_text() for path in DASHBOARDS}
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "GPU nodes"}


def test_grafana_knows_every_field_of_the_dashboards() -> None:
    documents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert tools.judged(grafana.__file__, tools.GRAFANA, documents) == []


def test_grafanas_models_tell_of_a_fault() -> None:
    document = json.loads(DASHBOARDS[0].read_text())
    document["panels"][1]["options"]["graphMod"] = "none"
    document["refreshed"] = "1m"
    told = tools.judged(grafana.__file__, tools.GRAFANA, [document])
    assert told == [
        "affinityd: fleet: $.panels[1].options.graphMod",
        "affinityd: fleet: $.refreshed",
    ]


def test_a_gpu_whose_place_is_not_known_is_in_no_share(tmp_path: Path) -> None:
    exprs = [
        target["expr"]
        for panel in panels(DASHBOARDS[1])
        for target in panel.get("targets", ())
        if "remote_cpu_seconds" in target["expr"] and "/" in target["expr"]
    ]
    exprs = [expr for expr in exprs if "DCGM" not in expr]
    assert len(exprs) == 3
    for expr in exprs:
        asked = dashboards.filled_in(expr, CHOSEN)
        gpu = '{gpu="0",pci_bus_id="0000:00:00.0"}' if "sum by" in expr else "{}"
        answer = {"labels": gpu, "value": 0.25}
        wanted = {"expr": asked, "eval_time": "8m", "exp_samples": [answer]}
        samples = {TOTAL: "0+120x9", FAR: "0+30x9", UNPLACED: "0+600x9"}
        try_rules(tmp_path, samples, {"promql_expr_test": [wanted]})


@EACH
def test_a_gpu_that_ran_far_is_counted_once_by_what_mends_it(tmp_path: Path, path: Path) -> None:
    """37 GPUs ran far; 31 would be mended by a pin, 6 need another allocation."""
    series = {
        remedied("pin", 0): "1x9",
        remedied("pin", 1): "1x4 _x9",
        remedied("allocation", 1): "_x4 1x4",
        remedied("neither", 2): "1x9",
        remedied("pin", 3): "1x4 _x9",
        remedied("neither", 3): "_x4 1x4",
        remedied("allocation", 4): "1x4 _x9",
        remedied("neither", 4): "_x4 1x4",
    }
    counts = {
        "GPUs that ran far": 5,
        "… and a pin mends it": 1,
        "… that need another allocation": 2,
        "… that are left as they are": 2,
    }
    asked = {panel["title"]: panel["targets"] for panel in panels(path) if "targets" in panel}
    tests = []
    for title, count in counts.items():
        (target,) = asked[title]
        expr = dashboards.filled_in(target["expr"], {**CHOSEN, "__range": "8m"})
        sample = {"labels": "{}", "value": count}
        tests.append({"expr": expr, "eval_time": "8m", "exp_samples": [sample]})
    try_rules(tmp_path, series, {"promql_expr_test": tests})


@EACH
def test_each_query_is_of_the_cluster_and_the_scrape_jobs_that_are_chosen(path: Path) -> None:
    asked = [it["expr"] for panel in panels(path) for it in panel.get("targets", ())]
    assert asked
    for expr in asked:
        selected = re.findall(r"(?:[\w:]*affinityd[\w:]*|\bup)\b({[^}]*})?", expr)
        assert selected, expr
        for selector in selected:
            assert selector.startswith('{cluster="$cluster",job=~"$job",node'), expr


@EACH
def test_the_scrape_jobs_are_those_whose_targets_say_that_they_are_daemons(path: Path) -> None:
    variables = {it["name"]: it for it in json.loads(path.read_text())["templating"]["list"]}
    assert list(variables)[:4] == ["datasource", "cluster", "job", "node"]
    queries = {name: it["query"] for name, it in variables.items() if it["type"] == "query"}
    assert queries["cluster"]["query"] == "label_values(affinityd_build_info, cluster)"
    jobs = 'label_values(affinityd_build_info{cluster="$cluster"}, job)'
    assert queries["job"]["query"] == jobs
    assert variables["job"]["multi"]
    assert "allValue" not in variables["job"]  # "up" of every job there is would match


def test_a_far_gpu_that_dcgm_sees_idle_has_its_pod(tmp_path: Path) -> None:
    """Pods' labels as honorLabels leaves them, as Prometheus renames them, and of no pod at all."""
    own = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}
    renamed = {**own, "exported_namespace": "team", "exported_pod": "train-1"}
    samples = {
        **far_gpu(0, "1x9"),
        **far_gpu(1, "1x9"),
        **far_gpu(2, "1x9"),
        **far_gpu(3, "1x9"),
        **far_gpu(4, "0x9"),
        util(0, namespace="team", pod="train-0"): "5x9",
        util(1, **renamed): "0x9",
        util(1, **renamed, GPU_I_ID="7"): "19x9",  # two MIG instances: the busier counts
        util(2, **own): "1x9",
        util(3, namespace="team", pod="train-3"): "0x5 90x9",
        util(4, namespace="team", pod="train-4"): "0x9",
        util(5, namespace="team", pod="train-5"): "0x9",
    }
    (table,) = (it for it in panels(DASHBOARDS[1]) if it["title"].startswith("Which GPUs are far"))
    answers = {
        labels({"gpu": "0", "namespace": "team", "pod": "train-0"}): (5, 0.25),
        labels({"gpu": "1", "namespace": "team", "pod": "train-1"}): (19, 0.25),
        labels({"gpu": "2"}): (1, 0.25),
    }
    wanted = [
        {
            "expr": f"sum without (pci_bus_id) ({dashboards.filled_in(target['expr'], CHOSEN)})",
            "eval_time": "8m",
            "exp_samples": [{"labels": it, "value": both[at]} for it, both in answers.items()],
        }
        for at, target in enumerate(table["targets"])
    ]
    try_rules(tmp_path, samples, {"promql_expr_test": wanted})


@EACH
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


@EACH
def test_a_panel_says_what_its_numbers_are_and_what_to_do_about_them(path: Path) -> None:
    for panel in panels(path):
        if panel["type"] in {"row", "text"}:
            continue
        defaults = panel["fieldConfig"]["defaults"]
        looks = [it["id"] for of in panel["fieldConfig"]["overrides"] for it in of["properties"]]
        assert "unit" in {*defaults, *looks} or defaults.get("mappings"), panel["title"]
        assert panel["description"], panel["title"]


@EACH
def test_a_panel_asks_the_prometheus_that_is_chosen(path: Path) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    document = json.loads(path.read_text())
    asked = [target for panel in panels(path) for target in panel.get("targets", ())]
    asked += [it for it in document["templating"]["list"] if it["type"] == "query"]
    assert [it["datasource"] for it in asked] == [chosen] * len(asked)


@EACH
def test_a_table_names_every_column_of_what_it_asks(path: Path) -> None:
    for panel in (it for it in panels(path) if it["type"] == "table"):
        (organize,) = (it for it in panel["transformations"] if it["id"] == "organize")
        renamed = organize["options"]["renameByName"]
        values = {name for name in renamed if name.startswith("Value")}
        assert values == {f"Value #{target['refId']}" for target in panel["targets"]}
        (sorted_by,) = panel["options"]["sortBy"]
        titled = {it["matcher"]["options"] for it in panel["fieldConfig"]["overrides"]}
        assert titled == set(renamed.values()) >= {sorted_by["displayName"]}


@EACH
def test_links_lead_to_dashboards_that_are_there(path: Path) -> None:
    document = json.loads(path.read_text())
    urls = [link["url"] for link in document["links"]]
    urls += [
        link["url"]
        for panel in panels(path)
        for override in panel.get("fieldConfig", {}).get("overrides", ())
        for looks in override["properties"]
        if looks["id"] == "links"
        for link in looks["value"]
    ]
    assert all(
        "?${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}" in it for it in urls
    )
    uids = {f"/d/{json.loads(it.read_text())['uid']}" for it in DASHBOARDS}
    assert {url.partition("?")[0] for url in urls} <= uids
    assert urls


def bold(path: Path, title: str) -> set[str]:
    """Return the words that a text of a dashboard has in bold."""
    (text,) = (it for it in panels(path) if it["type"] == "text" and it["title"] == title)
    return set(re.findall(r"^\| \*\*(\w+)\*\*", text["options"]["content"], re.MULTILINE))


def test_the_fleet_view_has_a_remedy_for_every_cause() -> None:
    assert bold(DASHBOARDS[0], "What to do") == set(CAUSES)


@EACH
def test_a_view_explains_every_reason_to_let_a_process_alone(path: Path) -> None:
    assert bold(path, "Let alone: why, and what to do") == set(REASONS)
