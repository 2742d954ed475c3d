"""A real kernel on a machine with many NUMA nodes: where memory is said to be, and where it moves.

What is said is compared with numa_maps, in which the kernel counts every page.
"""

import re

import pytest

from affinityd.linux.resident import ANONYMOUS, FILES, HUGE, SHARED
from tests.e2e.vm.guest_memory import CASES, KINDS, NEAR, RUNS
from tests.e2e.vm.inside import Document

MIB = 1 << 20
KIND_OF = {"hugetlb": HUGE, "memfd": SHARED, "shm": SHARED, "sysv": SHARED}
IN_USE, MAPPED = "in use, or pinned by a driver", "another process maps it, too"
BY_OTHERS = f"{FILES}: {MAPPED}"


# What a sample says.


@pytest.mark.parametrize("kind", KINDS)
def test_the_share_of_each_node_is_in_the_interval_of_a_sample(seen: Document, kind: str) -> None:
    """An interval of 95 % may miss a few more than 5 of 100; all together it does not."""
    sampled = seen["sampled"][kind]
    within = sampled["within"]
    assert within.keys() == sampled["truth"].keys()
    assert min(within.values()) >= 0.9 * RUNS
    assert sampled["size"] == pytest.approx(sum(sampled["truth"].values()), rel=0.02)
    assert KIND_OF.get(kind, ANONYMOUS) in sampled["kinds"]


def test_95_of_100_samples_have_the_true_share(seen: Document) -> None:
    counts = [count for kind in KINDS for count in seen["sampled"][kind]["within"].values()]
    assert sum(counts) >= 0.95 * RUNS * len(counts)


def test_memory_in_a_container_is_known_by_its_own_mounts(seen: Document) -> None:
    assert SHARED in seen["container"]["kinds"]
    assert min(seen["container"]["within"].values()) >= 0.95 * RUNS


def test_locked_and_pinned_memory_is_told(seen: Document) -> None:
    assert seen["sampled"]["mlocked"]["locked"] == {"VmLck": 80 * MIB}
    assert seen["commands"]["pinned"]["locked"] == {"VmPin": 16 * MIB}


# What moves.


def far(places: Document) -> int:
    """Return the bytes on other nodes than the near one."""
    return sum(size for node, size in places.items() if int(node) != NEAR)


def assert_accounted(it: Document) -> None:
    """Hold that what moved came to the near node; meanwhile pages of files may be mapped."""
    moved = sum(it["moved"].values())
    assert moved == it["now"]["3"] - it["before"]["3"]
    assert 0 <= moved - (far(it["before"]) - far(it["now"])) <= it["moved"].get(FILES, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_all_memory_of_its_own_moves_and_every_byte_is_accounted_for(
    seen: Document, kind: str
) -> None:
    it = seen["moved"][kind]
    assert_accounted(it)
    assert it["stayed"] == {BY_OTHERS: far(it["now"])}
    mib = [int(part.partition("=")[2]) for part in KINDS[kind].split(",") if part[0] != f"{NEAR}"]
    there = sum(mib) if kind != "swapped" else 0  # its half there was swapped
    assert it["moved"].get(KIND_OF.get(kind, ANONYMOUS), 0) >= there * MIB
    assert it["after"] == "whole"


def test_memory_stays_where_there_is_no_room_any_more(seen: Document) -> None:
    it = seen["commands"]["filled meanwhile"]
    assert_accounted(it)
    assert it["stayed"][f"{ANONYMOUS}: the near node is full"] > 0
    assert sum(it["stayed"].values()) == far(it["now"])
    assert it["after"] == "whole"


PINNED = "1 thread pinned to CPUs 12-15\n"
FILES_STAY = rf"process \d+ \(python3\): \d+ MiB of files stayed: {MAPPED}\n"
MOVED = r"process \d+ \(python3\): \d+ MiB{} moved to node 3\n"


@pytest.mark.parametrize(
    ("case", "status", "stays", "words"),
    [
        ("plain", 0, 0, rf".*{PINNED}{MOVED.format('')}({FILES_STAY})?"),
        ("pinned", 1, 16, rf"(.*\n)*.*: 16 MiB of anonymous stayed: {IN_USE}\n.*\n"),
        ("shared", 1, 16, rf"(.*\n)*.*: 1\d MiB of shared stayed: {MAPPED}\n(.*\n)?"),
        ("at the limit", 1, 60, ""),
        ("full", 1, 60, ""),
        ("elsewhere", 1, 16, ""),
        ("SIGTERM", 143, 1, rf".*{PINNED}{MOVED.format(' of about 20. MiB')}({FILES_STAY})?"),
        ("SIGKILL", -9, 1, f".*{PINNED}"),
    ],
)
def test_a_command_says_how_much_moved_and_how_much_stayed(
    seen: Document, case: str, status: int, stays: int, words: str
) -> None:
    it = seen["commands"][case]
    assert it["status"] == status
    assert re.fullmatch(words, it["stdout"])
    assert far(it["now"]) // MIB in range(stays, stays + 10) or stays == 1
    assert it["after"] == "whole"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("full", r"node 3 has room for \d+ MiB, and about \d+ MiB would have to move there; no .*"),
        ("at the limit", r"process .*: its memory cgroup is at its limit; no .*"),
        ("elsewhere", r"process .*: its cpuset allows it the memory of nodes 1,7, and GPU 0 .*"),
        ("SIGTERM", "SIGTERM: the rest of the memory is where it was; run this again"),
        ("ended meanwhile", r"process \d+ \(python3\): it has ended meanwhile"),
    ],
)
def test_why_a_command_did_not_finish_is_a_line(seen: Document, case: str, words: str) -> None:
    assert re.fullmatch(f"affinityd pin: {words}\n", seen["commands"][case]["stderr"])
    assert case in CASES


RESIDENT = (
    r"mismatch: host memory \d+ MiB, \d+% \(\d+ to \d+\) far on nodes? .*, and GPU 0 is on node 3; "
    r".*affinityd pin --memory --gpus 0 \d+ moves it"
)


def test_verify_tells_of_far_memory_and_how_to_move_it(seen: Document) -> None:
    verified = seen["commands"]["plain"]["verified"]
    assert verified["status"] == 1
    assert re.search(RESIDENT, verified["stdout"])


def test_a_rehearsal_moves_nothing(seen: Document) -> None:
    said = seen["commands"]["plain"]["dry"]["stdout"]
    assert re.search(r"about 2\d MiB of 2\d MiB would move to node 3\n", said)


def test_a_cgroup_at_its_limit_loses_no_process(seen: Document) -> None:
    assert "\noom_kill 0\n" in seen["commands"]["at the limit"]["events"]
