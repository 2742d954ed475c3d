"""Values that the chart refuses in a sentence: what cannot be meant, and what it sets itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.chart.rendering import refusal

HAS_AFFINITYD = (
    "the init step gives it to the daemon's user, so name an absolute folder, not a socket, whose "
    "last part has affinityd in it, such as /run/affinityd"
)
ALONE = (
    "name HOST/REPOSITORY alone, in lower case; the tag goes to image.tag, a digest to image.digest"
)


@pytest.mark.parametrize(
    ("value", "text", "remedy"),
    [
        *(
            ("image.repository", repository, ALONE)
            for repository in (
                *("example.org/hpc/affinityd:0.1.0", "affinityd:0.1.0", "localhost:5000/a:b", ""),
                *(f"example.org/affinityd@sha256:{'0' * 64}", "example.org/HPC/affinityd"),
                *("https://example.org/affinityd", "example.org/affinityd/", " affinityd"),
            )
        ),
        *(
            ("socket.hostPath", folder, HAS_AFFINITYD)
            for folder in (
                *("/run", "/", "", "run/affinityd", "/run/affinityd/../x", "/run/affinityd/x"),
                *("/run/affinityd/affinityd.sock", "/run/affinityd.sock", "/run/../affinityd"),
            )
        ),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused_in_a_sentence(
    value: str, text: str, remedy: str
) -> None:
    part, _, name = value.partition(".")
    assert f"{value} is {json.dumps(text)}: {remedy}\n" in refusal({part: {name: text}})


VOLUME = {"name": "mine", "emptyDir": {}}
ITS_OWN = "is the chart's own"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(
            ({"extraEnv": [{"name": f"AFFINITYD_{name}", "value": "1"}]}, f"{ITS_OWN}{remedy}")
            for name, remedy in {
                "NODE_NAME": ": the Node's name; leave it out",
                "SOCKET": "; set socket.hostPath instead",
                "LISTEN": "; set listenAddress and ports.http instead",
                "LISTEN_PLAN": "; set listenAddress, ports.plan and plan.enabled instead",
                "RESERVED_CPUS": "; set settings.reservedCpus instead",
                "SCAN_INTERVAL": "; set settings.scanInterval instead",
                "JOB_SERIES": "; set settings.jobSeries instead",
                "LOG_FORMAT": "; set settings.logFormat instead",
            }.items()
        ),
        (
            {
                "runtimeClassName": "nvidia",
                "extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
            },
            (
                f"extraEnv: NVIDIA_VISIBLE_DEVICES {ITS_OWN}; leave it out, or leave "
                "runtimeClassName and audit.runtimeClassName empty"
            ),
        ),
        (
            {"extraVolumes": [{"name": "socket", "emptyDir": {}}]},
            f"extraVolumes: socket {ITS_OWN}; give yours another name, or set socket.hostPath",
        ),
        (
            {"extraVolumes": [{"name": "cgroups", "emptyDir": {}}]},
            f"extraVolumes: cgroups {ITS_OWN}; give yours another name",
        ),
        (
            {"extraVolumeMounts": [{"name": "socket", "mountPath": "/mine"}]},
            f"extraVolumeMounts: socket, at /mine, {ITS_OWN} volume; mount one of extraVolumes",
        ),
        *(
            (
                {
                    "extraVolumes": [VOLUME],
                    "extraVolumeMounts": [{"name": "mine", "mountPath": place}],
                },
                f"extraVolumeMounts: {place} is the socket's folder or in it; mount mine elsewhere",
            )
            for place in (
                "/run/affinityd",
                "/run/affinityd/",
                "/run//affinityd",
                "/run/affinityd/x",
            )
        ),
        *(
            (
                {value: {f"app.kubernetes.io/{name}": "a"}},
                f"{value}: app.kubernetes.io/{name} {ITS_OWN}",
            )
            for value, names in {
                "commonLabels": (
                    "name",
                    "instance",
                    "part-of",
                    "version",
                    "managed-by",
                    "component",
                ),
                "podLabels": ("name", "instance", "part-of"),
            }.items()
            for name in names
        ),
        (
            {"commonLabels": {"helm.sh/chart": "a"}},
            f"commonLabels: helm.sh/chart {ITS_OWN}; leave it out",
        ),
        *(
            (
                {"metrics": {kind: {"labels": {"app.kubernetes.io/name": "a"}}}},
                f"metrics.{kind}.labels: app.kubernetes.io/name {ITS_OWN}; leave it out",
            )
            for kind in ("podMonitor", "serviceMonitor", "prometheusRule")
        ),
        (
            {"dashboards": {"labels": {"app.kubernetes.io/name": "a"}}},
            f"dashboards.labels: app.kubernetes.io/name {ITS_OWN}; leave it out",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_the_chart_sets_is_not_set_once_more(values: Mapping[str, Any], said: str) -> None:
    assert said in refusal(values)
