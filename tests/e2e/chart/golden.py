"""The manifests that were looked at and found good; re-make them with

    python -m tests.e2e.chart.golden

and review the difference as one who installs the chart would.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.chart.rendering import rendered
from tests.support.paths import DATA

#: What most install, what has most objects, and what pins.
OPTIONS = ("default", "service-only", "everything", "pin")
_dashboards = re.compile(r"^(  [\w-]+\.json: \|\n)(?: {4}.*\n)+", re.MULTILINE).sub
REMAKE = "python -m tests.e2e.chart.golden re-makes it"


def path(option: str) -> Path:
    """Return where an option's golden manifests are."""
    return DATA / "golden" / "chart" / f"{option}.yaml"


def looked_at(option: str) -> str:
    """Return an option's manifests without the text of the dashboards, which nobody reads there."""
    return _dashboards(r"\1", rendered(option))


if __name__ == "__main__":
    for option in OPTIONS:
        path(option).write_text(looked_at(option), encoding="utf-8")
