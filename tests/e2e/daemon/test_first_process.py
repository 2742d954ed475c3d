"""The daemon's signals from its very start, and as a container's first process: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE, Daemon, eventually, is_ready, spawn

#: Makes the daemon pid 1 of a pid namespace of its own; without privileges, in a user namespace.
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
FIRST = ALONE if os.geteuid() == 0 else (*ALONE, "--map-root-user")
MAY_BE_FIRST = subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode == 0

first = pytest.param(
    FIRST,
    id="as pid 1",
    marks=pytest.mark.skipif(not MAY_BE_FIRST, reason="no pid namespaces here"),
)
started = pytest.mark.parametrize("before", [pytest.param((), id="as any process"), first])


def children(pid: int) -> list[int]:
    """Return the children of a process with one thread, proc_pid_task(5)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def starting(folder: Path, before: Sequence[str], *arguments: str) -> Iterator[tuple[Daemon, int]]:
    """Start a daemon; its pid is another one's where something went before."""
    daemon = spawn(folder, *(arguments or ("--machine", "mi250x")), before=before)
    try:
        if before:
            eventually(lambda: children(daemon.process.pid), "it has started")
        yield daemon, (children(daemon.process.pid)[0] if before else daemon.process.pid)
    finally:
        daemon.process.kill()
        daemon.process.wait()


def holds_signals(pid: int) -> bool:
    """Whether a process lets SIGHUP wait, proc_pid_status(5): Python takes some ms to start."""
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    return bool(blocked >> (signal.SIGHUP - 1) & 1)


@started
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seconds", [0, 0.2, 0.5])
def test_a_signal_that_comes_early_ends_it_well(
    tmp_path: Path, before: Sequence[str], number: int, seconds: float
) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        eventually(lambda: holds_signals(pid), "Python has started")
        time.sleep(seconds)
        os.kill(pid, number)
        assert daemon.process.wait(PATIENCE) == 0
        assert not daemon.socket.exists()
        assert daemon.complaints == []


@started
def test_a_hangup_that_comes_early_is_no_end(tmp_path: Path, before: Sequence[str]) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        eventually(lambda: holds_signals(pid), "Python has started")
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        os.kill(pid, signal.SIGTERM)
        assert daemon.process.wait(PATIENCE) == 0


@started
def test_a_daemon_that_runs_is_ended_by_a_signal(tmp_path: Path, before: Sequence[str]) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGTERM)
        assert daemon.process.wait(PATIENCE) == 0
        assert not daemon.socket.exists()


def test_hangups_without_end_do_not_change_how_it_ends(tmp_path: Path) -> None:
    with starting(tmp_path, ()) as (daemon, _):
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        daemon.signal(signal.SIGTERM)
        began = time.monotonic()
        while daemon.process.poll() is None and time.monotonic() < began + PATIENCE:
            daemon.signal(signal.SIGHUP)
        assert daemon.process.wait(0) == 0


#: The daemon on a machine that breaks what is promised, or whose scans hang.
DAEMON = """
import threading
from affinityd import machines
from affinityd.config import settings
from affinityd.daemon import main as daemon
from affinityd.daemon.state import scanner

scanner.HUNG_SECONDS = 0.5

class Broken:
    def drivers(self):
        raise OSError("a\\nb")

class Whole:
    def query_drivers(self): pass
    def read(self): return machines.load("mi250x")
    def online(self): return None
    def drivers(self): return None
    def lacks_nvml(self): return False

def hang(topology):
    threading.Event().wait()

daemon.run(settings.load({"listen": "none", "log_format": "json"}), {machine}(), hang)
"""


def ended(folder: Path, machine: str) -> dict[str, str]:
    """Return the last line of the log of a daemon that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-c", DAEMON.replace("{machine}", machine)],
        env={**os.environ, "AFFINITYD_SOCKET": str(folder / "affinityd.sock")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert not (folder / "affinityd.sock").exists()
    line: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert line["level"] == "critical"
    return line


def test_an_unexpected_error_ends_it_and_is_one_line_of_the_log(tmp_path: Path) -> None:
    line = ended(tmp_path, "Broken")
    assert line["message"] == "this is a bug"
    assert line["exception"].endswith("OSError: a\nb")


def test_a_scan_whose_thread_hangs_ends_it_with_one_line(tmp_path: Path) -> None:
    line = ended(tmp_path, "Whole")
    assert line["message"] == (
        "a scan of the processes has hung for 0.5 s: the daemon ends, to be started again"
    )
    assert "exception" not in line
