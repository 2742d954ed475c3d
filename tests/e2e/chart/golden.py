"""The manifests that were looked at and found good; re-make them with

    python -m tests.e2e.chart.golden

and review the difference as one who installs the chart would. Of each option there is what it
changes.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tests.e2e.chart.rendering import OPTIONS, rendered
from tests.support.paths import DATA

#: The dashboards and rules, which nobody reads there.
_files = re.compile(r"^(  [\w-]+\.json: \|\n|  groups:\n)(?: {4}.*\n)+", re.MULTILINE).sub
_places = re.compile(r"^@@ .* @@$", re.MULTILINE).sub
REMAKE = "python -m tests.e2e.chart.golden re-makes it"


def path(option: str) -> Path:
    """Return where an option's golden manifests are."""
    suffix = "yaml" if option == "default" else "diff"
    return DATA / "golden" / "chart" / f"{option}.{suffix}"


def looked_at(option: str) -> str:
    """Return the default's manifests, or what another option changes of them."""
    default, its = (_files(r"\1", rendered(it)).splitlines() for it in ("default", option))
    lines = difflib.unified_diff(default, its, "default", option, lineterm="", n=2)
    return "\n".join(default if option == "default" else [_places("@@", it) for it in lines]) + "\n"


if __name__ == "__main__":
    for option in OPTIONS:
        path(option).write_text(looked_at(option), encoding="utf-8")
