"""Values of the audit: when the daemon looks at processes, and how often."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from affinityd.config.settings import NAMES
from tests.e2e.chart.pod_security import against_baseline
from tests.e2e.chart.rendering import refusal, with_values

HOST_PID = {"hostPID": True}
AUDIT = {"audit": {"enabled": True}}
AUDIT_OF_AMD = {"audit": {"enabled": True, "runtimeClassName": ""}}


def looks(values: Mapping[str, Any]) -> list[str]:
    """Return the arguments of the daemon that are about its audit."""
    daemon_set = with_values(values)["DaemonSet/affinityd"]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return [it for it in container["args"] if it.startswith(("--scan-interval", "--job-series"))]


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({}, ["--scan-interval=off"]),
        (AUDIT, []),
        (AUDIT_OF_AMD, []),
        ({**AUDIT, "settings": {"scanInterval": 60}}, ["--scan-interval=60"]),
        ({**AUDIT, "settings": {"jobSeries": 20}}, ["--job-series=20"]),
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


def spec(values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - YAML
    return with_values(values)["DaemonSet/affinityd"]["spec"]["template"]["spec"]


def test_one_value_sets_what_the_older_ones_set_together() -> None:
    assert with_values(AUDIT) == with_values({"hostPID": True, "runtimeClassName": "nvidia"})
    assert with_values(AUDIT_OF_AMD) == with_values(HOST_PID)
    assert with_values({**AUDIT, **HOST_PID, "runtimeClassName": "nvidia"}) == with_values(AUDIT)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (AUDIT, "nvidia"),
        ({"audit": {"runtimeClassName": "nvidia"}}, None),
        ({"audit": {"enabled": True, "runtimeClassName": "nvidia-cdi"}}, "nvidia-cdi"),
        ({**AUDIT, "runtimeClassName": "nvidia-legacy"}, "nvidia-legacy"),
        ({**AUDIT_OF_AMD, "runtimeClassName": "nvidia"}, "nvidia"),
        (AUDIT_OF_AMD, None),
    ],
    ids=json.dumps,
)
def test_the_audit_has_nvml_by_a_runtime_class(values: Mapping[str, Any], name: str | None) -> None:
    made = spec(values)
    assert made.get("runtimeClassName") == name
    variables = {it["name"] for it in made["containers"][0]["env"]}
    assert ("NVIDIA_VISIBLE_DEVICES" in variables) == (name is not None)


def test_the_audit_adds_no_capability_and_no_other_user() -> None:
    assert list(against_baseline(spec(AUDIT))) == ["hostPID", "hostPath", "hostPath"]
    for part in ("securityContext", "initContainers"):
        assert spec(AUDIT)[part] == spec({})[part]
    (daemon,), (by_default,) = spec(AUDIT)["containers"], spec({})["containers"]
    assert daemon["securityContext"] == by_default["securityContext"]


NO_PROCESS = "and audit.enabled is false; set audit.enabled: true, or leave scanInterval empty"
NO_JOBS = (
    "settings.jobSeries is 20, and no process is looked at; set audit.enabled: true and leave "
    "scanInterval empty, or set jobSeries: 0"
)
NO_PIDS = (
    "audit.enabled is true and hostPID is false: the audit needs the node's pids; set hostPID: "
    "true or leave it out, or set audit.enabled: false"
)
NO_SCAN = (
    "audit.enabled is true and settings.scanInterval is off: the audit would look at no process; "
    "leave scanInterval empty, or set audit.enabled: false"
)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"settings": {"scanInterval": 30}}, f"settings.scanInterval is 30, {NO_PROCESS}"),
        ({"settings": {"jobSeries": 20}}, NO_JOBS),
        ({**HOST_PID, "settings": {"jobSeries": 20, "scanInterval": "off"}}, NO_JOBS),
        ({**AUDIT, "hostPID": False}, NO_PIDS),
        ({**AUDIT, "settings": {"scanInterval": "off"}}, NO_SCAN),
        ({**AUDIT, "settings": {"scanInterval": False}}, NO_SCAN),
        ({"audit": True}, "at '/audit': got boolean, want object"),
        ({"audit": {"enabled": "yes"}}, "at '/audit/enabled': got string, want boolean"),
        ({"audit": {"hostPID": True}}, "additional properties 'hostPID' not allowed"),
        ({"settings": {"scanInterval": 0}}, "at '/settings/scanInterval'"),
        ({"settings": {"scanInterval": True}}, "at '/settings/scanInterval'"),
        ({"settings": {"scanInterval": "15s"}}, "at '/settings/scanInterval'"),
        ({"settings": {"jobSeries": 1001}}, "at '/settings/jobSeries': maximum: got 1,001"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_looked_at_is_refused(values: Mapping[str, Any], said: str) -> None:
    assert said in refusal(values)
