"""A real kernel on a machine with many NUMA nodes, on cgroup v2: a daemon keeps jobs in place.

The jobs are those of enforced.py. What became of them (guest_enforce.py) is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.enforced import CPUSETS, FAR_NODE, HOME_NODE, WIDE, targets
from tests.e2e.vm.reading import Document

FILLED = 30 * 2**20  #: bytes that are to be found, of 32 MiB that were written


def places(masks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return where processes are; all threads of each run there."""
    return {name: " and ".join(sorted({*its})) for name, its in masks.items()}


def test_ranks_and_their_workers_are_pinned_near_their_gpus(seen: Document) -> None:
    pinned = seen["pinned"]
    assert set(places(seen["before"]).values()) == {WIDE}
    assert places(pinned["masks"]) == {**targets(WIDE), "pod": "28-31"}
    told = pinned["totals"]
    assert told["pins"] == {"pinned": 13, "cut": 0, "refused": 0, "unsettled": 0}
    assert (told["threads"], told["resets"]) == (17, 0)
    assert 'affinityd_enforce_pins_total{outcome="pinned"} 13.0' in pinned["metrics"]


@pytest.mark.parametrize("cpuset", CPUSETS)
def test_whose_cpuset_is_rewritten_runs_where_it_is_to_within_two_scans(
    seen: Document, cpuset: str
) -> None:
    rewritten = seen["rewritten"][cpuset]
    assert rewritten["scans"] <= 2
    assert places(rewritten["masks"]) == targets(cpuset)
    assert all(parse_list(mask) <= parse_list(cpuset) for mask in rewritten["met"])


def test_memory_follows_its_process_where_it_is_to_be_moved_alone(seen: Document) -> None:
    before, after = seen["it stays"]
    assert min(before[FAR_NODE], after[FAR_NODE]) > FILLED  # pages of files come and go
    before, after = seen["it moves"]
    assert min(before[FAR_NODE], after[HOME_NODE]) > FILLED
    assert after.get(FAR_NODE, 0) < FILLED / 4  # pages of files, which others map, too, stay


def test_a_daemon_that_is_started_anew_pins_nothing_that_fits(seen: Document) -> None:
    anew = seen["anew"]  # of the pod that came between
    assert (anew["pins"]["pinned"], anew["threads"], anew["migrations"]["moved"]) == (1, 1, 1)
