"""The daemon as a process, beside its peer: its start, and its memory after some thousand plans.

python -m bench.process [--rounds N]
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen

from bench.connections import Crowd, get, is_ok
from bench.daemon import PEER, live, peer, peer_command, resident
from bench.ratio import Ratio
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

HEALTH = get("/healthz")
LOAD = 4000  #: requests before memory is read


def starts(rounds: int) -> list[float]:
    """Return the time from the start of a process to its first answer, by the peer's."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        tree, ours, other = Path(name, "tree"), Path(name, "ours"), Path(name, "peer")
        write_tree(machine("dgx-a100"), tree)
        words = f"serve --root {tree} --listen none --socket {ours}".split()
        daemon = [sys.executable, "-m", "affinityd", *words]
        return [
            _first_answer(daemon, ours) / _first_answer(peer_command(other, 2), other)
            for _ in range(rounds)
        ]


def _first_answer(command: Sequence[str], path: Path) -> float:
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    with Popen(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        while not _answers(path):
            assert process.poll() is None, command
            time.sleep(0.001)
        seconds = time.perf_counter() - began
        process.terminate()
    return seconds


def _answers(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(HEALTH)
        return connection.recv(4096).startswith(b"HTTP/1.1 200")
    return False


def memory() -> float:
    """Return the resident memory of the daemon's process, by the peer's."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        path = Path(name, "peer")
        with live(Path(name, "live")) as daemon, peer(path, 2) as other:
            for socket_ in (str(daemon.socket), str(path)):
                with closing(Crowd(socket_, 16)) as crowd:
                    crowd.ask((HEALTH, is_ok) for _ in range(LOAD))
            return resident(daemon.process.pid) / resident(other.pid)


def measure(rounds: int = 15) -> tuple[Ratio, ...]:
    """Return both."""
    return (
        Ratio("start to the first answer", PEER, "≤ 1.15", starts(rounds)),
        Ratio("memory after load", PEER, "≤ 1.2", [memory()]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    for ratio in measure(parser.parse_args().rounds):
        print(ratio)


if __name__ == "__main__":
    main()
