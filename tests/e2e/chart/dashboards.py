"""The dashboards as deploy/grafana writes them, in the environment of Grafana's models.

`python -m tests.e2e.chart.dashboards`, or scripts/dashboards, re-makes those of the chart.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.chart import tools

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "helm" / "affinityd" / "dashboards"
REMAKE = "scripts/dashboards re-makes it"


def write(folder: Path) -> None:
    """Write every dashboard into a folder."""
    python = tools.python_with(tools.GRAFANA) / "python"
    command = [os.fspath(python), "-B", "-m", "deploy.grafana", os.fspath(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    write(FOLDER)
