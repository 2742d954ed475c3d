"""`affinityd top` in a pseudo-terminal, beside a daemon that ends meanwhile."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemons import PATIENCE, running
from tests.support.tiny import tiny_tree


class Terminal:
    """A pseudo-terminal with a program, and what that has written."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor, self.process, self.text = descriptor, process, ""
        os.set_blocking(descriptor, False)

    def wait_for(self, part: str) -> None:
        """Wait until it has written this, since it was last waited for."""
        end = time.monotonic() + PATIENCE
        while part not in self.text:
            assert time.monotonic() < end, f"{part!r} is not in {self.text!r}"
            time.sleep(0.05)
            try:
                data = os.read(self._descriptor, 65536)
            except BlockingIOError:
                continue
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\(B", " ", data.decode())
        self.text = ""

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())


@contextmanager
def top(*words: str, **env: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "affinityd", "top", *words]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "LINES": "40", "COLUMNS": "160", **env},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


def test_the_screen_goes_on_beside_a_daemon_that_hangs_and_one_that_is_gone(tmp_path: Path) -> None:
    with running(tmp_path, "--root", str(tiny_tree(tmp_path / "machine"))) as daemon:
        socket = str(daemon.socket)
        with top("--socket", socket) as terminal:
            # A replayed machine is never scanned.
            terminal.wait_for("No scan")
            terminal.press("s")
            terminal.wait_for("waits")
            terminal.press("/x\x7fb\n")
            terminal.wait_for("b_")
            daemon.process.send_signal(signal.SIGSTOP)
            terminal.wait_for("did not answer in time")
            daemon.process.send_signal(signal.SIGCONT)
            terminal.press("q")
            assert terminal.process.wait(PATIENCE) == 0


def test_without_a_terminal_it_prints_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "affinityd", "top"],
        env={**os.environ, "AFFINITYD_SOCKET": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no daemon: by its own scan, scanned 0 s ago" in done.stdout
