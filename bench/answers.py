"""How many plans a second the daemon answers, and its CPU time for one, beside peers in one run.

A plan that was requested before is compared with a raw ASGI app that returns as many bytes, over 16
connections that stay open. One that was never requested is compared with a FastAPI route that has
the same parameters and plans nothing, over one connection. The daemon knows its callers: each
answer looks up their mask and cpuset. Rounds go to the two in turn.

    python -m bench.answers [--rounds N]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.live import GPUS, cpu_seconds, live
from bench.many import END, Crowd, burst, get, is_ok
from bench.peers import peer
from bench.ratio import Ratio

CONNECTIONS = 16
BEFORE = get("/plan?gpus=0,1&mode=unique_contiguous&share=requested")
ASKED = 4000  #: requests of a round that were answered before
FRESH = 400  #: requests of a round that were not
MODES = ("node", "unique_contiguous", "unique_interleaved", "exclusive", "socket")


@dataclass(frozen=True)
class Server:
    """A server under test: its socket and process."""

    path: str
    pid: int


@dataclass(frozen=True)
class Round:
    """One server's part of a round."""

    seconds: float  #: of all answers
    cpu: float  #: seconds of the server's main thread


def ask(server: Server, requests: Sequence[bytes], connections: int) -> Round:
    """Send requests, one under way on each connection; each must be answered with 200."""
    with closing(Crowd(server.path, connections)) as crowd:
        cpu, began = cpu_seconds(server.pid), time.perf_counter()
        crowd.ask((request, is_ok) for request in requests)
        return Round(time.perf_counter() - began, cpu_seconds(server.pid) - cpu)


def never_asked(seed: int) -> Iterator[bytes]:
    """Yield requests that differ from each other and from those of other seeds."""
    random_ = random.Random(seed)  # noqa: S311 - nothing secret
    for number in range(FRESH):
        gpus = ",".join(map(str, random_.sample(range(GPUS), random_.randint(1, GPUS))))
        mode, share = random_.choice(MODES), random_.choice(("auto", "requested"))
        most = 1 + (seed * FRESH + number) % 4096  # no two requests have it in common
        yield get(
            f"/plan?whose=node&gpus={gpus}&mode={mode}&share={share}&max_physical_cores={most}"
        )


def measure(rounds: int = 15) -> tuple[Ratio, ...]:
    """Return the daemon's answers a second and CPU time, by the peers'."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        folder = Path(name)
        with live(folder / "live", "--scan-interval=off") as daemon:
            ours = Server(str(daemon.socket), daemon.process.pid)
            size = len(burst(ours.path, [BEFORE]).answers[0].partition(END)[2])
            fresh_size = len(burst(ours.path, [next(never_asked(0))]).answers[0].partition(END)[2])
            with (
                peer("raw", folder / "raw.sock", size) as raw,
                peer("route", folder / "route.sock", fresh_size) as route,
            ):
                servers = ours, Server(str(folder / "raw.sock"), raw.pid)
                before = [
                    [ask(it, [BEFORE] * ASKED, CONNECTIONS) for it in servers]
                    for _ in range(rounds)
                ]
                servers = ours, Server(str(folder / "route.sock"), route.pid)
                fresh = [
                    [ask(it, list(never_asked(seed)), 1) for it in servers]
                    for seed in range(1, rounds + 1)
                ]
    return (
        Ratio(
            "plans a second, answered before",
            "raw ASGI app",
            "≥ 1.0",
            [b.seconds / a.seconds for a, b in before],
        ),
        Ratio(
            "CPU time a plan, answered before",
            "raw ASGI app",
            "≤ 1.0",
            [a.cpu / b.cpu for a, b in before],
        ),
        Ratio(
            "plans a second, never requested",
            "FastAPI route",
            "≥ 0.8",
            [b.seconds / a.seconds for a, b in fresh],
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    for ratio in measure(parser.parse_args().rounds):
        print(ratio)


if __name__ == "__main__":
    main()
