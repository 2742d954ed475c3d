"""Values that are wrong: typos are refused by the schema, contradictions with what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.e2e.chart.rendering import CHART, refusal, with_values

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hostPid": True}, "additional properties 'hostPid' not allowed"),
        ({"hostPID": "yes"}, "at '/hostPID': got string, want null or boolean"),
        ({"image": {"repo": "example.org/a"}}, "additional properties 'repo' not allowed"),
        ({"image": {"tag": 0.1}}, "at '/image/tag': got number, want string"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy'"),
        ({"imagePullSecrets": ["mine"]}, "at '/imagePullSecrets/0': got string, want object"),
        (
            {"settings": {"reservedCpus": -1}},
            "at '/settings/reservedCpus': minimum: got -1, want 0",
        ),
        ({"settings": {"reservedCpus": 0.5}}, "at '/settings/reservedCpus'"),
        ({"settings": {"reservedCpus": "0,,1"}}, "at '/settings/reservedCpus'"),
        ({"settings": {"mode": "node"}}, "additional properties 'mode' not allowed"),
        ({"settings": {"logFormat": "JSON"}}, "at '/settings/logFormat'"),
        *(
            (
                {"listenAddress": address},
                "at '/listenAddress': value must be one of '0.0.0.0', '[::]'",
            )
            for address in ("::", "127.0.0.1", "127.1", "[::1]", "localhost")
        ),
        ({"ports": {"http": 0}}, "at '/ports/http': minimum: got 0, want 1"),
        ({"ports": {"metrics": 9465}}, "additional properties 'metrics' not allowed"),
        ({"socket": {"hostPath": 1}}, "at '/socket/hostPath': got number, want string"),
        ({"gpuNodeLabels": ["nvidia.com/gpu.present: true"]}, "at '/gpuNodeLabels/0'"),
        ({"gpuNodeLabels": [{"nvidia.com/gpu.present": "true"}]}, "want string"),
        ({"nodeSelector": {"gpu": True}}, "at '/nodeSelector/gpu': got boolean, want string"),
        ({"tolerations": [{"key": "a", "operator": "Exist"}]}, "at '/tolerations/0/operator'"),
        ({"tolerations": [{"keys": "a"}]}, "additional properties 'keys' not allowed"),
        ({"affinity": {"nodeAfinity": {}}}, "additional properties 'nodeAfinity' not allowed"),
        ({"updateStrategy": {"maxUnavailable": 1}}, "additional properties 'maxUnavailable'"),
        ({"updateStrategy": {"type": "Recreate"}}, "at '/updateStrategy/type'"),
        (
            {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "ten"}}},
            "at '/updateStrategy/rollingUpdate/maxUnavailable'",
        ),
        ({"resources": {"limit": {"cpu": 1}}}, "additional properties 'limit' not allowed"),
        ({"runtimeClass": "nvidia"}, "additional properties 'runtimeClass' not allowed"),
        ({"seLinuxOptions": {"kind": "spc_t"}}, "additional properties 'kind' not allowed"),
        ({"serviceAccount": {"automount": True}}, "additional properties 'automount' not allowed"),
        ({"networkPolicy": {"planFrom": [{}]}}, "at '/networkPolicy/planFrom/0'"),
        (
            {"networkPolicy": {"planFrom": [{"namespace": "a"}]}},
            "additional properties 'namespace' not allowed",
        ),
        ({"metrics": {"enabled": True}}, "additional properties 'enabled' not allowed"),
        ({"metrics": {"podMonitor": {"interval": "30"}}}, "at '/metrics/podMonitor/interval'"),
        ({"metrics": {"podMonitor": {"labels": ["a"]}}}, "at '/metrics/podMonitor/labels'"),
        (
            {"metrics": {"prometheusRule": {"runbookUrl": "https://wiki/gpu#alerts"}}},
            "at '/metrics/prometheusRule/runbookUrl'",
        ),
        ({"dashboards": {"labels": {"grafana_dashboard": 1}}}, "got number, want string"),
        ({"fullnameOverride": "1st"}, "at '/fullnameOverride'"),
        ({"extraArgs": ["--root", "/node"]}, "at '/extraArgs/1'"),
        ({"extraEnv": {"TZ": "UTC"}}, "at '/extraEnv': got object, want array"),
        ({"extraVolumes": [{"name": "a"}]}, "at '/extraVolumes/0'"),
        ({"extraVolumeMounts": [{"name": "a"}]}, "missing property 'mountPath'"),
    ],
    ids=json.dumps,
)
def test_a_typo_is_refused_and_named(values: Mapping[str, Any], said: str) -> None:
    assert said in refusal(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"socket": {"enabled": False}, "plan": {"enabled": False}},
            (
                "socket.enabled and plan.enabled are both false: no pod could reach the daemon; "
                "enable one of them"
            ),
        ),
        (
            {"ports": {"http": 9466}},
            "ports.http and ports.plan are both 9466; give each a port of its own",
        ),
        (
            {"updateStrategy": {"rollingUpdate": {"maxSurge": "25%"}}},
            (
                "updateStrategy.rollingUpdate.maxSurge is 25%: two daemons cannot own one socket; "
                "leave it at 0 and set the pace by maxUnavailable"
            ),
        ),
        (
            {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
            (
                "updateStrategy.rollingUpdate.maxUnavailable is 0: without a surge no daemon could "
                "ever be replaced; set at least 1, or 10%"
            ),
        ),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
            (
                "gpuNodeLabels and affinity.nodeAffinity both choose nodes; set gpuNodeLabels: [] "
                "and say all of it in affinity.nodeAffinity"
            ),
        ),
        (
            {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
            (
                "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled would scrape every "
                "daemon twice; enable one of them"
            ),
        ),
        (
            {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
            (
                "metrics.serviceMonitor needs the Service; set metrics.service.enabled: true, or "
                "use metrics.podMonitor"
            ),
        ),
        *(
            ({"extraArgs": [f"{flag}=x"]}, f"extraArgs: {flag} is the chart's own; set {remedy}")
            for flag, remedy in {
                "--listen": "listenAddress and ports.http instead",
                "--listen-plan": "listenAddress, ports.plan and plan.enabled instead",
                "--socket": "socket.hostPath instead",
                "--reserved-cpus": "settings.reservedCpus instead",
                "--scan-interval": "settings.scanInterval instead",
                "--job-series": "settings.jobSeries instead",
                "--log-format": "settings.logFormat instead",
            }.items()
        ),
        (
            {"extraArgs": ["--node-name=gpu07"]},
            "extraArgs: --node-name is the chart's own: the Node's name; leave it out",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_contradiction_is_refused_with_the_remedy(values: Mapping[str, Any], said: str) -> None:
    assert said in refusal(values)


@pytest.mark.parametrize(
    "values",
    [
        {"affinity": {"podAntiAffinity": {}}},
        {"gpuNodeLabels": []},
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}},
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 0}}},
        {"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}},
        {"extraArgs": ["--root=/captured", "--listening"]},
        {"settings": {"reservedCpus": "0-30:2,64"}},
        {"image": {"repository": "registry.example.org:5000/hpc_x/affinity--d"}},
        {"image": {"repository": "affinityd"}},
        {"socket": {"hostPath": "/var/lib/k8s.io/site-affinityd-a"}},
        {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]},
        {
            "extraVolumes": [{"name": "mine", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "mine", "mountPath": "/run/affinityd-mine"}],
        },
        {"podLabels": {"app.kubernetes.io/version": "a", "app.kubernetes.io/component": "a"}},
        {"commonLabels": {"team": "hpc"}, "podLabels": {"team": "gpu"}},
    ],
    ids=json.dumps,
)
def test_what_looks_unusual_and_is_right_is_taken(values: Mapping[str, Any]) -> None:
    assert "DaemonSet/affinityd" in with_values(values)


def parts(schema: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ANN401
    """Yield every part of the schema that says what an object may have."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path, schema
        for name, part in schema.items():
            yield from parts(part, f"{path}/{name}")


