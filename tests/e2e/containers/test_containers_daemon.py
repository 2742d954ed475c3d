"""The image's daemon as the first process of a container: signals, logs, ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.daemon.servers import DRAIN_SECONDS
from tests.e2e.containers import images
from tests.e2e.containers.rig import (
    SOCKETS,
    UNPRIVILEGED,
    USER,
    Container,
    container,
    daemon,
    network,
    running,
    starting,
)
from tests.support.daemons import PATIENCE, eventually
from tests.support.tiny import affinityd

APART = ("--pid=private",)
JSON = ("--machine=mi250x", "--log-format=json")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Run a daemon as the first process of a container, as a pod does that shares no pids."""
    folder = tmp_path_factory.mktemp("first")
    with daemon(folder, *JSON, options=APART) as started:
        yield started


@contextmanager
def beginning(folder: Path) -> Iterator[Container]:
    """Start such a daemon, from its first moment as affinityd on."""
    (folder / "run").mkdir()
    os.chown(folder / "run", USER, USER)
    options = [*UNPRIVILEGED, f"--volume={folder}/run:{SOCKETS}"]
    with starting(folder, images.affinityd(), "serve", *JSON, options=options) as started:
        eventually(lambda: holds_signals(started), "Python has started")
        yield started


def holds_signals(started: Container) -> bool:
    """Whether it is affinityd and lets signals wait, proc_pid_status(5)."""
    try:
        status = Path(f"/proc/{started.pid}/status").read_text()
    except (OSError, ValueError):  # the file of its pid is not there, or empty
        return False
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    return "Name:\taffinityd" in status and bool(blocked >> (signal.SIGHUP - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seconds", [0, 0.1, 0.4])
def test_a_signal_ends_it_from_its_first_moments_on(
    tmp_path: Path, seconds: float, number: int
) -> None:
    """The kernel drops what the first process of a pid namespace has no handler for."""
    with beginning(tmp_path) as started:
        time.sleep(seconds)
        started.signal(number)
        assert started.process.wait(PATIENCE) == 0
        assert started.complaints == []


def test_a_hangup_in_its_first_moments_is_no_end(tmp_path: Path) -> None:
    with beginning(tmp_path) as started:
        started.signal(signal.SIGHUP)
        eventually(lambda: "GPUs" in started.log.read_text(), "it has read the machine")
        assert started.process.poll() is None


def test_a_hangup_has_it_read_the_machine_anew(first: Container) -> None:
    first.signal(signal.SIGHUP)
    eventually(lambda: "read anew" in first.lines[-1], "it has read the machine again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_never_ends_a_request_delays_its_end_by_the_drain_time_at_most(
    tmp_path: Path, number: int
) -> None:
    with daemon(tmp_path, *JSON, options=APART) as started:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(os.fspath(started.socket))
            asking.sendall(b"GET /plan HTTP/1.1\r\n")
            began = time.monotonic()
            started.signal(number)
            assert started.process.wait(PATIENCE) == 0
            assert time.monotonic() - began < DRAIN_SECONDS + PATIENCE
        assert not started.socket.exists()
        assert json.loads(started.socket.with_name("node.json").read_text())


def test_it_logs_one_json_object_a_line_and_nothing_else(first: Container) -> None:
    first.get("/plan?gpu=0")
    with socket.socket(socket.AF_UNIX) as talking:
        talking.connect(os.fspath(first.socket))
        talking.sendall(b"no HTTP\r\n\r\n")
        talking.recv(1000)
    told = [json.loads(line) for line in first.lines]
    assert len(told) > 1
    for line in told:
        assert {"time", "level", "logger", "message"} <= line.keys()
    assert first.complaints == []


def test_why_it_cannot_start_is_one_line_on_stderr() -> None:
    said = container(images.affinityd(), "serve", "--listen=nowhere")
    assert (said.status, said.stdout) == (2, "")
    assert said.stderr.startswith("affinityd serve: --listen: 'nowhere' is not HOST:PORT")
    assert said.stderr.count("\n") == 1


def test_without_a_folder_for_its_socket_it_serves_all_the_same(tmp_path: Path) -> None:
    """`podman run IMAGE`, to try it: the folder is the image's own."""
    with running(tmp_path, images.affinityd(), "serve", "--machine=dgx-a100") as started:
        asked = ["wget", "-qO-", "http://127.0.0.1:9465/plan?gpus=0&format=cpulist"]
        client = images.client("busybox")

        def answers() -> bool:
            said = container(client, *asked, options=network(started))
            return said.stdout == "48-55,176-183\n"

        eventually(answers, "it answers over TCP")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_metrics_are_answered_over_tcp(first: Container, path: str) -> None:
    asked = ["wget", "-qO-", f"http://127.0.0.1:9465{path}"]
    said = container(images.client("busybox"), *asked, options=network(first))
    assert (said.status, said.stderr) == (0, "")


def test_its_own_sysfs_shows_it_the_node_without_a_host_path() -> None:
    """All but the names of interfaces: those are its network namespace's."""
    show = ("topology", "--format=json")
    inside = container(images.affinityd(), *show, options=["--uts=host", *UNPRIVILEGED])
    found, here = (json.loads(said.stdout) for said in (inside, affinityd(*show)))
    for nic in (*found["nics"], *here["nics"]):
        nic["names"] = None
    assert found == here
    assert here["cores"]


def test_it_is_nobody_and_may_do_nothing_special(first: Container) -> None:
    status = Path(f"/proc/{first.pid}/status").read_text().splitlines()
    facts = {name: rest.split() for name, _, rest in (line.partition(":") for line in status)}
    assert set(facts["Uid"]) == {f"{USER}"}
    assert {int(facts[kind][0], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {0}
