"""The daemon as a process, beside its peer: its start, and its memory after some thousand plans."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen

from bench.daemon import PEER, burst, live, peer, peer_command
from bench.ratio import Ratio
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

SETTLED, LOAD = 2000, 8000  #: requests, of which no two are the same
AT_ONCE = 100
LONG = 30_000  #: characters of every hundredth request


def starts(rounds: int) -> list[float]:
    """Return the time from the start to the first answer, divided by the peer's."""
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
        while True:
            with suppress(OSError):
                burst(path, ["/healthz"])
                break
            assert process.poll() is None, command
            time.sleep(0.001)
        seconds = time.perf_counter() - began
        process.terminate()
    return seconds


def memory() -> tuple[float, float]:
    """Return the memory after LOAD, divided by the peer's, and by the daemon's after SETTLED."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        path = Path(name, "peer")
        with live(Path(name, "live")) as daemon, peer(path, 2) as other:
            settled = 0
            for first in range(0, LOAD, AT_ONCE):
                if first == SETTLED:
                    settled = _resident(daemon.process.pid)
                for asked in (daemon.socket, path):
                    burst(asked, [_question(first + number) for number in range(AT_ONCE)])
            ours = _resident(daemon.process.pid)
            return ours / _resident(other.pid), ours / settled


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def _question(number: int) -> str:
    odd = "y" * (LONG if number % AT_ONCE == 0 else 10)
    return f"/plan?gpus=all&mode=node&max_physical_cores={number + 1}&visible=0,1,x{odd}"


def measure(rounds: int = 15) -> tuple[Ratio, ...]:
    """Return the ratios of start and memory."""
    return (
        Ratio("start to the first answer", PEER, 1.15, starts(rounds)),
        Ratio("memory after load", PEER, 1.2, memory()[:1]),
    )
