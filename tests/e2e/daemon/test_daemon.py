"""The daemon from start to end: readings, signals, exit. Real processes, real sockets."""

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

from affinityd.cpuset import parse_list
from affinityd.topology.document import read_node
from tests.support.children import children_of
from tests.support.daemons import (
    PATIENCE,
    Daemon,
    eventually,
    is_ready,
    refused,
    running,
    spawn,
    started,
)
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.paths import REPOSITORY
from tests.support.tiny import Ended, ran

ONLINE = "sys/devices/system/cpu/online"
GPU = "sys/bus/pci/devices/0000:07:00.0"
FEWER = "0-47,50-255"


def next_state(manager: socket.socket) -> bytes:
    while (state := manager.recv(4096)) == b"WATCHDOG=1":
        pass
    return state


def test_a_daemon_from_start_to_end(tmp_path: Path) -> None:
    """The service's manager is notified. The socket is open to all, whatever the umask."""
    folder = tmp_path / "run"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(os.fspath(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        environment = {
            "NOTIFY_SOCKET": os.fspath(tmp_path / "notify"),
            "AFFINITYD_SOCKET": os.fspath(folder / "s"),
        }
        before = os.umask(0o077)
        arguments = ("--machine", "mi250x", "--reserved-cpus", "0-127", "--node-name", "gpu07")
        try:
            daemon = spawn(tmp_path, *arguments, "--log-format", "json", env=environment)
        finally:
            os.umask(before)
        assert next_state(manager).startswith(b"READY=1\nSTATUS=mi250x: 128 CPUs")
        modes = [stat.S_IMODE(it.stat().st_mode) for it in (folder, daemon.socket)]
        assert modes == [0o755, 0o666]
        assert stat.S_IMODE((folder / "node.json").stat().st_mode) == 0o644
        assert daemon.get("/readyz").text == "ready: mi250x\n"  # a replayed machine keeps its name
        assert daemon.get("/plan?gpus=0").status == 409
        daemon.signal(signal.SIGTERM)
        assert next_state(manager) == b"STOPPING=1"
    assert daemon.process.wait(PATIENCE) == 0
    assert not daemon.socket.exists()
    left = read_node(folder / "node.json")
    assert (left.topology, left.reserved) == (machine("mi250x"), parse_list("0-127"))
    records = [json.loads(line) for line in daemon.lines]
    assert all({"time", "level", "logger", "message"} <= record.keys() for record in records)
    assert any("every online CPU is reserved" in record["message"] for record in records)
    assert daemon.complaints == []


def test_another_process_that_listens_is_named_and_not_disturbed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(os.fspath(tmp_path / "affinityd.sock"))
        stranger.listen()
        line = refused(tmp_path, "--machine", "dgx-h100")
        assert f"process {os.getpid()} listens there already" in line
        assert (tmp_path / "affinityd.sock").exists()


def test_changes_of_the_machine_are_published_and_logged(tmp_path: Path) -> None:
    """tests/e2e/faults checks that later answers use the changed machine."""
    tree = write_tree(machine("dgx-a100"), tmp_path / "root")
    with running(tmp_path, "--root", str(tree)) as daemon:
        eventually(daemon.socket.with_name("node.json").exists, "node.json is published")
        notices = daemon.says("warning:")
        assert notices
        (tree / ONLINE).write_text(f"{FEWER}\n")
        assert daemon.plan("gpus=0&mode=node")["cpulist"] == "50-63,176-191"
        eventually(lambda: daemon.says("(generation 2)"), "the log says so")
        eventually(lambda: daemon.node_file["topology"]["online"] == FEWER, "the file is published")
        (tree / GPU / "numa_node").write_text("5\n")
        assert daemon.plan("gpus=0")["ranks"][0]["home_node"] == 3
        driver = tree / "proc/driver/nvidia/version"
        driver.parent.mkdir(parents=True, exist_ok=True)
        driver.write_text("NVRM version: 999.99\n")
        eventually(lambda: daemon.plan("gpus=0")["generation"] == 3, "the driver is noticed")
        assert daemon.plan("gpus=0")["ranks"][0]["home_node"] == 5
        assert notices == daemon.says("warning:")


@pytest.mark.parametrize("is_link", [True, False])
def test_a_file_in_the_socket_s_place_is_not_removed(tmp_path: Path, is_link: bool) -> None:
    path, other = tmp_path / "precious", tmp_path / "other"
    other.write_text("data")
    path.symlink_to(other) if is_link else path.mkdir()
    before = path.lstat()
    line = refused(tmp_path, "--machine", "dgx-h100", "--socket", str(path))
    assert "exists and is not a socket" in line
    assert path.lstat() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--socket", "a" * 200], "AF_UNIX path too long; give another by --socket"),
        (["--listen", "a" * 300 + ":9558"], ":9558: not a host name"),
        (["--listen-plan", "192.0.2.1:9558"], "192.0.2.1:9558: Cannot assign requested address"),
        (["--root", "/nowhere"], "/nowhere"),
        (["--machine", ""], "--machine is empty; give it a value"),
        (["--sockets", "x"], "unrecognized arguments: --sockets x"),
    ],
)
def test_a_wrong_setting_is_an_error_of_one_line(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    assert line in refused(tmp_path, *arguments)
    assert not (tmp_path / "affinityd.sock").exists()


def test_serve_names_a_missing_extra_and_plan_works_without_the_extra(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)

    bare = (tmp_path / "bare/bin/python", "-m", "affinityd")
    env = {"PYTHONPATH": os.fspath(REPOSITORY), "PATH": os.environ["PATH"]}
    served = ran(*bare, "serve", f"--socket={tmp_path}/affinityd.sock", env=env)
    assert (served.status, served.stderr.count("\n")) == (1, 1)
    assert "install the package affinityd-daemon" in served.stderr
    asks = ("plan", "--machine", "dgx-a100", "--gpus", "0", "--format", "cpulist")
    assert ran(*bare, *asks, env=env) == Ended(0, "48-63,176-191\n", "")


def test_a_live_machine_has_the_given_name_and_scans_can_be_switched_off(tmp_path: Path) -> None:
    name, off = "gpu07.example.org", ("--scan-interval", "off")
    with running(tmp_path, *off, env={"AFFINITYD_NODE_NAME": name}) as daemon:
        assert daemon.get("/topology").json["topology"]["name"] == name
        assert daemon.node_file["topology"]["name"] == name
        assert daemon.get("/readyz").text == f"ready: {name}\n"
        reply = daemon.get("/audit", accept="text/plain")
        answer = "No scan: this daemon scans no processes: its scan interval is off\n"
        assert (reply.status, reply.text) == (503, answer)


# Signals reach the daemon from its very start, and also as a container's first process.

#: Makes the daemon pid 1 of a pid namespace of its own; without privileges, in a user namespace.
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
FIRST = ALONE if os.geteuid() == 0 else (*ALONE, "--map-root-user")
MAY_BE_FIRST = subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode == 0

needs_namespaces = pytest.mark.skipif(not MAY_BE_FIRST, reason="no pid namespaces here")
in_both_ways = pytest.mark.parametrize("before", [(), pytest.param(FIRST, marks=needs_namespaces)])


@contextmanager
def starting(folder: Path, before: Sequence[str]) -> Iterator[tuple[Daemon, int]]:
    """Start a daemon by the command `before`; yield the daemon and its pid once Python runs."""
    with started(folder, "--machine", "mi250x", before=before) as daemon:
        if before:
            eventually(lambda: children_of(daemon.process.pid), "it has started")
        pid = children_of(daemon.process.pid)[0] if before else daemon.process.pid
        eventually(lambda: holds_signals(pid), "Python has started")
        yield daemon, pid


def holds_signals(pid: int) -> bool:
    """Whether a process blocks SIGHUP, proc_pid_status(5): the daemon does so once Python runs."""
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    return bool(blocked >> (signal.SIGHUP - 1) & 1)


@in_both_ways
@pytest.mark.parametrize(("number", "listens"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_an_early_signal_ends_the_daemon(
    tmp_path: Path, before: Sequence[str], number: int, listens: bool
) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        eventually(lambda: not listens or daemon.socket.exists(), "it listens")
        os.kill(pid, number)
        assert daemon.process.wait(PATIENCE) == 0
        assert not daemon.socket.exists()
        assert daemon.complaints == []


def leave_unread(daemon: Daemon, further: int) -> socket.socket:
    """Send requests and read no answer until the connection is full; then send `further` more."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.fspath(daemon.socket))
    before = -1
    while further >= 0:
        unread = struct.unpack("i", ioctl(client, FIONREAD, bytes(4)))[0]
        further -= unread == before
        before = unread
        with suppress(BrokenPipeError):  # the daemon closed the unread connection
            client.sendall(b"GET /topology HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.1)  # an answer may come
    return client


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(os.fspath(path)) == 0


def test_the_daemon_ends_although_a_client_does_not_read_its_answers(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon, ExitStack() as clients:
        for further in range(0, 16, 3):
            clients.enter_context(leave_unread(daemon, further))
        for _ in range(2):
            daemon.signal(signal.SIGTERM)
            eventually(lambda: not listens(daemon.socket), "it has begun to end")
        assert daemon.process.wait(PATIENCE) == 0
        assert (daemon.says("error"), daemon.complaints) == ([], [])


@in_both_ways
def test_sighup_never_ends_the_daemon(tmp_path: Path, before: Sequence[str]) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGTERM)
        while daemon.process.poll() is None:
            daemon.signal(signal.SIGHUP) if not before else daemon.process.wait(PATIENCE)
        assert daemon.process.wait(0) == 0
        assert not daemon.socket.exists()
