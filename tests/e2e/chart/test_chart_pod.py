"""What each option of the chart makes of the daemon's pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from affinityd import __version__
from affinityd.config.settings import NAMES
from tests.e2e.chart.as_pod import as_pod
from tests.e2e.chart.pod_security import against_baseline, against_restricted
from tests.e2e.chart.rendering import (
    CHART,
    OPTIONS,
    by_name,
    container,
    daemon_set,
    helm,
    objects,
    pod,
)


def environment(option: str) -> dict[str, Any]:
    return {it["name"]: it.get("value", it.get("valueFrom")) for it in container(option)["env"]}


def node_terms(option: str) -> Any:  # noqa: ANN401 - YAML
    required = pod(option)["affinity"]["nodeAffinity"]
    return required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


@pytest.mark.parametrize(
    ("option", "found", "expected"),
    [
        ("default", lambda it: container(it)["image"], f"localhost/affinityd:{__version__}"),
        (
            "image",
            lambda it: container(it)["image"],
            f"registry.example.org/hpc/affinityd@sha256:{'0' * 64}",
        ),
        ("image", lambda it: pod(it)["imagePullSecrets"], [{"name": "registry-example"}]),
        ("image", lambda it: container(it)["imagePullPolicy"], "Always"),
        ("default", lambda it: pod(it)["priorityClassName"], "system-node-critical"),
        ("placement", lambda it: pod(it).get("priorityClassName"), None),
        ("placement", lambda it: pod(it)["nodeSelector"]["node.example.org/pool"], "a100"),
        ("placement", lambda it: pod(it)["tolerations"], [{"operator": "Exists"}]),
        ("default", lambda it: pod(it).get("hostPID", False), False),
        ("host-pid", lambda it: pod(it)["hostPID"], True),
        ("default", lambda it: pod(it).get("runtimeClassName"), None),
        ("nvidia-runtime", lambda it: pod(it)["runtimeClassName"], "nvidia"),
        ("nvidia-runtime", lambda it: environment(it)["NVIDIA_VISIBLE_DEVICES"], "all"),
        ("nvidia-runtime", lambda it: environment(it)["NVIDIA_DRIVER_CAPABILITIES"], "utility"),
        ("default", lambda it: [name for name in environment(it) if "NVIDIA" in name], []),
        ("selinux", lambda it: pod(it)["securityContext"]["seLinuxOptions"], {"type": "spc_t"}),
        ("service-account", lambda it: pod(it)["serviceAccountName"], "gpu-daemons"),
        ("default", lambda it: pod(it)["automountServiceAccountToken"], False),
        (
            "default",
            lambda it: objects(it)["ServiceAccount/affinityd"]["automountServiceAccountToken"],
            False,
        ),
        ("default", lambda it: pod(it)["terminationGracePeriodSeconds"], 10),
        ("update", lambda it: pod(it)["terminationGracePeriodSeconds"], 30),
        (
            "default",
            lambda it: daemon_set(it)["spec"]["updateStrategy"],
            {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"},
            },
        ),
        ("update", lambda it: daemon_set(it)["spec"]["updateStrategy"], {"type": "OnDelete"}),
        ("update", lambda it: container(it)["resources"]["limits"]["cpu"], "500m"),
        ("extras", lambda it: environment(it)["TZ"], "UTC"),
        ("extras", lambda it: container(it)["args"][-1], "--root=/node"),
        ("extras", lambda it: container(it)["volumeMounts"][-1]["mountPath"], "/node"),
        ("extras", lambda it: pod(it)["volumes"][-1]["hostPath"]["path"], "/srv/node"),
    ],
)
def test_an_option_is_found_in_the_pod(
    option: str, found: Callable[[str], object], expected: object
) -> None:
    assert found(option) == expected


SOCKET = "--socket=/run/affinityd/affinityd.sock"
ANY_ADDRESS = ("--listen=0.0.0.0:9465", "--listen-plan=0.0.0.0:9466")


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("default", [*ANY_ADDRESS, "--log-format=json", "--scan-interval=off"]),
        (
            "ipv6",
            [
                *("--listen=[::]:9465", "--listen-plan=[::]:9466", "--log-format=json"),
                "--scan-interval=off",
            ],
        ),
        (
            "socket-only",
            [
                *("--listen=0.0.0.0:9465", "--listen-plan=none", "--log-format=json"),
                "--scan-interval=off",
            ],
        ),
        (
            "settings",
            [
                *("--listen=0.0.0.0:19465", "--listen-plan=0.0.0.0:19466", "--log-format=text"),
                *("--reserved-cpus=0,64", "--scan-interval=off"),
            ],
        ),
        ("host-pid", [*ANY_ADDRESS, "--log-format=json"]),
    ],
)
def test_the_daemon_is_started_with(option: str, arguments: list[str]) -> None:
    assert container(option)["args"] == ["serve", SOCKET, *arguments]
    flags = {it.partition("=")[0][2:].replace("-", "_") for it in [SOCKET, *arguments]}
    assert flags <= set(NAMES)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["settings.reservedCpus=0"], ["--reserved-cpus=0"]),
        (["settings.reservedCpus=64"], ["--reserved-cpus=64"]),
        ([r"settings.reservedCpus=0\,64"], ["--reserved-cpus=0,64"]),
        (["settings.reservedCpus="], []),
        (["settings.reservedCpus=null"], []),
        ([], []),
    ],
)
def test_reserved_cpus_may_be_one_number(words: list[str], arguments: list[str]) -> None:
    done = helm("template", "affinityd", str(CHART), *(f"--set={word}" for word in words))
    assert (done.returncode, done.stderr) == (0, "")
    made = by_name(yaml.safe_load_all(done.stdout))["DaemonSet/affinityd"]
    (only,) = made["spec"]["template"]["spec"]["containers"]
    assert [it for it in only["args"] if it.startswith("--reserved-cpus")] == arguments


def test_the_daemon_goes_by_the_name_of_its_node() -> None:
    assert environment("default") == {
        "AFFINITYD_NODE_NAME": {"fieldRef": {"fieldPath": "spec.nodeName"}}
    }


def test_a_node_with_any_label_of_a_gpu_gets_a_daemon() -> None:
    terms = [term["matchExpressions"] for term in node_terms("default")]
    assert [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}] in terms
    assert [{"key": "cloud.google.com/gke-accelerator", "operator": "Exists"}] in terms
    assert {it["key"] for it in pod("default")["tolerations"]} >= {"nvidia.com/gpu", "amd.com/gpu"}


def test_the_users_own_node_affinity_takes_the_place_of_the_labels() -> None:
    ((expression,),) = [term["matchExpressions"] for term in node_terms("placement")]
    assert expression["key"] == "node.example.org/gpus"


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_no_host_path_but_the_sockets_folder_and_with_the_hosts_pids_its_cgroups_and_pods(
    option: str,
) -> None:
    made = pod(option)
    paths = [it["hostPath"]["path"] for it in made["volumes"] if "hostPath" in it]
    expected = {"service-only": [], "socket-only": ["/var/run/site/affinityd"]}
    chosen = expected.get(option, ["/run/affinityd"])
    cgroups = ["/sys/fs/cgroup"] if made.get("hostPID") else []
    pods = ["/var/log/pods"] if option == "pin" else []  # whose policy asks for namespaces
    assert [path for path in paths if path != "/srv/node"] == [*chosen, *cgroups, *pods]


def test_the_nodes_cgroups_are_there_to_be_read() -> None:
    (container,) = pod("host-pid")["containers"]
    (cgroups,) = (it for it in container["volumeMounts"] if it["name"] == "cgroups")
    assert cgroups == {"name": "cgroups", "mountPath": "/host/cgroup", "readOnly": True}


#: Whose daemon is root: what it may do is with the tests of enforcing.
PINNING = {"pin", "pin-privileges"}


@pytest.mark.parametrize("option", sorted(OPTIONS.keys() - PINNING))
def test_the_daemon_may_do_nothing_but_run_as_nobody(option: str) -> None:
    assert container(option)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod(option)["securityContext"].items() >= {
        ("runAsNonRoot", True),
        ("runAsUser", 65532),
    }
    assert pod(option)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_init_step_may_give_the_folder_away_and_nothing_else() -> None:
    (step,) = pod("default")["initContainers"]
    assert step["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    assert "initContainers" not in pod("service-only")


@pytest.mark.parametrize(
    ("option", "barred"),
    [
        ("default", ["hostPath"]),
        ("host-pid", ["hostPID", "hostPath", "hostPath"]),
        ("selinux", ["hostPath", "seLinuxOptions"]),
        ("service-only", []),
    ],
)
def test_what_the_baseline_pod_security_standard_bars(option: str, barred: list[str]) -> None:
    assert list(against_baseline(pod(option))) == barred


def test_without_the_folder_the_daemon_meets_the_restricted_standard() -> None:
    assert list(against_restricted(pod("service-only"))) == []
    assert "root" in set(against_restricted(pod("default")))


def test_labels_that_are_added_stand_beside_the_charts_own() -> None:
    labels = daemon_set("names")["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "planner"
    assert (labels["team"], labels["tier"]) == ("hpc", "node")
    assert labels["app.kubernetes.io/part-of"] == "affinityd"


def test_a_daemon_set_becomes_a_pod_that_podman_takes() -> None:
    made = as_pod(daemon_set("host-pid"), node="gpu07")
    assert made["kind"] == "Pod"
    assert made["spec"].keys() == {
        *("containers", "initContainers", "restartPolicy", "securityContext", "volumes"),
    }
    (only,) = made["spec"]["containers"]
    assert only["env"] == [{"name": "AFFINITYD_NODE_NAME", "value": "gpu07"}]
    assert only["args"] == container("host-pid")["args"]
    assert not [name for name in only if name.endswith("Probe") or name == "ports"]
