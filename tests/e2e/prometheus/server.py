"""A real Prometheus: configured as deploy/prometheus says, and queried as Grafana does."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.daemons import PATIENCE, eventually, free_port
from tests.support.paths import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
RULES = DEPLOY / "helm" / "affinityd" / "rules" / "affinityd.yaml"

Series = Mapping[str, Any]  #: "metric" has the labels; "value", or "values" of a range


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expr: str) -> list[Series]:
        series: list[Series] = self._get("query", query=expr)["result"]
        return series

    def query_range(self, expr: str, seconds: float) -> list[Series]:
        now = time.time()
        window = {"start": f"{now - seconds:.3f}", "end": f"{now:.3f}", "step": "1"}
        series: list[Series] = self._get("query_range", query=expr, **window)["result"]
        return series

    def label_values(self, label: str, selector: str) -> list[str]:
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return values

    def rules(self) -> dict[str, Mapping[str, Any]]:
        groups = self._get("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready"):  # noqa: S310 - ours
                return True
        except OSError:
            return False

    def _get(self, what: str, **parameters: str) -> Any:  # noqa: ANN401 - a document
        target = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(target, timeout=PATIENCE) as answer:  # noqa: S310 - ours
            return json.load(answer)["data"]


@contextmanager
def running_prometheus(
    folder: Path,
    targets: Sequence[Mapping[str, Any]],
    *,
    minute: float = 60.0,
    alertmanager: str = "",
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes targets, and evaluates the rules, every second.

    `targets`: as in file_sd, "targets" and "labels"; `minute`: how many seconds a minute of the
    rules has.
    """
    folder.mkdir(exist_ok=True)
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(folder / "rules.yaml")]
    (folder / "rules.yaml").write_text(json.dumps(with_minutes_of(minute)))
    if alertmanager:
        to = {"static_configs": [{"targets": [alertmanager]}]}
        config["alerting"] = {"alertmanagers": [to]}
    config["scrape_configs"][0]["scrape_interval"] = "1s"
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (folder / "nodes.yaml").write_text(yaml.safe_dump(list(targets)))
    server = Prometheus(f"http://127.0.0.1:{free_port()}")
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yaml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={server.url[7:]}"),
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        eventually(server.is_ready, "Prometheus is ready")
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE)


def with_minutes_of(seconds: float) -> Any:  # noqa: ANN401 - a document
    """Return the rules, with minutes of `seconds` seconds."""

    def shorter(duration: re.Match[str]) -> str:
        return f"{round(float(duration[1]) * seconds * (60 if duration[2] == 'h' else 1))}s"

    rules = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        for key in {"expr", "for"} & rule.keys():
            rule[key] = re.sub(r"\b(\d+)([mh])\b", shorter, rule[key])
    return rules


# The dashboards' queries, as Grafana sends them.

FOLDER = DEPLOY / "helm" / "affinityd" / "dashboards"
RANGE = 20.0  #: seconds; the Prometheus has not run for longer


@dataclass(frozen=True)
class Asked:
    dashboard: str
    panel: str
    letter: str
    expr: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.letter}"

    def put_to(self, server: Prometheus, chosen: Mapping[str, str]) -> list[Series]:
        expr = filled_in(self.expr, chosen)
        return server.query(expr) if self.is_instant else server.query_range(expr, RANGE)


def documents() -> Iterator[tuple[str, Any]]:
    for path in sorted(FOLDER.iterdir()):
        yield path.stem.removeprefix("affinityd-"), json.loads(path.read_text())


def panels(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a dashboard's panels, also those in collapsed rows, without the rows."""
    for panel in document["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


QUERIES = [
    Asked(name, panel["title"], it["refId"], it["expr"], it.get("instant", False))
    for name, document in documents()
    for panel in panels(document)
    for it in panel.get("targets", ())
]


def filled_in(expr: str, chosen: Mapping[str, str]) -> str:
    """Return a query over the last seconds, with its variables replaced; `$1` is Prometheus's.

    Samples are every second: a query's five-minute steps become one second.
    """
    every = {"__rate_interval": "10s", "__range": f"{RANGE:.0f}s", **chosen}
    return re.sub(r"\$([a-z_]\w*)", lambda name: every[name[1]], expr).replace(":5m]", ":1s]")
