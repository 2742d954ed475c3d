"""Every option of the chart: what it changes, and what holds for all options."""

import json
import socket
from pathlib import Path

import pytest

from tests.e2e.chart import rendering
from tests.e2e.chart.rendering import CHART, OPTIONS, container, daemon_set, objects, pod
from tests.support import privileges
from tests.support.tables import table
from tests.support.tiny import ran

EVERY_OPTION = pytest.mark.parametrize("option", OPTIONS)
CUSTOM = "monitoring.coreos.com/v1"


@EVERY_OPTION
def test_the_manifests_are_the_reviewed_golden_files(option: str) -> None:
    assert rendering.looked_at(option) == rendering.golden_path(option).read_text(), (
        rendering.REMAKE
    )


@pytest.mark.parametrize("option", ["default", "everything"])
def test_helm_lint_accepts_each_option(option: str) -> None:
    done = rendering.helm("lint", "--strict", str(CHART), *rendering.chosen(option))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_every_field_is_known_to_kubernetes() -> None:
    made = [it for option in OPTIONS for it in objects(option).values()]
    unique = {repr(it): it for it in made if it["apiVersion"] != CUSTOM}
    assert len(unique) > len(OPTIONS)
    rendering.validate(unique.values(), rendering.OLDEST, rendering.NEWEST)


@EVERY_OPTION
def test_the_chart_s_test_runs_beside_a_daemon(option: str) -> None:
    tests = [it for it in objects(option).values() if it["kind"] == "Pod"]
    for test in tests:
        for part in ("tolerations", "serviceAccountName"):
            assert test["spec"].get(part) == pod(option).get(part)
        selected = daemon_set(option)["spec"]["selector"]["matchLabels"]
        assert not selected.items() <= test["metadata"]["labels"].items()
        assert json.dumps(selected) in json.dumps(test["spec"]["affinity"])
    assert bool(tests) == (option != "socket-only")


def test_the_monitor_finds_the_daemons() -> None:
    monitor = objects("pod-monitor")["PodMonitor/affinityd"]
    labels = daemon_set("pod-monitor")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "affinityd"


# The effects of values on the daemon: its arguments and its privileges.

START = ["serve", "--listen=0.0.0.0:9465", "--listen-plan=0.0.0.0:9466", "--log-format=json"]
SOCKET = "/run/affinityd/affinityd.sock"


@pytest.mark.parametrize(("values", "arguments", "features", "nvml"), table("chart-privileges.tsv"))
def test_values_choose_privileges(values: str, arguments: str, features: str, nvml: str) -> None:
    daemon, made = container(values), pod(values)
    assert daemon["args"] == [*START, *arguments.split()]
    variables = {it["name"]: it.get("value") for it in daemon["env"]}
    brought = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    usual = {"AFFINITYD_NODE_NAME": None, "AFFINITYD_SOCKET": SOCKET}
    assert variables == {**usual, **(brought if nvml else {})}
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


@pytest.mark.parametrize(
    ("kind", "listens", "said"),
    [
        (socket.SOCK_STREAM, False, ""),
        (socket.SOCK_STREAM, True, "another daemon answers in this folder: uninstall its"),
        (socket.SOCK_DGRAM, False, "is not known: [Errno 91] Protocol wrong type for"),
    ],
)
def test_the_init_step_continues_only_if_certainly_no_process_listens(
    tmp_path: Path, kind: socket.SocketKind, said: str, *, listens: bool
) -> None:
    (step,) = pod("default")["initContainers"]
    looks = step["args"][0].partition("chown")[0].replace("/run/affinityd/", f"{tmp_path}/")
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(f"{tmp_path}/affinityd.sock")
        if listens:
            server.listen()
        done = ran(*step["command"], looks)
    assert done.status == bool(said)
    assert said in done.stderr
