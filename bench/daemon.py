"""The daemon that is measured, and its peer; both answer over a unix socket.

`live` runs affinityd on this machine as if it were a DGX A100: the daemon's mount namespace has
another `/sys/devices/system`, and a real library answers for NVML. The daemon is not replayed, so
it finds out the mask and cgroup of each caller. Needs root and gcc.

The peer is FastAPI with a route that returns a constant, on uvicorn with its defaults:

    python -m bench.daemon SOCKET BYTES
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

from tests.support.daemons import Daemon, eventually
from tests.support.machines.facts import machine
from tests.support.made_nodes import DRIVER, running_on

GPUS = 8
PEER = "a FastAPI route that returns a constant"
READ = 1 << 18  #: bytes
SILENCE = 30.0  #: a burst fails after so many seconds without data


@contextmanager
def live(folder: Path, *arguments: str) -> Iterator[Daemon]:
    """Run the daemon, and yield it after its first plan."""
    dgx = machine("dgx-a100")
    lines = [f"driver {DRIVER}"]
    for number, gpu in enumerate(dgx.gpus):
        lines += ["gpu", f"uuid GPU-{number}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"]
        lines += [f"minor {number}", f"pci 0000{gpu.pci_bus_id.upper()}", "model NVIDIA A100"]
    folder.mkdir()
    with running_on(dgx, folder, "\n".join([*lines, ""]), *arguments) as daemon:
        assert daemon.plan("gpus=0&mode=node")["allowed"]["source"] == "caller"
        yield daemon


def peer_command(path: Path, size: int) -> list[str]:
    """Return the command that runs the peer, which answers `size` bytes to any path."""
    return [sys.executable, "-m", "bench.daemon", str(path), str(size)]


@contextmanager
def peer(path: Path, size: int) -> Iterator[Popen[bytes]]:
    """Run the peer, and yield it as soon as it listens."""
    with Popen(peer_command(path, size), stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            eventually(path.exists, "the peer listens")
            yield process
        finally:
            process.terminate()


def burst(path: Path, targets: Sequence[str]) -> tuple[float, list[bytes]]:
    """Send all requests at once, each over its own connection; all answers must be 200.

    Return the seconds from the first connect(2) to the last answer, and the bodies. One process
    asks, as cheaply as Python can: epoll(7) and raw bytes.
    """
    began = time.perf_counter()
    answers = [b""] * len(targets)
    waiting: dict[int, tuple[int, socket.socket]] = {}
    with select.epoll() as poll:
        for number, target in enumerate(targets):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
            connection.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            waiting[connection.fileno()] = number, connection
            poll.register(connection, select.EPOLLIN)
        while waiting:
            ready = poll.poll(SILENCE)
            assert ready, f"no data came for {SILENCE:.0f} s"
            for file, _ in ready:
                number, connection = waiting[file]
                data = connection.recv(READ)
                assert data, f"closed amid an answer: {answers[number][:200]!r}"
                answers[number] += data
                head, end, body = answers[number].partition(b"\r\n\r\n")
                if end and len(body) == int(head.split(b"content-length: ")[1].split(b"\r")[0]):
                    assert head.startswith(b"HTTP/1.1 200 "), answers[number]
                    answers[number] = body
                    del waiting[file]
                    connection.close()
    return time.perf_counter() - began, answers


if __name__ == "__main__":
    # Imported here: the measurements do not need them.
    import uvicorn
    from fastapi import FastAPI, Response

    app, content = FastAPI(), b"x" * int(sys.argv[2])

    @app.get("/{target:path}")
    async def constant(target: str) -> Response:  # noqa: ARG001 - the route's parameter
        return Response(content, media_type="application/json")

    uvicorn.run(app, uds=sys.argv[1], log_level="critical", access_log=False, backlog=2048)
