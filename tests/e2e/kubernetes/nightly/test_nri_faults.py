"""Two hundred containers of a real containerd, with a plugin that works and with others."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.messages import (
    FRAME,
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Trunk,
    Ttrpc,
    packed,
)
from affinityd.linux.protobuf import field, read, text
from tests.e2e.kubernetes.adjusted import (
    CHOSEN,
    container,
    make_namespaces,
    removed,
    serving,
    started,
)
from tests.e2e.kubernetes.cluster import Cluster, running
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import PATIENCE, eventually, with_constants
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = needs_cpuset

CONTAINERS = 20  #: of a pod
PODS = 2
PLAIN, ADJUSTED = {(BOTH, False)}, {(NEAR, True)}
GPU_0 = {"NVIDIA_VISIBLE_DEVICES": "0"}  #: no device plugin has forty
MISDEEDS = 5  #: the runtime waits for 2 s for some
SLOWER = 2.0  #: at most so many times the time of containers without a plugin


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        make_namespaces(cluster)
        yield cluster


def forty(cluster: Cluster) -> tuple[set[tuple[str, bool]], float]:
    """Start the containers of two pods; return the states of these, and the seconds that it took.

    A state is the CPUs, and whether affinityd told it anything.
    """
    its = [container(f"c{number}", gpus=0, **GPU_0) for number in range(CONTAINERS)]
    began = time.monotonic()
    found = [started(cluster, f"pod-{number}", *its) for number in range(PODS)]
    seconds = time.monotonic() - began
    processes = [process for pod in found for process in pod.values()]
    assert len(processes) == PODS * CONTAINERS
    states = {(it.cpus, bool(it.told)) for it in processes}
    removed(cluster)
    return states, seconds


#: Does something instead of an answer: gets the connection, and the request's stream.
Misdeed = Callable[[socket.socket, int], None]


def says_nonsense(connection: socket.socket, _stream: int) -> None:
    connection.sendall(FRAME.pack(PLUGIN, 64) + os.urandom(64))


def dies(connection: socket.socket, _stream: int) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def refuses(connection: socket.socket, stream: int) -> None:
    status = field(1, field(1, 2) + field(2, "no"))
    connection.sendall(packed(Ttrpc(PLUGIN, stream, RESPONSE, status)))


def muddles(connection: socket.socket, stream: int) -> None:
    connection.sendall(packed(Ttrpc(PLUGIN, stream, RESPONSE, os.urandom(64) + b"\xff")))


def pins(connection: socket.socket, stream: int) -> None:
    """Answer rightly, as another plugin does that sets cpusets."""
    answer = field(2, messages.adjusted({}, None, FAR))
    connection.sendall(packed(Ttrpc(PLUGIN, stream, RESPONSE, answer)))


@contextmanager
def misbehaving(cluster: Cluster, misdeed: Misdeed) -> Iterator[list[int]]:
    """Have plugins come again and again, each until its first container; count these."""
    count, ends = [0], threading.Event()

    def live() -> None:
        trunk = Trunk()
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(os.fspath(cluster.root / "run/nri/nri.sock"))
            named = field(1, "misbehaving") + field(2, "50")
            service = field(1, "nri.pkg.api.v1alpha1.Runtime") + field(2, "RegisterPlugin")
            request = Ttrpc(RUNTIME, 1, REQUEST, service + field(3, named))
            connection.sendall(packed(request))
            connection.settimeout(1)
            while not ends.is_set():
                with suppress(TimeoutError):
                    data = connection.recv(65536)
                    if not data:
                        return
                    for it in trunk.received(data):
                        if it.connection == RUNTIME:
                            continue
                        if text(read(it.data), 2) == "CreateContainer":
                            count[0] += 1
                            misdeed(connection, it.stream)
                        else:
                            answer = packed(Ttrpc(PLUGIN, it.stream, RESPONSE, field(2, b"")))
                            connection.sendall(answer)

    def live_on() -> None:
        while not ends.is_set() and count[0] < MISDEEDS:
            live()

    thread = threading.Thread(target=live_on)
    thread.start()
    try:
        yield count
    finally:
        ends.set()
        thread.join()


def test_a_container_starts_about_as_fast_with_the_plugin_as_without(
    cluster: Cluster, tmp_path: Path
) -> None:
    forty(cluster)  # the first ones are slower
    plain, without = forty(cluster)
    assert plain == PLAIN
    with serving(cluster, tmp_path) as node:
        adjusted, with_plugin = forty(cluster)
        assert adjusted == ADJUSTED
        assert node.samples("nri_requests_total", "outcome")["adjusted"] == PODS * CONTAINERS
    assert with_plugin < SLOWER * without, f"{with_plugin:.1f} s, else {without:.1f} s"


def test_containers_start_while_the_daemon_hangs_and_are_adjusted_when_it_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    with serving(cluster, tmp_path) as node:
        node.daemon.signal(signal.SIGSTOP)
        hung, _ = forty(cluster)
        assert hung == PLAIN
        node.daemon.signal(signal.SIGCONT)
        known = "the runtime knows the plugin"
        eventually(lambda: len(node.daemon.says(known)) == 2, "the plugin is back")
        adjusted, _ = forty(cluster)
        assert adjusted == ADJUSTED


def test_a_container_starts_when_the_daemon_is_killed_in_the_middle_of_its_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The daemon waits for a kubelet that does not answer, for longer than the runtime does."""
    path = tmp_path / "kubelet.sock"
    asks_kubelet = f"--pod-resources={path}"
    waits = with_constants(daemon__nri__DEADLINE=PATIENCE, daemon__nri__KUBELET_SECONDS=PATIENCE)
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
        (its,) = started(cluster, "killed", container("c", gpus=0)).values()
        thread.join()
        assert node.daemon.process.wait(PATIENCE) == -signal.SIGKILL
        assert (its.cpus, its.told) == (BOTH, {})
        removed(cluster)


