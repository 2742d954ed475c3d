"""Processes that ask a daemon as they are told, over connections that they keep."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.children import program
from tests.support.daemons import Reply

#: Executes the lines that it is told; `kept` is its connection.
ASKER = """
import os, socket, sys
path = sys.argv[1]
def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection
def ask(connection, target):
    connection.sendall(f'GET {target} HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n'.encode())
    with connection.makefile('rb') as answer:
        status = answer.readline().split()[1].decode()
        fields = dict(line.lower().split(b': ', 1) for line in iter(answer.readline, b'\\r\\n'))
        return status + ' ' + answer.read(int(fields[b'content-length'])).decode().strip()
kept = connect()
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

    def reply(self, code: str) -> Reply:
        status, _, text = self.do(code).partition(" ")
        return Reply(int(status), {}, text.encode())

    def ask(self, target: str) -> Reply:
        return self.reply(f"print(ask(kept, {target!r}), flush=True)")

    def allowed(self, query: str) -> Any:  # noqa: ANN401 - a part of a document
        reply = self.ask(f"/plan?{query}")
        assert reply.status == 200, reply.text
        return reply.json["allowed"]

    def enter(self, folder: Path) -> None:
        (folder / "cgroup.procs").write_text(str(self.process.pid))


@contextmanager
def asking(
    path: Path, *, within: Path | None = None, before: Sequence[str] = ()
) -> Iterator[Asker]:
    """Run such a process, in a cgroup, by way of a command `before` its own."""
    enter = ("sh", "-c", 'echo $$ >"$0"/cgroup.procs; exec "$@"', str(within)) if within else ()
    with program(ASKER, str(path), before=(*enter, *before)) as process:
        yield Asker(process)


@contextmanager
def connected(before: Sequence[str] = ()) -> Iterator[tuple[Asker, socket.socket]]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder, "s")
        listener.bind(str(path))
        listener.listen()
        for it in (path.parent, path):
            it.chmod(0o777)
        with asking(path, before=before) as asker, listener.accept()[0] as accepted:
            yield asker, accepted


def as_user(uid: int, *groups: int) -> tuple[str, ...]:
    its = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", its)
