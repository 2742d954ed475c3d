"""A port that leads to a unix socket, as `ssh -L` makes one."""

from __future__ import annotations

import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def forwarded(path: Path) -> Iterator[int]:
    """Forward a port of 127.0.0.1 to a socket, and return it."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
                daemon.connect(str(path))
                back = threading.Thread(target=copy, args=(daemon, self.request), daemon=True)
                back.start()
                copy(self.request, daemon)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError), source.makefile("rb", buffering=0) as data, to.makefile("wb", 0) as out:
        shutil.copyfileobj(data, out)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)
