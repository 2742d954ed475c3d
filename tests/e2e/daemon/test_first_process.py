"""The daemon's signals from its very start, and as a container's first process: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.children import children_of
from tests.support.daemons import PATIENCE, Daemon, eventually, is_ready, started

#: Makes the daemon pid 1 of a pid namespace of its own; without privileges, in a user namespace.
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
FIRST = ALONE if os.geteuid() == 0 else (*ALONE, "--map-root-user")
MAY_BE_FIRST = subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode == 0

needs_namespaces = pytest.mark.skipif(not MAY_BE_FIRST, reason="no pid namespaces here")
in_both_ways = pytest.mark.parametrize("before", [(), pytest.param(FIRST, marks=needs_namespaces)])


@contextmanager
def starting(folder: Path, before: Sequence[str]) -> Iterator[tuple[Daemon, int]]:
    """Start a daemon until Python has; its pid is another one's where something went before."""
    with started(folder, "--machine", "mi250x", before=before) as daemon:
        if before:
            eventually(lambda: children_of(daemon.process.pid), "it has started")
        pid = children_of(daemon.process.pid)[0] if before else daemon.process.pid
        eventually(lambda: holds_signals(pid), "Python has started")
        yield daemon, pid


def holds_signals(pid: int) -> bool:
    """Whether a process lets SIGHUP wait, proc_pid_status(5): Python takes some ms to start."""
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    return bool(blocked >> (signal.SIGHUP - 1) & 1)


@in_both_ways
@pytest.mark.parametrize(("number", "listens"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_signal_that_comes_early_ends_it_well(
    tmp_path: Path, before: Sequence[str], number: int, listens: bool
) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        eventually(lambda: not listens or daemon.socket.exists(), "it listens")
        os.kill(pid, number)
        assert daemon.process.wait(PATIENCE) == 0
        assert not daemon.socket.exists()
        assert daemon.complaints == []


@in_both_ways
def test_a_hangup_is_no_end_however_early_and_however_late_it_comes(
    tmp_path: Path, before: Sequence[str]
) -> None:
    with starting(tmp_path, before) as (daemon, pid):
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGTERM)
        while daemon.process.poll() is None:
            daemon.signal(signal.SIGHUP) if not before else daemon.process.wait(PATIENCE)
        assert daemon.process.wait(0) == 0
        assert not daemon.socket.exists()


#: The daemon on a machine that breaks what is promised.
BROKEN = """
from affinityd.config import settings
from affinityd.daemon import main as daemon

class Broken:
    def drivers(self):
        raise OSError("a\\nb")

daemon.run(settings.load({"listen": "none", "log_format": "json"}), Broken(), None)
"""


def test_a_bug_ends_it_and_is_one_line_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "affinityd.sock"
    done = subprocess.run(
        [sys.executable, "-c", BROKEN],
        env={**os.environ, "AFFINITYD_SOCKET": str(path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr, path.exists()) == (1, "", False)
    line: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert (line["level"], line["message"]) == ("critical", "this is a bug")
    assert line["exception"].endswith("OSError: a\nb")
