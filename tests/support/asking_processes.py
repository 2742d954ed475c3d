"""Processes that are connected to a socket of ours, and do as they are told."""

import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.children import program

#: Connects, and executes the lines that it is told.
CONNECTED = """
import os, socket, sys
kept = socket.socket(socket.AF_UNIX)
kept.connect(sys.argv[1])
print('ready', flush=True)
for line in sys.stdin:
    exec(line)
"""


@dataclass(frozen=True)
class Asker:
    process: subprocess.Popen[str]

    def do(self, code: str) -> str:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"exec({code!r})\n")
        stdin.flush()
        return stdout.readline().rstrip("\n")

    def enter(self, folder: Path) -> None:
        (folder / "cgroup.procs").write_text(str(self.process.pid))


@contextmanager
def connected(before: Sequence[str] = ()) -> Iterator[tuple[Asker, socket.socket]]:
    """Run such a process, by way of a command `before` its own; yield our end, too."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder, "s")
        listener.bind(str(path))
        listener.listen()
        for it in (path.parent, path):
            it.chmod(0o777)
        with (
            program(CONNECTED, str(path), before=before) as process,
            listener.accept()[0] as accepted,
        ):
            yield Asker(process), accepted
