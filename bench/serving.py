"""What the daemon takes as a process, beside the smallest FastAPI app, in one run.

Until the first answer, from the start of the process; memory after some thousand answers; and how
often it wakes at rest, a minute: the voluntary context switches of its threads and children. The
daemon scans processes every 15 s meanwhile, as it does by default.

    python -m bench.serving [--rounds N] [--rest SECONDS]
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen

from bench.live import live, resident
from bench.many import Crowd, get, is_ok
from bench.ratio import Ratio
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

MINIMAL = Path(__file__).with_name("minimal.py")
HEALTH = get("/healthz")
LOAD = 4000  #: requests before memory is read
PEER = "the smallest FastAPI app"


def starts(rounds: int) -> Sequence[float]:
    """Return how long until a daemon's first answer, by the peer's."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        tree = write_tree(machine("dgx-a100"), Path(name, "root"))
        daemon = ("-m", "affinityd", "serve", "--root", str(tree), "--listen", "none", "--socket")
        return [
            _first_answer(daemon, Path(name, "a.sock"))
            / _first_answer([str(MINIMAL)], Path(name, "m.sock"))
            for _ in range(rounds)
        ]


def _first_answer(arguments: Sequence[str], path: Path) -> float:
    began = time.perf_counter()
    with serving(arguments, path):
        return time.perf_counter() - began


@contextmanager
def serving(arguments: Sequence[str], path: Path) -> Iterator[Popen[bytes]]:
    """Run a server from its first answer on; its last argument is the socket."""
    path.unlink(missing_ok=True)
    with Popen([sys.executable, *arguments, path], stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            while not _answers(path):
                assert process.poll() is None, arguments
                time.sleep(0.001)
            yield process
        finally:
            process.terminate()


def _answers(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(HEALTH)
        return connection.recv(4096).startswith(b"HTTP/1.1 200")
    return False


def at_rest(seconds: float) -> Mapping[str, tuple[float, float]]:
    """Return the memory in bytes, and wake-ups a minute, of the daemon and of the peer."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        path = Path(name, "m.sock")
        with live(Path(name, "live")) as daemon, serving([str(MINIMAL)], path) as peer:
            pids = {"daemon": daemon.process.pid, "peer": peer.pid}
            for own in (str(daemon.socket), str(path)):
                crowd = Crowd(own, 16)
                crowd.ask((HEALTH, is_ok) for _ in range(LOAD))
                crowd.close()
            time.sleep(5)  # what load left behind
            before = {name: wakeups(pid) for name, pid in pids.items()}
            time.sleep(seconds)
            return {
                name: (resident(pid), (wakeups(pid) - before[name]) * 60 / seconds)
                for name, pid in pids.items()
            }


def wakeups(pid: int) -> int:
    """Return how often threads of a process and its children went to sleep, proc_pid_status(5)."""
    own = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        own += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
        own += sum(wakeups(int(child)) for child in (task / "children").read_text().split())
    return own


def measure(rounds: int = 15, rest: float = 60) -> tuple[Ratio, ...]:
    """Return the daemon's start and memory by the peer's, and its wake-ups a minute."""
    found = at_rest(rest)
    (memory, awake), (peer_memory, peer_awake) = found["daemon"], found["peer"]
    print(f"wake-ups a minute: daemon {awake:.0f}, {PEER} {peer_awake:.0f}")
    return (
        Ratio("start to the first answer", PEER, "≤ 1.15", starts(rounds)),
        Ratio("memory after load", PEER, "≤ 1.2", [memory / peer_memory]),
        Ratio("wake-ups at rest", "one a second", "≤ 1", [awake / 60]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rest", type=float, default=60)
    arguments = parser.parse_args()
    for ratio in measure(arguments.rounds, arguments.rest):
        print(ratio)


if __name__ == "__main__":
    main()
