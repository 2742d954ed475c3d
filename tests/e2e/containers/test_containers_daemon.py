"""The image's daemon as the first process of a container: signals, logs, ports, its node."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

from tests.e2e.containers import images
from tests.e2e.containers.rig import (
    SOCKETS,
    UNPRIVILEGED,
    USER,
    Container,
    container,
    curl,
    daemon,
    running,
    starting,
)
from tests.support.daemons import PATIENCE, eventually
from tests.support.tiny import affinityd

JSON = ("--machine=mi250x", "--log-format=json")


def holds_signals(started: Container) -> bool:
    """Whether it is affinityd and lets signals wait, proc_pid_status(5)."""
    try:
        status = Path(f"/proc/{started.pid}/status").read_text()
    except (OSError, ValueError):  # the file of its pid is not there, or empty
        return False
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    return "Name:\taffinityd" in status and bool(blocked >> (signal.SIGHUP - 1) & 1)


def test_a_signal_ends_it_from_its_first_moments_on(tmp_path: Path) -> None:
    """The kernel drops what the first process of a pid namespace has no handler for."""
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", USER, USER)
    options = [*UNPRIVILEGED, f"--volume={tmp_path}/run:{SOCKETS}"]
    with starting(tmp_path, images.affinityd(), "serve", *JSON, options=options) as started:
        eventually(lambda: holds_signals(started), "Python has started")
        started.signal(signal.SIGTERM)
        assert started.process.wait(PATIENCE) == 0
        assert started.complaints == []


def test_it_logs_one_json_object_a_line_and_reads_the_machine_anew_when_told(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path, *JSON, options=["--pid=private"]) as started:
        started.get("/plan?gpu=0")
        with socket.socket(socket.AF_UNIX) as talking:
            talking.connect(os.fspath(started.socket))
            talking.sendall(b"no HTTP\r\n\r\n")
            talking.recv(1000)
        started.signal(signal.SIGHUP)
        eventually(lambda: "read again" in started.lines[-1], "it has read the machine again")
        told = [json.loads(line) for line in started.lines]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in told)
        assert started.complaints == []


def test_without_a_folder_for_its_socket_it_serves_all_the_same(tmp_path: Path) -> None:
    """`podman run IMAGE`, to try it: the folder is the image's own."""
    with running(tmp_path, images.affinityd(), "serve", "--machine=dgx-a100") as started:
        url = "http://127.0.0.1:9465/plan?gpus=0&format=cpulist"
        eventually(lambda: curl(started.pid, url).stdout == "48-55,176-183\n", "it answers")


def test_its_own_sysfs_shows_it_the_node_without_a_host_path() -> None:
    """All but the names of interfaces: those are its network namespace's."""
    show = ("topology", "--format=json")
    inside = container(images.affinityd(), *show, options=["--uts=host", *UNPRIVILEGED])
    found, here = (json.loads(said.stdout) for said in (inside, affinityd(*show)))
    for nic in (*found["nics"], *here["nics"]):
        nic["names"] = None
    assert found == here
    assert here["cores"]
