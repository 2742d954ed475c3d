"""Every option of the chart: what it changes, and what holds whatever is chosen."""

from __future__ import annotations

import pytest

from affinityd.config.settings import NAMES
from tests.e2e.chart import golden
from tests.e2e.chart.pod_security import against_baseline, against_restricted
from tests.e2e.chart.rendering import (
    CHART,
    NAMESPACE,
    OPTIONS,
    chosen,
    container,
    daemon_set,
    helm,
    objects,
    pod,
)
from tests.e2e.chart.schemas import NEWEST, OLDEST, validate
from tests.support import privileges

EVERY_OPTION = pytest.mark.parametrize("option", OPTIONS)
CUSTOM = "monitoring.coreos.com/v1"

#: What a container sees of the node → the file of the table of privileges that it is.
SEEN = {"/host/cgroup": "/sys/fs/cgroup", "/var/log/pods": "/var/log/pods"}
POLICY, SOCKET = "/etc/affinityd", "/run/affinityd"
#: Folders that take root, and no capability.
KUBELET, NRI = "/var/lib/kubelet/pod-resources", "/run/nri"
MEASURED = "/var/lib/affinityd"  #: of a file that any user may read


@EVERY_OPTION
def test_the_manifests_are_those_that_were_looked_at(option: str) -> None:
    assert golden.looked_at(option) == golden.path(option).read_text(), golden.REMAKE


def test_there_is_no_golden_of_another_option() -> None:
    assert {*golden.path("default").parent.iterdir()} == {golden.path(it) for it in OPTIONS}


@pytest.mark.parametrize("option", ["default", "everything"])
def test_helm_lints_it(option: str) -> None:
    done = helm("lint", "--strict", str(CHART), *chosen(option))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_kubernetes_knows_every_field() -> None:
    made = [it for option in OPTIONS for it in objects(option).values()]
    unique = {repr(it): it for it in made if it["apiVersion"] != CUSTOM}
    assert len(unique) > len(OPTIONS)
    validate(unique.values(), OLDEST, NEWEST)


@EVERY_OPTION
def test_what_belongs_to_the_release_is_labelled_and_in_its_namespace(option: str) -> None:
    elsewhere = {"PodMonitor", "ConfigMap"}  # where Prometheus and Grafana look
    for it in objects(option).values():
        assert it["metadata"]["labels"]["app.kubernetes.io/instance"] == "affinityd"
        assert it["metadata"]["namespace"] == NAMESPACE or it["kind"] in elsewhere


@EVERY_OPTION
def test_services_and_probes_lead_to_ports_that_the_daemon_has(option: str) -> None:
    ports = {it["name"]: it["containerPort"] for it in container(option)["ports"]}
    arguments = container(option)["args"]
    assert all(any(it.endswith(f":{port}") for it in arguments) for port in ports.values())
    assert {it.partition("=")[0][2:].replace("-", "_") for it in arguments[1:]} <= {*NAMES, "root"}
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert {container(option)[probe]["httpGet"]["port"] for probe in probes} == {"http"}
    template = daemon_set(option)["spec"]["template"]["metadata"]["labels"]
    for service in (it for it in objects(option).values() if it["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= template.items()
        (port,) = service["spec"]["ports"]
        assert ports[port["targetPort"]] == port["port"]


@EVERY_OPTION
def test_the_test_is_made_where_a_daemon_is_and_is_not_taken_for_one(option: str) -> None:
    tests = [it for it in objects(option).values() if it["kind"] == "Pod"]
    for test in tests:
        for part in ("nodeSelector", "affinity", "tolerations", "serviceAccountName"):
            assert test["spec"].get(part) == pod(option).get(part)
        selected = daemon_set(option)["spec"]["selector"]["matchLabels"]
        assert not selected.items() <= test["metadata"]["labels"].items()
        assert list(against_restricted(test["spec"])) == []
    assert bool(tests) == (option != "socket-only")


@pytest.mark.parametrize("option", ["pod-monitor", "service-monitor"])
def test_a_monitor_finds_the_daemons(option: str) -> None:
    (monitor,) = (it for it in objects(option).values() if it["kind"].endswith("Monitor"))
    by_pods = monitor["kind"] == "PodMonitor"
    candidates = [daemon_set(option)["spec"]["template"]] if by_pods else objects(option).values()
    labels = [it["metadata"]["labels"] for it in candidates if by_pods or it["kind"] == "Service"]
    chooses = monitor["spec"]["selector"]["matchLabels"].items()
    (found,) = (it for it in labels if chooses <= it.items())
    assert found[monitor["spec"]["jobLabel"]] == "affinityd"


@EVERY_OPTION
def test_it_sees_files_that_a_feature_reads_and_writes_to_its_folder_alone(option: str) -> None:
    mounts = {
        it["mountPath"]: it.get("readOnly", False) for it in container(option)["volumeMounts"]
    }
    assert mounts.keys() <= {SOCKET, POLICY, KUBELET, NRI, MEASURED, *SEEN} | (
        {"/node"} if option == "extras" else set()
    )
    assert [place for place, read_only in mounts.items() if not read_only] == [SOCKET]
    assert {SEEN[it] for it in mounts if it in SEEN} <= set(privileges.items("reads"))
    assert set(privileges.items("writes")) == {SOCKET}


AUDIT = ["hostPID", "hostPath", "hostPath"]
READ, NICE, TRACE = (f"capability {it}" for it in ("DAC_READ_SEARCH", "SYS_NICE", "SYS_PTRACE"))


@pytest.mark.parametrize(
    ("option", "barred"),
    [
        ("default", ["hostPath"]),
        ("selinux", ["hostPath", "seLinuxOptions"]),
        ("audit", AUDIT),
        ("pin", [*AUDIT, "hostPath", NICE]),  # its policy asks for namespaces
        ("pin-privileges", [*AUDIT, READ, NICE, TRACE]),
    ],
)
def test_what_the_baseline_pod_security_standard_bars(option: str, barred: list[str]) -> None:
    assert list(against_baseline(pod(option))) == barred


def test_without_the_folder_the_daemon_meets_the_restricted_standard() -> None:
    assert list(against_restricted(pod("service-only"))) == []
    assert "root" in set(against_restricted(pod("default")))
