"""A real kernel on a machine with many NUMA nodes: where affinityd finds memory.

The result is compared with numa_maps, in which the kernel counts every page.
"""

import re

import pytest

from affinityd.linux.resident import ANONYMOUS, HUGE, SHARED
from tests.e2e.vm.guest_memory import KINDS, RUNS
from tests.e2e.vm.inside import Document

MIB = 1 << 20
KIND_OF = {"hugetlb": HUGE, "memfd": SHARED, "shm": SHARED, "sysv": SHARED}


@pytest.mark.parametrize("kind", KINDS)
def test_each_node_s_true_proportion_is_in_a_sample_s_interval(seen: Document, kind: str) -> None:
    """A 95 % interval may miss more than 5 of a node's 100 samples, but not of all samples."""
    sampled = seen["sampled"][kind]
    within = sampled["within"]
    assert within.keys() == sampled["truth"].keys()
    assert min(within.values()) + sampled["unknown"] >= 0.9 * RUNS
    assert sampled["unknown"] == 0 or kind == "watched"
    assert sampled["size"] == pytest.approx(sum(sampled["truth"].values()), rel=0.02)
    assert KIND_OF.get(kind, ANONYMOUS) in sampled["kinds"] or sampled["unknown"]


def test_95_of_100_samples_contain_the_true_proportion(seen: Document) -> None:
    kinds = [kind for kind in KINDS if not seen["sampled"][kind]["unknown"]]
    counts = [count for kind in kinds for count in seen["sampled"][kind]["within"].values()]
    assert sum(counts) >= 0.95 * RUNS * len(counts)


def test_memory_of_a_container_is_found_through_its_own_mounts(seen: Document) -> None:
    assert SHARED in seen["container"]["kinds"]
    assert min(seen["container"]["within"].values()) >= 0.95 * RUNS


def test_locked_and_pinned_memory_is_reported(seen: Document) -> None:
    assert seen["sampled"]["mlocked"]["locked"] == {"VmLck": 80 * MIB}
    assert seen["pinned"] == {"VmPin": 16 * MIB}


RESIDENT = (
    r"mismatch: host memory \d+ MiB, \d+% far on nodes? .*, and GPU 0 is on node 3; "
    r".*(migratepages \d+ 1,7 3 moves it|pinned: restart)"
)


def test_verify_reports_far_memory_with_a_remedy(seen: Document) -> None:
    verified = seen["verified"]
    assert verified["status"] == 1
    assert re.search(RESIDENT, verified["stdout"])
