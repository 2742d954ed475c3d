"""What speed the daemon promises, measured beside a peer in the same run."""

from __future__ import annotations

import pytest

from bench import answers, prolog, start

pytestmark = pytest.mark.speed


def test_a_remembered_answer_costs_little_more_than_a_raw_asgi_apps() -> None:
    ratio = answers.measure(pairs=15, seconds=0.4)
    assert ratio >= 0.8


def test_to_take_a_place_costs_little_more_than_to_start_an_interpreter() -> None:
    costs = start.measure(pairs=40)
    assert costs[start.EXEC] <= 1.8
    assert costs[start.RUN] <= 1.8  # a pod's, which has no affinityd in it


def test_the_task_prolog_costs_little_more_than_hwloc_bind() -> None:
    costs = prolog.start_alone(rounds=40)
    assert costs[prolog.OURS] <= 1.2 * costs["hwloc-bind"]
