"""The chart's dashboards, which scripts/dashboards re-makes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "helm" / "affinityd" / "dashboards"


def filled_in(expr: str, chosen: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it; each variable must be chosen. `$1` is Prometheus's."""
    return re.sub(r"\$([a-z_]\w*)", lambda name: chosen[name[1]], expr)