def test_containers_are_adjusted_again_when_the_runtime_has_started_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    with serving(cluster, tmp_path) as node:
        command = cluster.stop("containerd")
        eventually(lambda: node.samples("nri_connected")[""] == 0, "the daemon knows")
        cluster.start("containerd", command)
        eventually(lambda: node.samples("nri_connected")[""] == 1, "the plugin is back")
        (its,) = started(cluster, "again", container("c", gpus=0, **GPU_0)).values()
        assert its.cpus == NEAR
        removed(cluster)


@pytest.mark.parametrize("misdeed", [says_nonsense, dies])
def test_containers_start_whatever_the_plugin_does_on_its_connection(
    cluster: Cluster, misdeed: Misdeed
) -> None:
    with misbehaving(cluster, misdeed) as count:
        states, _ = forty(cluster)
        assert (states, count[0]) == (PLAIN, MISDEEDS)


def test_a_cpuset_of_another_plugin_stays(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path), misbehaving(cluster, pins) as count:
        (its,) = started(cluster, "pinned", container("c", gpus=0, **GPU_0)).values()
        assert (its.cpus, count[0]) == (FAR, 1)
        assert "AFFINITYD_NODES" in its.told
        assert "AFFINITYD_CPULIST" not in its.told
        removed(cluster)


@pytest.mark.parametrize("misdeed", [refuses, muddles])
def test_an_error_fails_the_container_so_that_none_may_be_answered(
    cluster: Cluster, misdeed: Misdeed
) -> None:
    with misbehaving(cluster, misdeed) as count:
        pod = {"name": "refused", "namespace": CHOSEN}
        spec = {"containers": [container("c", gpus=0)], "terminationGracePeriodSeconds": 0}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec})
        eventually(lambda: count[0] > 1, "kubelet tries again")  # 10 s later, and so on
        assert cluster.get("pod", "-n", CHOSEN, "refused")["status"]["phase"] == "Pending"
    removed(cluster)
