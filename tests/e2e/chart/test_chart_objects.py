"""What each option of the chart makes of the objects around the daemon's pod."""

from __future__ import annotations

import pytest

from tests.e2e.chart.pod_security import against_restricted
from tests.e2e.chart.rendering import OPTIONS, container, daemon_set, objects, pod

ALWAYS = {"DaemonSet/affinityd", "ServiceAccount/affinityd"}
SERVICES = {"Service/affinityd", "Service/affinityd-metrics", "Pod/affinityd-test"}


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("default", ALWAYS | SERVICES),
        ("service-only", ALWAYS | SERVICES),
        ("socket-only", ALWAYS | {"Service/affinityd-metrics"}),
        ("service-account", {"DaemonSet/affinityd"} | SERVICES),
        ("network-policy", ALWAYS | SERVICES | {"NetworkPolicy/affinityd"}),
        (
            "pod-monitor",
            ALWAYS | SERVICES - {"Service/affinityd-metrics"} | {"PodMonitor/affinityd"},
        ),
        ("service-monitor", ALWAYS | SERVICES | {"ServiceMonitor/affinityd"}),
        ("prometheus-rule", ALWAYS | SERVICES | {"PrometheusRule/affinityd"}),
        ("dashboards", ALWAYS | SERVICES | {"ConfigMap/affinityd-dashboards"}),
        ("observe", ALWAYS | SERVICES),
        ("pin", ALWAYS | SERVICES | {"ConfigMap/affinityd-policy"}),
        (
            "names",
            {
                *("DaemonSet/gpu-planner", "ServiceAccount/gpu-planner", "Service/gpu-planner"),
                *("Service/gpu-planner-metrics", "Pod/gpu-planner-test"),
            },
        ),
    ],
)
def test_which_objects_there_are(option: str, names: set[str]) -> None:
    assert objects(option).keys() == names


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_services_and_probes_lead_to_ports_that_the_daemon_has(option: str) -> None:
    ports = {it["name"]: it["containerPort"] for it in container(option)["ports"]}
    arguments = " ".join(container(option)["args"])
    assert all(f":{port} " in f"{arguments} " for port in ports.values())
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert {container(option)[probe]["httpGet"]["port"] for probe in probes} == {"http"}
    template = daemon_set(option)["spec"]["template"]["metadata"]["labels"]
    for service in (it for it in objects(option).values() if it["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= template.items()
        (port,) = service["spec"]["ports"]
        assert ports[port["targetPort"]] == port["port"]


def test_a_pod_is_answered_by_the_daemon_of_its_own_node() -> None:
    assert objects("default")["Service/affinityd"]["spec"]["internalTrafficPolicy"] == "Local"


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_the_test_is_made_where_a_daemon_is_and_is_not_taken_for_one(option: str) -> None:
    tests = [it for it in objects(option).values() if it["kind"] == "Pod"]
    for test in tests:
        for part in ("nodeSelector", "affinity", "tolerations"):
            assert test["spec"].get(part) == pod(option).get(part)
        chosen = daemon_set(option)["spec"]["selector"]["matchLabels"]
        assert not chosen.items() <= test["metadata"]["labels"].items()
    assert bool(tests) == (option != "socket-only")


@pytest.mark.parametrize("option", ["default", "selinux"])
def test_the_test_of_the_chart_meets_the_restricted_standard(option: str) -> None:
    assert list(against_restricted(objects(option)["Pod/affinityd-test"]["spec"])) == []


def test_the_test_of_the_chart_is_there_until_the_next_one_so_that_its_log_can_be_read() -> None:
    annotations = objects("default")["Pod/affinityd-test"]["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation"


@pytest.mark.parametrize("option", ["default", "service-account", "names"])
def test_the_test_of_the_chart_is_of_the_daemons_service_account(option: str) -> None:
    (test,) = (it for it in objects(option).values() if it["kind"] == "Pod")
    assert test["spec"]["serviceAccountName"] == pod(option)["serviceAccountName"]


@pytest.mark.parametrize(
    ("option", "rules"),
    [
        (
            "network-policy",
            {
                "plan": [{"namespaceSelector": {}}],
                "http": [
                    {
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": "observability"}
                        },
                        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
                    }
                ],
            },
        ),
        ("network-policy-closed", {}),
    ],
)
def test_who_may_reach_which_port(option: str, rules: dict[str, object]) -> None:
    policy = objects(option)["NetworkPolicy/affinityd"]["spec"]
    assert {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"] or ()} == rules
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy


@pytest.mark.parametrize(
    ("option", "kind", "endpoints"),
    [
        ("pod-monitor", "PodMonitor", "podMetricsEndpoints"),
        ("service-monitor", "ServiceMonitor", "endpoints"),
    ],
)
def test_a_monitor_finds_the_daemons_and_names_their_nodes(
    option: str, kind: str, endpoints: str
) -> None:
    monitor = objects(option)[f"{kind}/affinityd"]
    spec = monitor["spec"]
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert spec["namespaceSelector"] == {"matchNames": ["gpu"]}
    found = [
        it
        for it in (daemon_set(option)["spec"]["template"], *objects(option).values())
        if it.get("kind") in ({"Service"} if kind == "ServiceMonitor" else {None})
        and spec["selector"]["matchLabels"].items() <= it["metadata"]["labels"].items()
    ]
    (one,) = found
    assert one["metadata"]["labels"][spec["jobLabel"]] == "affinityd"
    (endpoint,) = spec[endpoints]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    assert endpoint["relabelings"][0] == {
        "action": "replace",
        "sourceLabels": ["__meta_kubernetes_pod_node_name"],
        "targetLabel": "node",
    }
