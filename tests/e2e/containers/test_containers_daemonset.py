"""The chart's DaemonSet, started with the image of the working tree: `podman play kube`'s pod."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chart.rendering import Object, with_values
from tests.e2e.containers import images
from tests.e2e.containers.as_pod import as_pod, played
from tests.e2e.containers.podman import attempt, podman
from tests.e2e.containers.rig import USER, curl, unique_name
from tests.support.daemons import eventually
from tests.support.tiny import Ended

NODE = "gpu07"


@dataclass(frozen=True)
class Pod:
    """The daemon's pod, and what it was made of."""

    name: str
    folder: Path  #: of its socket, on the node
    daemon_set: Object
    pid: int  #: the daemon's

    def ask(self, path: str) -> str:
        """Ask by the socket's folder, as a pod with a hostPath."""
        socket = ("--unix-socket", self.folder / "affinityd.sock")
        return subprocess.check_output(["curl", "-sS", *socket, f"http://node{path}"], text=True)

    def ask_port(self, port: int, path: str) -> Ended:
        """Ask over TCP, as what shares the network and no file with it."""
        return curl(self.pid, f"http://127.0.0.1:{port}{path}")


@contextmanager
def running(folder: Path, values: Mapping[str, Any]) -> Iterator[Pod]:
    """Run the pod of the chart's DaemonSet with these values, until the block ends."""
    name, sockets = unique_name(), folder / "affinityd"
    repository, _, tag = images.affinityd().rpartition(":")
    own = {
        "fullnameOverride": name,
        "image": {"repository": repository, "tag": tag},
        "socket": {"hostPath": str(sockets), **values.get("socket", {})},
    }
    daemon_set = with_values({**values, **own})[f"DaemonSet/{name}"]
    with played(as_pod(daemon_set, node=NODE), folder, "none"):
        pid = podman("inspect", "--format={{.State.Pid}}", f"{name}-affinityd")
        pod = Pod(name, sockets, daemon_set, int(pid))
        eventually(lambda: pod.ask_port(9465, "/readyz").status == 0, "the daemon is ready")
        yield pod


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("daemonset")
    with running(folder, {"extraArgs": ["--machine=dgx-a100"]}) as pod:
        yield pod


PLAN = "/plan?gpus=0,1&mode=unique_contiguous&format=cpulist"
CPUS = "48-55,176-183\n56-63,184-191\n"


def test_a_plan_is_the_same_by_the_folder_and_over_both_ports_and_one_has_nothing_else(
    pod: Pod,
) -> None:
    assert pod.ask(PLAN) == CPUS
    for port in (9465, 9466):
        assert pod.ask_port(port, PLAN).stdout == CPUS
    for path in ("/metrics", "/topology", "/readyz"):
        refused = pod.ask_port(9466, path)
        assert refused.status != 0
        assert json.loads(refused.stdout)["status"] == 404
        assert pod.ask_port(9465, path).status == 0


def test_the_probes_ask_what_the_daemon_answers(pod: Pod) -> None:
    (container,) = pod.daemon_set["spec"]["template"]["spec"]["containers"]
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]["httpGet"]
        assert pod.ask_port(ports[probe["port"]], probe["path"]).status == 0


def test_the_init_step_gives_the_folder_to_the_daemon_which_has_no_privilege(pod: Pod) -> None:
    state = pod.folder.stat()
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (USER, USER, 0o755)
    assert stat.S_IMODE((pod.folder / "affinityd.sock").stat().st_mode) == 0o666
    assert json.loads((pod.folder / "node.json").read_text())["generation"] == 1
    container = f"{pod.name}-affinityd"
    status = podman("exec", container, "cat", "/proc/1/status")
    uids = "\t".join(["Uid:", *([str(USER)] * 4)])
    for fact in (uids, "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert f"{fact}\n" in status
    places = ("/var/tmp/a", "/opt/affinityd/a", "/a")  # noqa: S108
    written = attempt("exec", container, "touch", *places)
    assert written.stderr.count("Read-only file system") == len(places)
    messages = [json.loads(line)["message"] for line in podman("logs", container).splitlines()]
    assert any("0.0.0.0:9466" in message for message in messages)


def test_what_an_earlier_daemon_has_left_is_no_obstacle(tmp_path: Path) -> None:
    """A file of another user's, as the unit of systemd leaves; a folder closed to others."""
    folder = tmp_path / "affinityd"
    folder.mkdir(mode=0o700)
    node_file = folder / "node.json"
    node_file.write_text("{}")
    os.chown(folder, 12345, 12345)
    with running(tmp_path, {}) as pod:
        assert json.loads(node_file.read_text())["generation"] == 1
        assert node_file.stat().st_uid == USER
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
        assert json.loads(pod.ask("/topology"))["topology"]["name"] == NODE


def test_without_the_folder_the_service_alone_is_there(tmp_path: Path) -> None:
    values = {"socket": {"enabled": False}, "extraArgs": ["--machine=dgx-a100"]}
    with running(tmp_path, values) as pod:
        assert pod.ask_port(9466, PLAN).stdout == CPUS
        assert not pod.folder.exists()
