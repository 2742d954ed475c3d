"""A real kernel on a machine with many NUMA nodes: plans that are applied there.

What came of each plan (guest_apply.py) is judged here.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.vm.hardware import BARE_NODE, GPU_NODES, NODES, cpus_of, distance
from tests.e2e.vm.reading import Document

FIRST = cpus_of(GPU_NODES[0])

#: The nodes that have memory and are nearest to the GPUs of the one that has none.
NEAR_BARE = {f"{node}" for node in range(NODES) if distance(BARE_NODE, node) == 12}


def half_of(rank: int) -> str:
    """Return the CPUs of a rank that divides its node with the other rank there: a core."""
    first = int(cpus_of(GPU_NODES[rank]).partition("-")[0]) + 2 * (rank % 2)
    return f"{first}-{first + 1}"


def placed(cpus: str, allowed: str = "0-31", locality: str = "local", said: str = "") -> Document:
    """Return what a command says that was given these CPUs, and is there."""
    told = {"CPULIST": cpus, "ALLOWED": allowed, "LOCALITY": locality}
    return {"mask": cpus, **told, "said": said}


# Commands that take their place.


@pytest.mark.parametrize("source", ["sysfs", "daemon", "node.json"])
def test_each_rank_is_near_its_gpu_and_is_told_so(seen: Document, source: str) -> None:
    assert seen["ranks"][source] == {
        "node": [placed(cpus_of(node)) for node in GPU_NODES],
        "unique_contiguous": [placed(half_of(rank)) for rank in range(len(GPU_NODES))],
        "started": placed(cpus_of(GPU_NODES[-1])),
    }


def test_every_rank_asked_the_daemon_that_was_there(seen: Document) -> None:
    assert seen["asked"] == 2 * len(GPU_NODES) + 1


def test_a_rank_that_another_rank_started_has_its_own_place(seen: Document) -> None:
    assert seen["nested"] == placed(cpus_of(GPU_NODES[4]))


NEAR_ANY = "4-7,12-15,20-23,28-31"  #: one of the container's GPUs
BY_FILES = "affinityd run: no affinityd is here to be asked; planned from /tmp/pod/gpu\n"


def test_a_rank_of_a_pod_is_placed_by_the_script_that_init_left(seen: Document) -> None:
    """The pod's own cpuset, of cgroup v2, is the limit."""
    assert seen["pods"] == {
        "asked": placed(half_of(3)),
        "files": placed(NEAR_ANY, said=BY_FILES),
        "narrow, asked": placed("5-7", "5-9"),
        "narrow, files": placed("5-7", "5-9", said=BY_FILES),
    }


def test_the_daemon_knows_who_asks_by_his_cgroup_without_a_handle_of_the_kernels(
    seen: Document,
) -> None:
    """Its kernel is older than SO_PEERPIDFD."""
    assert seen["callers"] == {
        "has handles": False,
        "of the root": {"cpulist": "0-31", "source": "caller", "within": "0-31"},
        "in a cpuset": {"cpulist": "5-9", "source": "caller", "within": "5-9"},
        "in a cpuset, for more": {"cpulist": "5-9", "source": "request", "within": "5-9"},
        "below it, with a mask": {"cpulist": "6-7", "source": "caller", "within": "5-9"},
    }


def test_a_script_takes_its_place_with_all_its_threads_and_its_memory(seen: Document) -> None:
    assert seen["script"]["status"] == 0, seen["script"]["stderr"]
    assert json.loads(seen["script"]["stdout"]) == {
        "masks": [[14, 15]] * 2,
        "cpus": [14, 15],
        "locality": "local",
        "memory": "bind on node 3",
        "policy": ["membind: 3 \n"],
        "source": "daemon",
        "warnings": [],
    }


# Memory that they fill.

#: Which command → its policy by get_mempolicy(2), by numa_maps, and the nodes of its pages.
FILLED = {
    "no policy": ("default", "", "default", {"3"}),
    "local": ("local", "", "local", {"3"}),
    "preferred": ("preferred", "3", "prefer:3", {"3"}),
    "preferred on several": ("preferred-many", "1 3 7", "prefer (many):1,3,7", {"1", "3", "7"}),
    "bind": ("bind", "3", "bind:3", {"3"}),
    "interleave": ("interleave", "1 3 7", "interleave:1,3,7", {"1", "3", "7"}),
    "bind, no memory near": ("bind", "4", "bind:4", {"4"}),
    "no policy, no memory near": ("default", "", "default", NEAR_BARE),
    "bind, outside Mems_allowed": ("default", "", "default", {"2"}),
}


