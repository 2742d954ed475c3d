"""How long plans take while many processes ask: a new job's ranks, or 1,000 connections of a uid.

The 128 ranks of a job connect at once, each with its own `rank`; no process has asked before.
Bursts go in turn to the daemon, which finds out each caller, and to its peer.

A thousand connections of another uid each ask without a pause. The time that a plan takes
meanwhile is compared with the time limit of a client.

The CPU time of a query that asks for as much as it can is measured, too.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from affinityd.client.ask_daemon import TIMEOUT
from affinityd.daemon.api import plan
from affinityd.topology.model import Node
from bench.daemon import GPUS, PEER, burst, live, peer
from bench.ratio import Ratio
from tests.support.asking import answer_to
from tests.support.daemons import PATIENCE
from tests.support.machines.facts import machine

RANKS = 128
CONNECTIONS = 1000
OTHER_UID = 65534


def job(seed: int) -> Sequence[str]:
    """Return the queries of a job's ranks; a job of another seed has other GPUs."""
    random_ = random.Random(seed)  # noqa: S311 - nothing secret
    gpus = ",".join(str(random_.randrange(GPUS)) for _ in range(RANKS))
    return [f"/plan?gpus={gpus}&rank={rank}&mode=node" for rank in range(RANKS)]


def new_jobs(rounds: int) -> list[float]:
    """Return the time until the last rank of a new job has its plan, divided by the peer's."""
    with (
        tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name,
        live(Path(name, "live"), "--scan-interval=off") as daemon,
    ):
        socket, other = daemon.socket, Path(name, "peer")
        _, answers = burst(socket, job(0))
        with peer(other, len(answers[0])):
            burst(other, job(0))
            return [
                burst(socket, job(seed))[0] / burst(other, job(seed))[0]
                for seed in range(1, rounds + 1)
            ]


def crowded(rounds: int) -> list[float]:
    """Return the time of a plan beside 1,000 connections of another uid, divided by the limit."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        Path(name).chmod(0o755)
        with (
            live(Path(name, "live"), "--scan-interval=off") as daemon,
            crowd_of(OTHER_UID, daemon.socket),
        ):
            times = []
            for seed in range(rounds):
                times.append(burst(daemon.socket, job(seed)[:1])[0] / TIMEOUT)
                time.sleep(0.05)
            return times


@contextmanager
def crowd_of(uid: int, path: Path) -> Iterator[None]:
    """Run a process of this uid that repeatedly opens 1,000 connections and asks on each."""
    context = multiprocessing.get_context("fork")
    asked = context.Event()

    def ask() -> None:
        os.setresuid(uid, uid, uid)
        while True:
            with suppress(OSError, AssertionError):  # the daemon closes connections above its limit
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


#: The costliest of the queries that were tried, with the largest value of each parameter.
COSTLY = (
    "ranks=256&mode=all&cpus=256",
    "ranks=256&mode=socket&cpus=256",
    f"gpus={','.join(['0'] * 256)}&job={','.join(['0'] * 256)}",
)
GOAL = 0.05  #: seconds of CPU


def costliest(rounds: int) -> list[float]:
    """Return the CPU time of the costliest query, from text to answer, divided by the goal."""
    node = Node(machine("dgx-a100"))
    times = []
    for _ in range(rounds):
        of_each = []
        for query in COSTLY:
            plan._reply.cache_clear()  # noqa: SLF001 - so that it plans again
            began = time.process_time()
            answer_to(node, query.encode())
            of_each.append((time.process_time() - began) / GOAL)
        times.append(max(of_each))
    return times


def measure(rounds: int = 20) -> tuple[Ratio, ...]:
    """Return all ratios."""
    return (
        Ratio(f"last plan of {RANKS} ranks of a new job", PEER, 3, new_jobs(rounds)),
        Ratio(
            f"a plan beside {CONNECTIONS} connections of another uid",
            "the time limit of a client",
            1,
            crowded(rounds),
        ),
        Ratio("CPU time of the costliest query", f"{GOAL:g} s", 1, costliest(rounds)),
    )
