"""Containers of a real containerd while the daemon fails, hangs, or is one of several plugins."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.messages import (
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Trunk,
    Ttrpc,
    packed,
)
from affinityd.linux.protobuf import field, read, text
from tests.e2e.kubernetes.adjusted import container, make_namespaces, removed, serving, started
from tests.e2e.kubernetes.cluster import POD_RESOURCES, Cluster, Process, device_plugin, running
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import PATIENCE, eventually, with_constants
from tests.support.scanning_node import uuid
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = [needs_cpuset, pytest.mark.usefixtures("pods_end")]

CONTAINERS = 20  #: of a pod
PODS = 2
POD_COUNT = 40  #: of a rollout
PLAIN, ADJUSTED = {(BOTH, False)}, {(NEAR, True)}
GPU_0 = {"NVIDIA_VISIBLE_DEVICES": "0"}  #: no device plugin has forty GPUs


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        make_namespaces(cluster)
        yield cluster


def forty(cluster: Cluster) -> set[tuple[str, bool]]:
    """Start the containers of two pods; return their CPUs, and whether affinityd set variables."""
    containers = [container(f"c{number}", gpus=0, **GPU_0) for number in range(CONTAINERS)]
    pods = [started(cluster, f"pod-{number}", *containers) for number in range(PODS)]
    processes = [process for pod in pods for process in pod.values()]
    assert len(processes) == PODS * CONTAINERS
    states = {(it.cpus, bool(it.told)) for it in processes}
    removed(cluster)
    return states


def always_far(method: str) -> bytes:
    """Return the answer that sets a new container's cpuset to FAR."""
    return messages.adjusted({}, None, FAR) if method == "CreateContainer" else b""


@contextmanager
def another_plugin(cluster: Cluster, index: str) -> Iterator[None]:
    """Run another plugin, which containerd asks before the daemon."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(cluster.root / "run/nri/nri.sock"))
        name = field(1, "another") + field(2, index)
        service = field(1, "nri.pkg.api.v1alpha1.Runtime") + field(2, "RegisterPlugin")
        connection.sendall(packed(Ttrpc(RUNTIME, 1, REQUEST, service + field(3, name))))
        thread = threading.Thread(target=answer_requests, args=(connection,))
        thread.start()
        try:
            yield
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer_requests(connection: socket.socket) -> None:
    trunk = Trunk()
    while data := connection.recv(65536):
        for message in trunk.received(data):
            if message.connection == RUNTIME:
                continue
            asked = read(message.data)
            payload = field(2, always_far(text(asked, 2)))
            connection.sendall(packed(Ttrpc(PLUGIN, message.stream, RESPONSE, payload)))


def test_containers_start_while_the_daemon_hangs(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as node:
        node.daemon.signal(signal.SIGSTOP)
        assert forty(cluster) == PLAIN
        node.daemon.signal(signal.SIGCONT)
        line = "the runtime knows the plugin"
        eventually(lambda: len(node.daemon.says(line)) == 2, "the plugin is back")
        assert forty(cluster) == ADJUSTED


def test_a_container_starts_when_the_daemon_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The daemon waits for a kubelet that does not answer, longer than the runtime waits."""
    path = tmp_path / "kubelet.sock"
    asks_kubelet = f"--pod-resources={path}"
    waits = with_constants(daemon__nri__KUBELET_SECONDS=PATIENCE)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(os.fspath(path))
        listener.listen()
        listener.settimeout(PATIENCE)
        (tmp_path / "daemon").mkdir()
        node = stack.enter_context(
            serving(cluster, tmp_path / "daemon", asks_kubelet, before=waits)
        )

        def kill() -> None:
            asked, _ = listener.accept()
            with asked:
                node.daemon.signal(signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        privileged = {**container("c", gpus=0), "securityContext": {"privileged": True}}
        (process,) = started(
            cluster, "killed", privileged, namespace="default", affinityd="on"
        ).values()
        thread.join()
        assert node.daemon.process.wait(PATIENCE) == -signal.SIGKILL
        assert (process.cpus, process.told) == (BOTH, {})
        cluster.run("kubectl delete pod killed --now")


def test_forty_pods_that_start_together_are_placed_by_kubelet_s_answers(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The pods are privileged, and have all device files; kubelet answers 100 calls a second."""
    resource = "shared.example.com/gpu"
    replicas = [f"{uuid(2)}::{number}=1:/dev/null:/dev/nvidia2" for number in range(POD_COUNT)]
    amounts = {kind: {"cpu": "10m", resource: "1"} for kind in ("requests", "limits")}
    one = {
        **container("one", gpus=0),
        "resources": amounts,
        "securityContext": {"privileged": True},
    }
    labels = {"app": "rollout", "affinityd": "on"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [one]},
    }
    selector = {"matchLabels": {"app": "rollout"}}
    spec = {"replicas": POD_COUNT, "selector": selector, "template": template}
    metadata = {"name": "rollout", "namespace": "default"}
    with (
        device_plugin(cluster, resource, "file", *replicas),
        serving(cluster, tmp_path, f"--pod-resources={POD_RESOURCES}") as node,
    ):
        cluster.apply(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        )
        cluster.run("kubectl rollout status deployment/rollout --timeout=300s")
        pods = cluster.get("pods", "-l", "app=rollout")["items"]
        pids = [pid for pod in pods for pid in cluster.pids(pod["metadata"]["uid"])]
        assert [Process(pid).cpus for pid in pids] == [FAR] * POD_COUNT
        assert node.samples("nri_containers", "state")["pinned"] == POD_COUNT
        assert node.daemon.says("is not adjusted") == []
        cluster.run("kubectl delete deployment rollout; kubectl delete pods -l app=rollout --now")


def test_containers_are_adjusted_after_a_runtime_restart(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as node:
        command = cluster.stop("containerd")
        eventually(lambda: node.samples("nri_connected")[""] == 0, "the daemon knows")
        cluster.start("containerd", command)
        eventually(lambda: node.samples("nri_connected")[""] == 1, "the plugin is back")
        (process,) = started(cluster, "again", container("c", gpus=0, **GPU_0)).values()
        assert process.cpus == NEAR


def test_a_cpuset_of_another_plugin_is_not_changed(cluster: Cluster, tmp_path: Path) -> None:
    """The resource policies of nri-plugins have index 90."""
    with serving(cluster, tmp_path), another_plugin(cluster, "90"):
        (process,) = started(cluster, "pinned", container("c", gpus=0, **GPU_0)).values()
        assert process.cpus == FAR
        assert "AFFINITYD_NODES" in process.told
        assert "AFFINITYD_CPULIST" not in process.told