@pytest.mark.parametrize("command", FILLED)
def test_memory_is_filled_on_the_node_of_the_gpu(seen: Document, command: str) -> None:
    *policy, nodes = FILLED[command]
    ended = seen["memory"][command]
    assert ended["status"] == 0
    assert [ended["policy"], ended["preferred"], ended["maps"]] == policy
    pages = ended["pages"]
    assert pages.keys() <= nodes
    assert sum(pages.values()) * 4096 > 32 << 20
    if command == "interleave":
        assert pages.keys() == nodes
        assert min(pages.values()) > 0.8 * max(pages.values())
    if "Mems_allowed" not in command:
        assert "affinityd" not in "".join(ended["said"])  # numactl may have something to say


def test_memory_that_may_not_be_had_is_said_and_the_command_runs(seen: Document) -> None:
    first, second = seen["memory"]["bind, outside Mems_allowed"]["said"]
    assert first.startswith("affinityd exec: memory: bind on node 3 was refused (EINVAL: ")
    assert second.startswith("affinityd exec: memory: preferred on node 3 was refused (EINVAL: ")
    assert second.endswith("; default holds")


# Cpusets of cgroup v2.


def test_a_command_in_a_cpuset_stays_there_and_is_told(seen: Document) -> None:
    """Below a cpuset that is empty counts the one above."""
    said = "affinityd exec: CPUs 16-19 are not near the GPU; allowed are 16-19\n"
    assert seen["cpusets"]["far"] == placed("16-19", "16-19", "remote", said)
    assert seen["cpusets"]["below"] == placed(FIRST, "8-15")
    strict = seen["cpusets"]["strict"]
    assert strict.keys() == {"mask", "said"}
    assert strict["mask"] == "16-19"
    refusal = r"affinityd exec: strict: .* node 3.* node 4.*; the command runs unpinned\n"
    assert re.fullmatch(refusal, strict["said"])


#: Its cpuset, and a command → the mask of what runs there, and the command's status and words.
SHRINKING = {
    "8-15": ("12-15", 0, ""),
    "12-13": ("12-13", 0, ""),
    "8-9": ("8-9", 1, "mismatch: GPU 0 is on node 3, and its cpuset, 8-9, has no CPU there"),
    "8-9, pinned": ("8-9", 0, "remote_home: rank 0 has CPUs away from NUMA node 3"),
    "8-15 again, pinned": ("12-15", 0, "1 thread pinned to CPUs 12-15\n"),
}


@pytest.mark.parametrize("moment", SHRINKING)
def test_a_cpuset_takes_its_commands_along_and_a_pin_brings_them_back(
    seen: Document, moment: str
) -> None:
    mask, status, words = SHRINKING[moment]
    masks, ended, said = seen["cpusets"]["shrinking"][moment]
    assert (masks, ended) == ([mask], status)
    assert words in said


def test_a_pin_plans_on_the_cpuset_above_where_there_is_none(seen: Document) -> None:
    assert seen["cpusets"]["confined too far"] == [["8-9"], 0, [FIRST]]


# Memory that is not where it belongs.

BOUND = "mismatch: its memory policy is bind on node 1, and GPU 0 is on node 3"
RESIDENT = r"mismatch: \d+% of its resident memory .*; migratepages \d+ .* 3 moves it"


@pytest.mark.parametrize(
    ("moment", "status", "words"),
    [
        ("filled, then pinned", 0, ""),
        ("resident", 1, RESIDENT),
        ("migratepages", 0, ""),
        ("its pages moved", 0, ""),
        ("bound far away", 1, BOUND),
        ("no memory near", 0, ""),  # on any of the nearest nodes that have some
    ],
)
def test_memory_that_is_far_is_found_and_moved_as_was_said(
    seen: Document, moment: str, status: int, words: str
) -> None:
    ended, said = seen["far memory"][moment]
    assert ended == status, said
    assert re.search(words, said)
