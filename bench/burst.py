"""How long the ranks of one job wait that ask all at once, beside a raw ASGI app, in one run.

Each of 128 ranks connects anew over the unix socket and asks with the same `gpus` and its own
`rank`. The raw app is uvicorn's as it comes, on uvloop and httptools with the daemon's settings,
and answers as many bytes; the daemon looks up who asks, keeps its limits and counts. Bursts go to
the two in turn. `again` are jobs that have been seen before, as a site's are; `new` ones are
planned. The client is one process that runs beside them; its CPU time is printed, too. With
`processes` it is one a rank, as ranks are: new ones each time, on the daemon's own CPUs.

    python -m bench.burst [--pairs N] [--ranks N]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

from bench.live import GPUS, cpu_seconds, live
from bench.many import END, burst, burst_of_processes, get
from bench.peers import peer
from bench.ratio import Ratio

RANKS = 128
WAYS = ("again", "processes", "new")

#: Asks all questions at once at a socket; returns the seconds until all are answered.
Ask = Callable[[str, Sequence[bytes]], float]


@dataclass(frozen=True)
class Pair:
    """A burst of the daemon's, and one of the raw app's: seconds."""

    daemon: float
    raw: float
    client: float  #: CPU time of the client in the daemon's burst
    server: float  #: CPU time of the daemon in it
    raw_server: float

    @property
    def ratio(self) -> float:
        return self.daemon / self.raw

    def __str__(self) -> str:
        times = (self.daemon, self.raw, self.client, self.server, self.raw_server)
        daemon, raw, client, server, raw_server = (f"{it * 1000:.1f}" for it in times)
        return (
            f"daemon {daemon} ms  raw {raw} ms  {self.ratio:.2f}   "
            f"CPU: client {client}, daemon {server}, raw {raw_server} ms"
        )


def job(seed: int, ranks: int) -> Sequence[bytes]:
    """Return what the ranks of a job ask; jobs of other seeds have other GPUs."""
    random_ = random.Random(seed)  # noqa: S311 - nothing secret
    gpus = ",".join(str(random_.randrange(GPUS)) for _ in range(ranks))
    return [get(f"/plan?gpus={gpus}&rank={rank}&mode=node") for rank in range(ranks)]


@contextmanager
def servers(ranks: int) -> Iterator[Mapping[str, tuple[str, int]]]:
    """Run both: their sockets and processes, by their names."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as folder, ExitStack() as stack:
        daemon = stack.enter_context(live(Path(folder, "live"), "--scan-interval=off"))
        answers = burst(str(daemon.socket), job(0, ranks)).answers
        size, raw = len(answers[0].partition(END)[2]), Path(folder, "raw.sock")
        other = stack.enter_context(peer("raw", raw, size))
        yield {"daemon": (str(daemon.socket), daemon.process.pid), "raw": (str(raw), other.pid)}


def measure(
    pairs: int, ranks: int = RANKS, ways: Sequence[str] = WAYS
) -> dict[str, Sequence[Pair]]:
    """Burst so often, in each of these ways. The first of each are not counted."""
    fresh = count(1)
    with servers(ranks) as there:

        def pair(requests: Sequence[bytes], ask: Ask) -> Pair:
            (path, process), (raw, other) = there["daemon"], there["raw"]
            before = [cpu_seconds(it) for it in (process, other)]
            cpu, ours, now = time.process_time(), ask(path, requests), time.process_time()
            theirs = ask(raw, requests)
            after = [cpu_seconds(it) for it in (process, other)]
            spent = (now - then for now, then in zip(after, before, strict=True))
            return Pair(ours, theirs, now - cpu, *spent)

        pairs_of: dict[str, Callable[[], Pair]] = {
            "again": lambda: pair(job(0, ranks), _at_once),
            "processes": lambda: pair(job(0, ranks), burst_of_processes),
            "new": lambda: pair(job(next(fresh), ranks), _at_once),
        }
        return {way: [pairs_of[way]() for _ in range(pairs)][1:] for way in ways}


def _at_once(path: str, requests: Sequence[bytes]) -> float:
    return burst(path, requests).seconds


def ratios(pairs: int = 20) -> tuple[Ratio, ...]:
    """Return how long the ranks of a job wait, by the raw app's, for jobs seen before and new."""
    found = measure(pairs)
    names = {"again": "seen before", "new": "new", "processes": "seen before, a process a rank"}
    return tuple(
        Ratio(
            f"last answer to {RANKS} ranks of a job, {names[way]}",
            "raw ASGI app",
            "≤ 2",
            [it.ratio for it in found[way]],
        )
        for way in WAYS
    )


def ratio(pairs: Sequence[Pair]) -> float:
    """Return the median, daemon by raw app."""
    return median(it.ratio for it in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=RANKS)
    arguments = parser.parse_args()
    for name, pairs in measure(arguments.pairs, arguments.ranks).items():
        middle = sorted(pairs, key=lambda it: it.ratio)[len(pairs) // 2]
        print(f"{name:9} {ratio(pairs):.2f} (goal 1.3)   the middle one: {middle}")


if __name__ == "__main__":
    main()
