"""What values make of the daemon: what it is told, and what it may do."""

from __future__ import annotations

import os

import pytest

from affinityd.config.settings import ENFORCE_VALUES, MEASURED
from affinityd.daemon.policy_document import parse
from tests.e2e.chart.rendering import container, objects, pod, rendered, with_values
from tests.support import privileges

START = ["serve", "--socket=/run/affinityd/affinityd.sock"]
START += ["--listen=0.0.0.0:9465", "--listen-plan=0.0.0.0:9466", "--log-format=json"]

#: Values, further arguments, what these are of the features in docs/privileges.md, and the
#: RuntimeClass that brings NVML.
ROWS = """
 | --scan-interval=off | |
audit.enabled=true | | callers | nvidia
audit.enabled=true audit.runtimeClassName= | | callers |
audit.runtimeClassName=nvidia | --scan-interval=off | |
audit.enabled=true runtimeClassName=nvidia-legacy settings.scanInterval=60 \
 | --scan-interval=60 | callers | nvidia-legacy
hostPID=true settings.scanInterval=false | --scan-interval=off | callers |
hostPID=true settings.scanInterval=null settings.jobSeries=0 | | callers |
hostPID=true settings.jobSeries=20 | --job-series=20 | callers |
settings.reservedCpus=0 | --reserved-cpus=0 --scan-interval=off | |
settings.reservedCpus=null | --scan-interval=off | |
enforce.mode=false enforce.policy=x | --scan-interval=off | |
hostPID=true enforce.readEnvironments=true | | callers |
hostPID=true enforce.mode=observe | --enforce=observe | enforce observe |
hostPID=true enforce.mode=observe enforce.readEnvironments=true \
 | --enforce=observe | enforce observe, environments |
hostPID=true enforce.mode=pin enforce.policy=x \
 | --enforce=pin --enforce-policy=/etc/affinityd/policy.toml | enforce pin |
hostPID=true enforce.mode=pin enforce.readEnvironments=true \
 | --enforce=pin | enforce pin, environments |
"""


@pytest.mark.parametrize(
    ("values", "arguments", "features", "nvml"),
    [[part.strip() for part in row.split("|")] for row in ROWS.strip("\n").splitlines()],
)
def test_a_daemon_is_told_what_was_chosen_and_may_do_what_that_takes_and_no_more(
    values: str, arguments: str, features: str, nvml: str
) -> None:
    daemon, made = container(values), pod(values)
    assert daemon["args"] == [*START, *arguments.split()]
    variables = {it["name"]: it.get("value") for it in daemon["env"]}
    brought = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert variables == {"AFFINITYD_NODE_NAME": None, **(brought if nvml else {})}
    assert made.get("runtimeClassName", "") == nvml
    named = ("plans", *filter(None, features.split(", ")))
    capabilities, namespaces = (
        {item for name in named for item in privileges.needs(name, kind)}
        for kind in ("capabilities", "namespaces")
    )
    assert made.get("hostPID", False) == ("pid" in namespaces)
    context = {**made["securityContext"], **daemon["securityContext"]}
    added = context["capabilities"].get("add", [])
    assert set(added) == capabilities
    user = 0 if added else 65532  # no other user than root has capabilities
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": not added,
        "runAsUser": user,
        "runAsGroup": user,
        "seccompProfile": {"type": "Unconfined" if "memory" in features else "RuntimeDefault"},
    }
    (step,) = made["initContainers"]
    assert f"chown -R {user}:{user} /run/affinityd\n" in step["args"][0]
    assert step["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}


def test_the_folder_of_a_measurement_is_where_the_daemon_looks_for_it() -> None:
    asks = "audit.enabled=true audit.measuredFolder=/data/measured"
    assert {it["name"] for it in pod("audit.enabled=true")["volumes"]} == {"socket", "cgroups"}
    (volume,) = (it for it in pod(asks)["volumes"] if it["name"] == "measured")
    assert volume["hostPath"] == {"path": "/data/measured", "type": "DirectoryOrCreate"}
    (mount,) = (it for it in container(asks)["volumeMounts"] if it["name"] == "measured")
    assert (mount["mountPath"], mount["readOnly"]) == (os.path.dirname(MEASURED), True)  # noqa: PTH120


def test_kubelets_socket_takes_root_without_a_capability_and_no_folders_of_logs() -> None:
    asks = "audit.enabled=true kubernetes.podResources=true kubernetes.kubeletRoot=/data/kubelet/"
    daemon, made = container(asks), pod(asks)
    socket = "/var/lib/kubelet/pod-resources/kubelet.sock"
    assert {"name": "AFFINITYD_POD_RESOURCES", "value": socket} in daemon["env"]
    context = daemon["securityContext"]
    assert (context["runAsUser"], context["capabilities"]) == (0, {"drop": ["ALL"]})
    folders = {it["name"]: it.get("hostPath", {}).get("path") for it in made["volumes"]}
    assert folders["pod-resources"] == "/data/kubelet/pod-resources"
    (mount,) = (it for it in daemon["volumeMounts"] if it["name"] == "pod-resources")
    assert mount["readOnly"]
    policy = {"mode": "observe", "policy": '[[rule]]\nnamespace = "a"'}
    values = {"audit": {"enabled": True}, "kubernetes": {"podResources": True}, "enforce": policy}
    its = with_values(values)["DaemonSet/affinityd"]["spec"]["template"]["spec"]
    assert "pods" not in {it["name"] for it in its["volumes"]}


@pytest.mark.parametrize(
    ("socket", "mounted"),
    [
        ("socket.enabled=false", []),
        ("socket.hostPath=/srv/affinityd", ["--nri-mount=/srv/affinityd"]),
    ],
)
def test_containers_get_the_nodes_folder_of_the_socket(socket: str, mounted: list[str]) -> None:
    arguments = container(f"kubernetes.nri.enabled=true {socket}")["args"]
    assert [it for it in arguments if it.startswith("--nri-")] == mounted


def test_one_value_sets_what_the_older_ones_set_together() -> None:
    assert rendered("audit.enabled=true") == rendered("hostPID=true runtimeClassName=nvidia")


def test_the_modes_are_the_daemons() -> None:
    for mode in ENFORCE_VALUES:
        assert "DaemonSet/affinityd" in objects(f"hostPID=true enforce.mode={mode}")


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        ("off", '[[rule]]\nnamespace = "a"'),
        ("observe", f"\n\n#\ttab\n  mode = 'node'\n# {'a: b' * 99}\n"),
        ("pin", '[[rule]]\nuser = "podman"'),
        ("pin", '[[rule]]\nnamespace = "a"'),
    ],
)
def test_a_policy_arrives_as_it_was_written_and_pods_where_it_asks_for_them(
    mode: str, policy: str
) -> None:
    made = with_values({"hostPID": True, "enforce": {"mode": mode, "policy": policy}})
    data = made.get("ConfigMap/affinityd-policy", {}).get("data")
    assert data == (None if mode == "off" else {"policy.toml": policy})
    its = made["DaemonSet/affinityd"]["spec"]["template"]["spec"]
    volumes = [it["hostPath"]["path"] for it in its["volumes"] if it["name"] == "pods"]
    assert volumes == ["/var/log/pods"] * (mode != "off" and "namespace" in policy)


def test_the_policy_of_the_example_is_one() -> None:
    policy = objects("pin")["ConfigMap/affinityd-policy"]["data"]["policy.toml"]
    assert len(parse(policy).rules) == 2