def test_the_schema_is_closed_but_for_what_is_kubernetes_own() -> None:
    kubernetes = {"nodeAffinity", "podAffinity", "podAntiAffinity", "podSelector"}
    kubernetes |= {"namespaceSelector", "ipBlock", "valueFrom"}
    open_parts = {
        path
        for path, part in parts(SCHEMA)
        if part.get("additionalProperties") is not False and path.split("/")[-1] not in kubernetes
    }
    # A volume is a name and one of dozens of kinds; labels, amounts and globals are anybody's.
    assert open_parts == {
        "/properties/global",
        "/properties/extraVolumes/items",
        "/definitions/strings",
        "/definitions/amounts",
    }


def names(value: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - YAML of any shape
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{path}/{name}"
        yield from names(inner, f"{path}/{name}")


def properties(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    for name, part in schema.get("properties", {}).items():
        yield f"{path}/{name}"
        yield from properties(part, f"{path}/{name}")


def test_every_value_that_can_be_set_is_in_values_yaml_with_its_default() -> None:
    optional = ("/global", "/enabled", "/affinity/", "/seLinuxOptions/", "/nodeSelector/")
    known = {path for path in properties(SCHEMA) if not path.startswith(optional)}
    free = ("/nodeSelector/", "/resources/", "/dashboards/labels/")
    assert known == {path for path in names(VALUES) if not path.startswith(free)} | {
        "/resources/requests",
        "/resources/limits",
    }
