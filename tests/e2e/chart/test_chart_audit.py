"""Values of the audit: when the daemon looks at processes, and how often."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from affinityd.settings import NAMES
from tests.e2e.chart.rendering import refusal, with_values

pytestmark = pytest.mark.chart

HOST_PID = {"hostPID": True}


def looks(values: Mapping[str, Any]) -> list[str]:
    """Return the arguments of the daemon that are about its audit."""
    daemon_set = with_values(values)["DaemonSet/affinityd"]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return [it for it in container["args"] if it.startswith(("--scan-interval", "--job-series"))]


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({}, ["--scan-interval=off"]),
        (HOST_PID, []),
        ({"hostPID": True, "runtimeClassName": "nvidia"}, []),
        ({"settings": {"scanInterval": "off"}}, ["--scan-interval=off"]),
        ({**HOST_PID, "settings": {"scanInterval": "off"}}, ["--scan-interval=off"]),
        ({**HOST_PID, "settings": {"scanInterval": False}}, ["--scan-interval=off"]),
        ({**HOST_PID, "settings": {"scanInterval": None}}, []),
        ({**HOST_PID, "settings": {"scanInterval": 3600}}, ["--scan-interval=3600"]),
        ({**HOST_PID, "settings": {"jobSeries": 20}}, ["--job-series=20"]),
        ({**HOST_PID, "settings": {"jobSeries": 0}}, []),
    ],
    ids=json.dumps,
)
def test_the_daemon_looks_at_processes(values: Mapping[str, Any], arguments: list[str]) -> None:
    assert looks(values) == arguments
    assert {it.partition("=")[0][2:].replace("-", "_") for it in arguments} <= set(NAMES)


NO_PROCESS = "and without hostPID no process can be looked at; set hostPID: true, or leave"
NO_JOBS = (
    "settings.jobSeries is 20, and no process is looked at; set hostPID: true and leave "
    "scanInterval empty, or set jobSeries: 0"
)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"settings": {"scanInterval": 30}}, f"settings.scanInterval is 30, {NO_PROCESS}"),
        ({"settings": {"jobSeries": 20}}, NO_JOBS),
        ({**HOST_PID, "settings": {"jobSeries": 20, "scanInterval": "off"}}, NO_JOBS),
        ({"settings": {"scanInterval": 0}}, "at '/settings/scanInterval'"),
        ({"settings": {"scanInterval": True}}, "at '/settings/scanInterval'"),
        ({"settings": {"scanInterval": "15s"}}, "at '/settings/scanInterval'"),
        ({"settings": {"jobSeries": 1001}}, "at '/settings/jobSeries': maximum: got 1,001"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_looked_at_is_refused(values: Mapping[str, Any], said: str) -> None:
    assert said in refusal(values)
