"""The chart's rules, played by promtool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.chart.rendering import CHART, loaded
from tests.e2e.chart.series import Series

RULES = CHART / "rules" / "affinityd.yaml"
_rules = [rule for group in loaded(RULES.read_text())[0]["groups"] for rule in group["rules"]]
ALERTS = {it["alert"]: it for it in _rules if "alert" in it}
RECORDS = [it["record"] for it in _rules if "record" in it]
_metrics = loaded((CHART / "values.yaml").read_text())[0]["metrics"]
#: The page that explains the alerts, as the chart's values have it.
RUNBOOK: str = _metrics["prometheusRule"]["runbookUrl"]

Played = Mapping[str, Any]  #: a group of tests, as promtool reads it


def promtool(*words: str) -> str:
    """Return what promtool says; it must be content."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def asked(expr: str, series: Series, minutes: int, answers: Mapping[str, float]) -> Played:
    """Return a test: after minutes of these series a query has these answers."""
    samples = [{"labels": its, "value": value} for its, value in answers.items()]
    wanted = {"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}
    return {**played(series), "promql_expr_test": [wanted]}


def alerted(alert: str, series: Series, minutes: int, said: Mapping[str, str]) -> Played:
    """Return a test: an alert fires for these labels, each with its summary."""
    rule = ALERTS[alert]
    alerts = [
        {
            "exp_labels": {**json.loads(its), **rule["labels"]},
            "exp_annotations": {**rule["annotations"], "summary": summary},
        }
        for its, summary in said.items()
    ]
    wanted = {"alertname": alert, "eval_time": f"{minutes}m", "exp_alerts": alerts}
    return {**played(series), "alert_rule_test": [wanted]}


def played(series: Series) -> Played:
    """Return series as promtool plays them."""
    samples = [{"series": name, "values": text} for name, text in series.items()]
    return {"interval": "1m", "input_series": samples}


def play(folder: Path, *tests: Played) -> None:
    """Let promtool play tests with the rules; each must come out as it says."""
    assert tests
    (folder / "rules.yaml").write_text(RULES.read_text())
    file = folder / "tests.yaml"
    file.write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
    promtool("test", "rules", str(file))
