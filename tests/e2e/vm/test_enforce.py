"""A real kernel on a machine with many NUMA nodes, on cgroup v2: a daemon keeps pods in place.

What became of them (guest_enforce.py) is judged here.
"""

from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.guest_enforce import PLACES
from tests.e2e.vm.inside import Document

FILLED = 30 * 2**20  #: bytes that are to be found, of 32 MiB that were written
FAR = "2"  #: the node of the pods' memory


@pytest.mark.parametrize("cpuset", PLACES)
def test_whose_cpuset_is_rewritten_runs_near_its_gpu_and_never_outside(
    seen: Document, cpuset: str
) -> None:
    met = seen["followed"][cpuset]  # within how many scans: tests/e2e/daemon/test_enforce.py
    assert met[-1] == PLACES[cpuset]
    assert all(parse_list(mask) <= parse_list(cpuset) for mask in met)
    assert 'affinityd_enforce_pins_total{outcome="cut"} 0.0' in seen["metrics"]


def test_the_memory_of_a_pinned_process_stays_where_it_is(seen: Document) -> None:
    before, after = seen["it stays"]
    assert min(before[FAR], after[FAR]) > FILLED  # pages of files come and go


def test_a_daemon_that_is_started_anew_pins_nothing_that_fits(seen: Document) -> None:
    anew = seen["anew"]  # of the pod that came between
    assert (anew["pins"]["pinned"], anew["threads"]) == (1, 1)
