"""Draws what the dashboards show of demos, as pages: python -m docs.site.dashboards FOLDER.

No Grafana is run: a real Prometheus scrapes demos, each panel's queries are put to it, and the
answers are drawn in the panel's width; curves, and panels without data, are left out.
`scripts/pictures` takes the pictures of the pages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import Any

from tests.e2e.prometheus.server import (
    RANGE,
    Series,
    documents,
    filled_in,
    panels,
    running_prometheus,
)
from tests.support.daemons import eventually, free_port, running

COLORS = {"green": "#73bf69", "yellow": "#fade2a", "orange": "#ff9830", "red": "#f2495c"}
#: Two nodes with a bad day, and one without the audit.
NODES = {"gpu01": "dgx-a100-busy", "gpu02": "dgx-a100-busy", "gpu03": "dgx-a100"}
EVERY_SECOND = "--scan-interval 1 --job-series 9"
EVERY = {"cluster": "", "job": "affinityd", "job_id": ".*"}
CHOSEN = {"fleet": {**EVERY, "node": ".*"}, "node": {**EVERY, "node": "gpu01"}}
STYLE = """body { margin: 0; padding: 12px; background: #111217; color: #ccccdc;
  font: 14px "DejaVu Sans", sans-serif; display: grid; grid-template-columns: repeat(24, 1fr);
  gap: 8px } h1 { font-size: 18px; margin: 4px 0; grid-column: span 24 }
div { background: #181b1f; border: 1px solid #2c3235; padding: 8px; overflow: hidden }
h2 { font-size: 13px; margin: 0 0 8px } b { font-size: 32px; margin-right: 16px }
table { width: 100%; border-collapse: collapse; font-size: 12px } th { color: #6e9fff }
th, td { text-align: left; padding: 3px 6px; border-bottom: 1px solid #2c3235 }"""


def shown(value: float, unit: str | None) -> str:
    """Return a value as Grafana writes it in this unit."""
    if unit == "dateTimeFromNow":
        return f"{(time.time() - value / 1000) / 60:.0f} minutes ago"
    if unit == "percentunit":
        return f"{value:.1%}"
    suffix = " h" if unit == "h" else ""
    return f"{value:.4g}{suffix}"


def legend(target: Mapping[str, Any], series: Series) -> str:
    """Return the name of a series."""
    name = str(target["legendFormat"])
    for label, text in series["metric"].items():
        name = name.replace(f"{{{{{label}}}}}", text)
    return name


def stat(panel: Mapping[str, Any], answers: Sequence[Sequence[Series]]) -> Iterator[str]:
    """Yield the large numbers of a panel."""
    unit = panel["fieldConfig"]["defaults"].get("unit")
    for target, answer in zip(panel["targets"], answers, strict=True):
        for series in answer:
            number = shown(float(series["value"][1]), unit)
            yield f"{escape(legend(target, series))} <b>{number}</b>"


def table(panel: Mapping[str, Any], answers: Sequence[Sequence[Series]]) -> Iterator[str]:
    """Yield the rows of a table: answers with equal labels share one."""
    (organize,) = (step for step in panel["transformations"] if step["id"] == "organize")
    names = organize["options"]["renameByName"]
    units = {}
    for override in panel["fieldConfig"]["overrides"]:
        for change in override["properties"]:
            if change["id"] == "unit":
                units[override["matcher"]["options"]] = change["value"]
    rows: dict[str, dict[str, str]] = {}
    used: set[str] = set()
    for target, answer in zip(panel["targets"], answers, strict=True):
        key = f"Value #{target['refId']}"
        for series in answer:
            row = rows.setdefault(str(sorted(series["metric"].items())), dict(series["metric"]))
            row[key] = shown(float(series["value"][1]), units.get(names.get(key)))
            used |= row.keys()
    order = sorted(used & names.keys(), key=organize["options"]["indexByName"].get)
    heads = "".join(f"<th>{escape(names[key])}</th>" for key in order)
    yield f"<table><tr>{heads}</tr>"
    for _, row in sorted(rows.items()):
        cells = "".join(f"<td>{escape(row.get(key, '-'))}</td>" for key in order)
        yield f"<tr>{cells}</tr>"
    yield "</table>"


def timeline(panel: Mapping[str, Any], answers: Sequence[Sequence[Series]]) -> Iterator[str]:
    """Yield a bar for each series, in the color of its last state: a demo's do not change."""
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    yield "<table>"
    for series in answers[0]:
        state = mapping["options"][series["values"][-1][1]]
        name = legend(panel["targets"][0], series)
        style = f"width: 70%; color: #111217; background: {COLORS.get(state['color'], '#808080')}"
        yield f'<tr><td>{escape(name)}</td><td style="{style}">{escape(state["text"])}</td></tr>'
    yield "</table>"


DRAWN = {"stat": stat, "table": table, "state-timeline": timeline}


def main(folder: Path) -> None:
    """Run demos and a Prometheus, and write a page for each dashboard."""
    with ExitStack() as stack:
        targets = []
        for node, machine in NODES.items():
            address = f"127.0.0.1:{free_port()}"
            words = f"--machine {machine} --node-name {node} --listen {address} {EVERY_SECOND}"
            stack.enter_context(running(folder / node, *words.split()))
            targets.append({"targets": [address], "labels": {"node": node}})
        server = stack.enter_context(running_prometheus(folder / "prometheus", targets))
        rate = "node:affinityd_gpu_remote_cpu_seconds:rate5m > 0"
        eventually(lambda: server.query(rate), "CPU time was counted, far from its GPU")
        time.sleep(RANGE)
        for name, document in documents():
            lines = [f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>"]
            lines.append(f"<h1>{escape(document['title'])}: a demo, drawn without Grafana</h1>")
            for panel in panels(document):
                answers = []
                for target in panel.get("targets", ()):
                    expr = filled_in(target["expr"], CHOSEN[name])
                    is_range = not target.get("instant")
                    answers.append(
                        server.query_range(expr, RANGE) if is_range else server.query(expr)
                    )
                if panel["type"] not in DRAWN or not any(answers):
                    continue
                span = f"grid-column: span {panel['gridPos']['w']}"
                lines.append(f'<div style="{span}"><h2>{escape(panel["title"])}</h2>')
                lines += [*DRAWN[panel["type"]](panel, answers), "</div>"]
            (folder / f"dashboard-{name}.html").write_text("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
