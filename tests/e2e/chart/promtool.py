"""The chart's rules, played by promtool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.chart.rendering import CHART

RULES = CHART / "rules" / "affinityd.yaml"
#: The page that explains the alerts, as the chart's values have it.
RUNBOOK: str = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["prometheusRule"][
    "runbookUrl"
]


def promtool(*words: str) -> str:
    """Return what promtool says; it must be content."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def try_rules(folder: Path, series: Mapping[str, str], wanted: Mapping[str, object]) -> None:
    """Let promtool play series, a sample a minute, and see what the rules make of them."""
    samples = [{"series": name, "values": text} for name, text in series.items()]
    case = {"interval": "1m", "input_series": samples, **wanted}
    (folder / "rules.yaml").write_text(RULES.read_text())
    file = folder / "tests.yaml"
    file.write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": [case]}))
    promtool("test", "rules", str(file))


def rules(kind: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rules of a kind: alert or record."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from (rule for rule in group["rules"] if kind in rule)
