"""What the dashboards ask, as Grafana sends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.prometheus.server import DEPLOY, Prometheus, Series

FOLDER = DEPLOY / "helm" / "affinityd" / "dashboards"
RANGE = 20.0  #: seconds; the Prometheus has not run for longer


@dataclass(frozen=True)
class Asked:
    """One query of one panel."""

    dashboard: str
    panel: str
    letter: str
    expr: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.letter}"

    def put_to(self, server: Prometheus, chosen: Mapping[str, str]) -> list[Series]:
        """Ask with variables filled in, as Grafana does."""
        expr = filled_in(self.expr, chosen)
        return server.query(expr) if self.is_instant else server.query_range(expr, RANGE)

    def values(self, server: Prometheus, chosen: Mapping[str, str]) -> list[float]:
        """Return the values that it has now."""
        found = self.put_to(server, chosen)
        return [float((it["value"] if "value" in it else it["values"][-1])[1]) for it in found]


def documents() -> Iterator[tuple[str, Any]]:
    for path in sorted(FOLDER.iterdir()):
        yield path.stem.removeprefix("affinityd-"), json.loads(path.read_text())


QUERIES = [
    Asked(name, panel["title"], it["refId"], it["expr"], it.get("instant", False))
    for name, document in documents()
    for panel in document["panels"]
    for it in panel.get("targets", ())
]


def filled_in(expr: str, chosen: Mapping[str, str]) -> str:
    """Return a query over the last seconds; each variable must be chosen. `$1` is Prometheus's.

    A sample every five minutes is one a second: there are no five minutes.
    """
    every = {"__rate_interval": "10s", "__range": f"{RANGE:.0f}s", **chosen}
    return re.sub(r"\$([a-z_]\w*)", lambda name: every[name[1]], expr).replace(":5m]", ":1s]")
