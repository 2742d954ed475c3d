from __future__ import annotations

from bench import load


def test_a_thousand_connections_and_a_hundred_thousand_plans_leave_the_daemon_as_it_was() -> None:
    """Every answer is looked at; the daemon's memory is what it was after the first tenth."""
    done = load.measure(connections=1000, number=100_000)
    assert len(done.took) == 130_000
    assert done.growth <= 0.1
