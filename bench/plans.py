"""How long plans take while many ask: a new job's ranks, a thousand connections of one uid.

The 128 ranks of a job that no process has asked for connect at once, each with its own `rank`.
Bursts go in turn to the daemon, which finds out each caller, and to its peer.

A thousand connections of another uid each ask without a pause. What a plan takes meanwhile is
compared with the time limit of a client, which is one process a plan.

    python -m bench.plans [--rounds N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from affinityd.client.ask_daemon import TIMEOUT
from bench.connections import END, burst, get
from bench.daemon import GPUS, PEER, live, peer
from bench.ratio import Ratio
from tests.support.daemons import PATIENCE

RANKS = 128
CONNECTIONS = 1000
OTHER_UID = 65534


def job(seed: int) -> Sequence[bytes]:
    """Return the requests of a job's ranks; jobs of other seeds have other GPUs."""
    random_ = random.Random(seed)  # noqa: S311 - nothing secret
    gpus = ",".join(str(random_.randrange(GPUS)) for _ in range(RANKS))
    return [get(f"/plan?gpus={gpus}&rank={rank}&mode=node") for rank in range(RANKS)]


def new_jobs(rounds: int) -> list[float]:
    """Return the time until the last rank of a new job has its plan, by the peer's."""
    with (
        tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name,
        live(Path(name, "live"), "--scan-interval=off") as daemon,
    ):
        socket, other = str(daemon.socket), Path(name, "peer")
        _, answers = burst(socket, job(0))
        with peer(other, len(answers[0].partition(END)[2])):
            burst(str(other), job(0))
            return [
                burst(socket, job(seed))[0] / burst(str(other), job(seed))[0]
                for seed in range(1, rounds + 1)
            ]


def crowded(rounds: int) -> list[float]:
    """Return the time of a plan beside a thousand connections of another uid, by the limit."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        Path(name).chmod(0o755)
        with live(Path(name, "live"), "--scan-interval=off") as daemon:
            socket = str(daemon.socket)
            with crowd_of(OTHER_UID, socket):
                times = []
                for seed in range(rounds):
                    times.append(burst(socket, job(seed)[:1])[0] / TIMEOUT)
                    time.sleep(0.05)
                return times


@contextmanager
def crowd_of(uid: int, path: str) -> Iterator[None]:
    """Run a process of this uid that opens a thousand connections again and again, and asks."""
    context = multiprocessing.get_context("fork")
    asked = context.Event()

    def ask() -> None:
        os.setresuid(uid, uid, uid)
        while True:
            with suppress(OSError, AssertionError):  # the daemon closes what is above its limit
                burst(path, [job(0)[0]] * CONNECTIONS)
            asked.set()

    process = context.Process(target=ask)
    process.start()
    try:
        assert asked.wait(PATIENCE), "the crowd could not ask"
        yield
    finally:
        process.kill()
        process.join()


def measure(rounds: int = 20) -> tuple[Ratio, ...]:
    """Return both."""
    return (
        Ratio(f"last plan of {RANKS} ranks of a new job", PEER, "≤ 3", new_jobs(rounds)),
        Ratio(
            f"a plan beside {CONNECTIONS} connections of another uid",
            "the time limit of a client",
            "≤ 1",
            crowded(rounds),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    for ratio in measure(parser.parse_args().rounds):
        print(ratio)


if __name__ == "__main__":
    main()
