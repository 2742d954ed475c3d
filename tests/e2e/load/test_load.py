"""What many do to the daemon who ask at once, or for long, or always something else."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from bench import burst, load


def test_a_thousand_connections_and_a_hundred_thousand_plans_leave_the_daemon_as_it_was() -> None:
    """Every answer is looked at; the daemon's memory is what it was after the first tenth."""
    done = load.measure(connections=1000, number=100_000)
    assert len(done.took) == 130_000
    assert done.growth <= 0.1


def test_the_ranks_of_a_job_wait_little_longer_than_for_a_raw_asgi_app() -> None:
    """A rank is a process, forked of a small one: a large one's pages would take the time."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as small:
        ways = "processes", "again"
        pairs = small.submit(burst.measure, 25, burst.RANKS, ways).result()
    assert burst.ratio(pairs["processes"]) <= 1.3
    # Asked by one process, which costs next to nothing: who asks is found out all the same.
    assert burst.ratio(pairs["again"]) <= 3
