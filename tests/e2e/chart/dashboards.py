"""The dashboards as deploy/grafana writes them, in the environment of Grafana's models.

`python -m tests.e2e.chart.dashboards`, or scripts/dashboards, re-makes those of the chart.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.chart import tools
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "helm" / "affinityd" / "dashboards"
REMAKE = "scripts/dashboards re-makes it"


def filled_in(expr: str, chosen: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it; each variable must be chosen. `$1` is Prometheus's."""
    return re.sub(r"\$([a-z_]\w*)", lambda name: chosen[name[1]], expr)


def write(folder: Path) -> None:
    """Write every dashboard into a folder."""
    python = tools.python_with(tools.GRAFANA) / "python"
    command = [os.fspath(python), "-B", "-m", "deploy.grafana", os.fspath(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    write(FOLDER)
