"""Dashboards and rules ask for metrics that the daemon has."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from affinityd.audit.model import Job
from affinityd.config.settings import Settings
from affinityd.daemon.metrics import Metrics
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.machines import load
from affinityd.topology.model import Node
from tests.support.paths import REPOSITORY
from tests.support.scans import GPU0, audit, process, scanned

CHART = REPOSITORY / "deploy/helm/affinityd"
(RULES,) = (CHART / "rules").iterdir()
#: Suffixes of the series of a metric, by its type.
SERIES = {"histogram": ("_bucket", "_sum", "_count")}


def exported() -> set[str]:
    """Return the names of all series that a daemon may export."""
    far = process(job=Job("slurm", "7"), cause="mask", placement="remote")
    (last,) = scanned(audit(far, since={GPU0: 1.0}), job_series=1)
    daemon = Metrics(KnownNode(Node(load("dgx-a100"))), lambda: last, scan_interval=15)
    names: set[str] = set()
    for name, kind in re.findall(r"# TYPE (\w+) (\w+)", daemon.exposition().decode()):
        names.update(f"{name}{suffix}" for suffix in SERIES.get(kind, ("",)))
    plugin = NriPlugin(Settings(), KnownNode(), lambda: None)
    names.update(sample.name for metric in plugin.metrics() for sample in metric.samples)
    return names


def queries() -> Iterator[tuple[str, str]]:
    """Yield the place of each query, as an error message names it, and the query."""
    for path in (CHART / "dashboards").iterdir():
        document: Mapping[str, Any] = json.loads(path.read_text())
        rows = [panel for panel in document["panels"] if panel["type"] == "row"]
        panels = [*document["panels"], *(panel for row in rows for panel in row["panels"])]
        for panel in panels:
            for target in panel.get("targets", ()):
                yield (
                    f"{path.name}: panel {panel['title']!r}, query {target['refId']}",
                    target["expr"],
                )
        for variable in document["templating"]["list"]:
            yield f"{path.name}: variable {variable['name']}", json.dumps(variable["query"])
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"{RULES.name}: {rule.get('alert') or rule['record']}", rule["expr"]


def test_every_query_names_metrics_that_the_daemon_has() -> None:
    known = exported()
    absent = [
        f"remove {place}: there is no {name}"
        for place, query in queries()
        for name in re.findall(r"(?<![\w:])affinityd_\w+(?!:)\b", re.sub(r'"[^"]*"', "", query))
        if name not in known
    ]
    assert absent == []
