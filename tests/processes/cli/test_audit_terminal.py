"""`affinityd audit` in a process of its own: on a terminal, into a pipe, interrupted, as nobody."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.children import sleeping
from tests.support.paths import REPOSITORY
from tests.support.small_node import FAR, TOPOLOGY, publish, use_small_node

#: The command, in a process of its own, with holders that are known.
COMMAND = """
import os, sys
from affinityd.cli import entry
from affinityd.cli.commands import audit
from tests.support.audit_facts import Known
pid = int(sys.argv.pop())
audit.HolderSources = lambda _ask: Known(pid)
"""

#: A script ignores SIGINT for `&`, and what it starts inherits that.
INTERRUPTIBLE = ("env", "--default-signal=INT")


@pytest.fixture
def pid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    """Run a process far from its GPU on a node that a daemon has published."""
    use_small_node(monkeypatch, tmp_path)
    monkeypatch.delenv("AFFINITYD_ROOT")
    publish(tmp_path, TOPOLOGY)
    monkeypatch.setenv("PYTHONPATH", os.fspath(REPOSITORY))
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        yield child.pid


def command(pid: int, *flags: str, code: str = "") -> list[str]:
    program = f"{COMMAND}{code}entry()"
    return [*INTERRUPTIBLE, sys.executable, "-c", program, "audit", *flags, str(pid)]


@contextmanager
def started(pid: int, *flags: str, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """Run the command, in a process of its own, until the end of the block."""
    # What says how large a terminal is counts before what it is; readline(3) may have said it.
    env = {name: it for name, it in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        command(pid, *flags), env=env, text=True, stderr=subprocess.PIPE, stdout=stdout
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_watch_writes_a_document_a_line_until_it_is_interrupted(pid: int) -> None:
    with started(pid, "--json", "--watch", "0.1", stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        told = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate()
    assert (watching.returncode, complaint) == (130, "")
    assert len({document["time"] for document in told}) == 3
    assert {document["processes"][0]["pid"] for document in told} == {pid}


@pytest.mark.parametrize(
    ("height", "width", "shown"), [(24, 1000, b"remote time"), (2, 14, b"\nand 3 lines mo\x1b[K")]
)
def test_on_a_terminal_a_watch_draws_over_what_it_drew_as_much_as_fits(
    pid: int, height: int, width: int, shown: bytes
) -> None:
    controlling, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
    with started(pid, "--watch", "0.1", stdout=terminal) as watching:
        os.close(terminal)
        seen = b""
        while b"\x1b[J\x1b[H" not in seen or shown not in seen.partition(b"\x1b[J\x1b[H")[2]:
            seen += os.read(controlling, 4096)
            assert len(seen) < 5000
        watching.send_signal(signal.SIGINT)
        os.close(controlling)
        watching.wait()
    assert seen.startswith(b"\x1b[H")
    assert b"\x1b[K" in seen


@pytest.mark.parametrize("flags", ["", "--watch 0.1", "--json"])
def test_a_reader_that_has_seen_enough_does_not_change_what_was_found(pid: int, flags: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with started(pid, *flags.split(), stdout=writing) as ending:
        os.close(writing)
        _, complaint = ending.communicate()
    assert (ending.returncode, complaint) == (1, "")
