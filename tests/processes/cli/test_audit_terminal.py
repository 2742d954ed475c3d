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

from affinityd.cli.commands import audit
from tests.support.children import sleeping
from tests.support.paths import REPOSITORY
from tests.support.small_node import FAR, TOPOLOGY, publish, use_small_node

#: The command, in a process of its own, with holders that are known.
COMMAND = """
import sys
from affinityd.cli import entry
from affinityd.cli.commands import audit
from tests.support.audit_facts import Known
pid = int(sys.argv.pop())
audit.HolderSources = lambda _ask: Known(pid)
entry()
"""

#: A script ignores SIGINT for `&`, and what it starts inherits that.
INTERRUPTIBLE = ("env", "--default-signal=INT")


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)
    monkeypatch.delenv("AFFINITYD_ROOT")
    publish(tmp_path, TOPOLOGY)


@contextmanager
def started(*flags: str, pid: int, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """Run the command, in a process of its own, until the end of the block."""
    # What says how large a terminal is counts before what it is.
    environ = {name: it for name, it in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-c", COMMAND, "audit", *flags, str(pid)],
        env={**environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        text=True,
        stderr=subprocess.PIPE,
        stdout=stdout,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_watch_writes_a_document_a_line_until_it_is_interrupted() -> None:
    with sleeping() as child:
        flags = ("--json", "--watch", "0.1")
        with started(*flags, pid=child.pid, stdout=subprocess.PIPE) as watching:
            assert watching.stdout is not None
            told = [json.loads(watching.stdout.readline()) for _ in range(3)]
            watching.send_signal(signal.SIGINT)
            watching.stdout.read()
            assert watching.wait(30) == 130
            assert watching.stderr is not None
            assert watching.stderr.read() == ""
    assert len({document["time"] for document in told}) == 3
    assert {document["processes"][0]["pid"] for document in told} == {child.pid}


@pytest.mark.parametrize(
    ("height", "shown"), [(24, b"remote time"), (2, b"lines more, in a larger window")]
)
def test_on_a_terminal_a_watch_draws_over_what_it_drew(height: int, shown: bytes) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        controlling, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", height, 1000, 0, 0))
        with started("--watch", "0.1", pid=child.pid, stdout=terminal) as watching:
            os.close(terminal)
            seen = b"".join(_read(controlling, until=b"\x1b[J\x1b[H"))
            seen += b"".join(_read(controlling, until=shown))
            watching.send_signal(signal.SIGINT)
            os.close(controlling)
            watching.wait(30)
    assert seen.startswith(b"\x1b[H")
    assert b"\x1b[K" in seen


@pytest.mark.parametrize(
    ("lines", "height", "drawn"),
    [
        pytest.param(["ab", "abcdefg"], 3, ["ab", "abcdef"], id="as wide as the window"),
        pytest.param(["1", "2", "3"], 3, ["1", "2", "3"], id="as high"),
        pytest.param(["1", "2", "3", "4"], 3, ["1", "2", "and 2"], id="higher"),
    ],
)
def test_of_what_is_drawn_again_and_again_as_much_is_shown_as_fits(
    lines: list[str], height: int, drawn: list[str]
) -> None:
    assert [line.rstrip() for line in audit._cut(lines, 6, height)] == drawn
    assert audit._cut(list("1234"), 80, 3)[-1] == "and 2 lines more, in a larger window"


@pytest.mark.parametrize("flags", [(), ("--watch", "0.1"), ("--json",), ("--memory",)])
def test_where_nobody_is_written_to_what_was_found_is_told_all_the_same(
    flags: tuple[str, ...],
) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        arguments = [sys.executable, "-c", COMMAND, "audit", *flags, str(child.pid)]
        with subprocess.Popen(
            ["sh", "-c", 'exec "$@" >&-', "sh", *INTERRUPTIBLE, *arguments],
            env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
            text=True,
            stderr=subprocess.PIPE,
        ) as closed:
            if "--watch" in flags:
                with pytest.raises(subprocess.TimeoutExpired):
                    closed.wait(2)
                closed.send_signal(signal.SIGINT)
            _, complaint = closed.communicate(timeout=30)
    assert (closed.returncode, complaint) == (130 if "--watch" in flags else 1, "")


def _read(file: int, until: bytes) -> Iterator[bytes]:
    data = b""
    while until not in data:
        data += os.read(file, 4096)
        assert len(data) < 100_000
    yield data


def test_a_reader_that_has_seen_enough_does_not_change_what_was_found() -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        for flags in ((), ("--watch", "0.1"), ("--json",)):
            reading, writing = os.pipe()
            os.close(reading)
            with started(*flags, pid=child.pid, stdout=writing) as watching:
                os.close(writing)
                assert watching.wait(30) == 1
                assert watching.stderr is not None
                assert watching.stderr.read() == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_who_is_not_root_sees_what_can_be_seen() -> None:
    """The node is read as root, from a folder of root's; then everything else as nobody."""
    become = """
import os
def held(self, topology, known=Known.held):
    os.setgid(65534)
    os.setuid(65534)
    return known(self, topology)
Known.held = held
entry()
"""
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        done = subprocess.run(
            [
                *(sys.executable, "-c", COMMAND.replace("entry()\n", become)),
                *("audit", "--memory", str(child.pid)),
            ],
            env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")
    assert "remote" in done.stdout.splitlines()[1]
    assert done.stdout.splitlines()[-1].endswith("its memory was not read: Permission denied")
