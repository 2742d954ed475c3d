"""A real kernel on a machine with many NUMA nodes, on cgroup v2: a daemon keeps pods in place."""

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.guest_enforce import PLACES
from tests.e2e.vm.inside import Document


@pytest.mark.parametrize("cpuset", PLACES)
def test_a_pod_runs_near_its_gpu_after_its_cpuset_changed(seen: Document, cpuset: str) -> None:
    masks = seen["followed"][cpuset]  # within how many scans: tests/e2e/daemon/test_enforce.py
    assert masks[-1] == PLACES[cpuset]
    assert all(parse_list(mask) <= parse_list(cpuset) for mask in masks)
    assert 'affinityd_enforce_pins_total{outcome="cut"} 0.0' in seen["metrics"]


def test_a_daemon_that_is_started_again_pins_only_the_new_pod(seen: Document) -> None:
    anew = seen["anew"]
    assert (anew["pins"]["pinned"], anew["threads"]) == (1, 1)
