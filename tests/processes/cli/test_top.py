"""`affinityd top` in a pseudo-terminal, beside daemons that hang, end and are replaced."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socketserver
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.json_codec import dumps
from affinityd.machines import load
from tests.support.daemons import PATIENCE, running
from tests.support.node_states import audit, several, with_gpus
from tests.support.tiny import tiny_tree


class Terminal:
    """A pseudo-terminal with a program, and what that has written."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor, self.process = descriptor, process
        self.text = self.seen = ""  # since it was last waited for; since the start
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
            text = data.decode(errors="replace")
            self.seen += text
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\(B", " ", text)
        self.text = self.text.partition(part)[2]

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def resize(self, height: int, width: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)
        self.process.send_signal(signal.SIGWINCH)


@contextmanager
def top(*words: str, size: tuple[int, int] = (40, 160)) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    command = [sys.executable, "-m", "affinityd", "top", *words]
    sizes = {"LINES", "COLUMNS"}  # which would count more than the terminal's
    env = {name: it for name, it in os.environ.items() if name not in sizes} | {"TERM": "xterm"}
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
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
            terminal.press("/x\x7fb")
            terminal.wait_for("b_")
            terminal.press("\n")
            daemon.process.send_signal(signal.SIGSTOP)
            terminal.wait_for("did not answer in time")
            daemon.process.send_signal(signal.SIGCONT)
            terminal.press("q")
            assert terminal.process.wait(PATIENCE) == 0


HOSTILE = "\x1b]0;owned\x07\x9b2J\n\u202e\u6f22\u5b57"


@contextmanager
def answering(socket: Path, gpus: int, processes: int) -> Iterator[None]:
    """Answer everything with a scan of so many GPUs and processes with a hostile name."""
    document = audit(with_gpus(load("dgx-a100"), gpus), several(processes, gpus), age=0)
    named = [replace(it, name=f"{HOSTILE}{it.name}") for it in document.processes or ()]
    body = dumps(replace(document, node=f"{gpus} GPUs {HOSTILE}", processes=named)).encode()

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    with socketserver.ThreadingUnixStreamServer(os.fspath(socket), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            socket.unlink()


@pytest.mark.parametrize(
    ("size", "gpus", "processes", "parts"),
    [
        ((24, 80), 64, 3000, ["64 GPUs \\x1b]0;owned", "is used from", "lines more below"]),
        ((40, 160), 8, 3000, ["8 GPUs \\x1b]0;owned", "alike", "lines more below"]),
        ((24, 80), 4, 0, ["no process uses a GPU"]),
        ((5, 20), 0, 0, ["there is no GPU"]),
        ((1, 1), 8, 30, []),
    ],
)
def test_it_fits_any_terminal_and_a_name_does_not_act(
    size: tuple[int, int], gpus: int, processes: int, parts: list[str], tmp_path: Path
) -> None:
    with (
        answering(tmp_path / "s", gpus, processes),
        top("--socket", str(tmp_path / "s"), size=size) as terminal,
    ):
        for part in parts:
            terminal.wait_for(part)
        assert not {"\x1b]", "\x9b", "\u202e"} & {*re.findall("\x1b.|.", terminal.seen)}
        for other in ((1, 1), (5, 20), (50, 200)):
            terminal.resize(*other)
        terminal.wait_for("filter none   g GPU all")
        terminal.press("q")
        assert terminal.process.wait(PATIENCE) == 0


def test_it_scrolls_and_shows_a_gpu_alone_and_goes_on_with_the_next_daemon(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    with top("--socket", str(socket), size=(24, 80)) as terminal:
        terminal.wait_for("no daemon")
        with answering(socket, 64, 3000):
            terminal.wait_for("64 GPUs")
            terminal.press("\x1bOB" * 200)
            terminal.wait_for("alike")
            terminal.press("\x1bOA" * 200 + "gg")
            terminal.wait_for("orphan")
        with answering(socket, 1, 0):
            terminal.wait_for("no process uses a GPU")
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
    assert "no daemon: by its own scan, scanned " in done.stdout
