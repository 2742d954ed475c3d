"""How many answers a second the daemon gives, beside a raw ASGI app on the same server.

Both are uvicorn on uvloop and httptools over a unix socket, the raw app on uvicorn as it comes. The
same client asks them in turn, pair by pair, over kept-open connections. The daemon reads a tree on
disk, so that every answer looks whether a CPU has come or gone. What counts is the ratio, not the
machine.

    python -m bench.answers [--pairs N] [--seconds S]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from affinityd.daemon.sockets import BACKLOG, listen_unix
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

QUERY = b"/plan?gpus=0,1&mode=unique_contiguous&share=requested"
CONNECTIONS = 8
BODY_BYTES = 1100  #: about what QUERY's answer has


def serve_raw(path: Path, size: int) -> None:
    """Answer so many bytes to anything."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % size)]
    body = b"x" * size

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
    )
    uvloop.run(uvicorn.Server(config).serve([listen_unix(path).socket]))


async def ask(path: str, seconds: float) -> float:
    """Return answers a second over CONNECTIONS connections, one question under way on each."""
    request = b"GET " + QUERY + b" HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n"
    end = time.perf_counter() + seconds

    async def one() -> int:
        reader, writer = await asyncio.open_unix_connection(path)
        answers = 0
        while time.perf_counter() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            answers += 1
        writer.close()
        return answers

    began = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return sum(counts) / (time.perf_counter() - began)


@contextlib.contextmanager
def running(command: list[str], path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until its socket is there, and end it afterwards."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not path.exists():
            assert process.poll() is None, command
            time.sleep(0.05)
        time.sleep(0.5)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def measure(pairs: int, seconds: float) -> float:
    """Return the median ratio, daemon by raw app."""
    with tempfile.TemporaryDirectory() as folder:
        raw, daemon = Path(folder, "raw.sock"), Path(folder, "affinityd.sock")
        tree = write_tree(machine("dgx-a100"), Path(folder, "root"))
        serve = [sys.executable, "-m", "affinityd", "serve", "--root", str(tree)]
        with (
            running(
                [sys.executable, "-m", "bench.answers", "--raw", str(raw), str(BODY_BYTES)], raw
            ),
            running([*serve, "--socket", str(daemon), "--listen", "none"], daemon),
        ):
            uvloop.run(ask(str(daemon), seconds))  # the first answer is computed, not remembered
            ratios = []
            for _ in range(pairs):
                answers = [uvloop.run(ask(str(path), seconds)) for path in (daemon, raw)]
                ratios.append(answers[0] / answers[1])
                print(f"daemon {answers[0]:.0f}/s  raw {answers[1]:.0f}/s  {ratios[-1]:.2f}")
    return median(ratios)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--raw", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.raw:
        serve_raw(Path(arguments.raw[0]), int(arguments.raw[1]))
    else:
        print(f"ratio {measure(arguments.pairs, arguments.seconds):.2f} (goal 0.8)")


if __name__ == "__main__":
    main()
