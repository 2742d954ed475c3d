"""A real kernel on a machine with many NUMA nodes: plans that are applied there."""

import pytest

from tests.e2e.vm.guest_apply import FILLERS, OUTSIDE, RANKS, SHRINKING
from tests.e2e.vm.hardware import GPU_NODES, cpus_of
from tests.e2e.vm.inside import Document

FIRST = cpus_of(GPU_NODES[0])


def half_of(rank: int) -> str:
    """Return a rank's CPUs if the two ranks of a NUMA node divide its cores: one core."""
    first = int(cpus_of(GPU_NODES[rank]).partition("-")[0]) + 2 * (rank % 2)
    return f"{first}-{first + 1}"


def placed(cpus: str, allowed: str = "0-31", locality: str = "local", said: str = "") -> Document:
    """Return the report of a command that was given these CPUs, and runs on them."""
    variables = {"CPULIST": cpus, "ALLOWED": allowed, "LOCALITY": locality}
    return {"mask": cpus, **variables, "said": said}


# Commands that are pinned.


@pytest.mark.parametrize("source", RANKS)
def test_each_rank_is_near_its_gpu_and_its_variables_say_so(seen: Document, source: str) -> None:
    assert seen["ranks"][source] == {
        "node": [placed(cpus_of(GPU_NODES[rank])) for rank in RANKS[source]],
        "unique_contiguous": [placed(half_of(rank)) for rank in RANKS[source]],
    }


def test_the_next_answer_uses_the_cpus_that_are_online(seen: Document) -> None:
    assert seen["hotplug"] == ["13-15", FIRST]


def test_callers_are_known_by_their_cgroups(seen: Document) -> None:
    assert seen["callers"] == {
        "a request beyond the cpuset": {"cpulist": "5-9", "source": "request", "within": "5-9"},
        "a mask in a child cgroup": {"cpulist": "6-7", "source": "caller", "within": "5-9"},
    }


# Memory that commands fill.


@pytest.mark.parametrize("command", FILLERS)
def test_memory_is_allocated_on_the_node_of_the_gpu(seen: Document, command: str) -> None:
    _, *policy, nodes = FILLERS[command]
    ended = seen["memory"][command]
    assert ended["status"] == 0
    assert [ended["policy"], ended["preferred"], ended["maps"]] == policy
    pages = ended["pages"]
    assert pages.keys() <= {*nodes.split()}
    assert sum(pages.values()) * 4096 > 32 << 20
    if command.startswith("interleave"):
        assert pages.keys() == {*nodes.split()}
    if command == "interleave":  # one of several nodes may be nearly full: the root is in memory
        assert min(pages.values()) > 0.8 * max(pages.values())
    if command != OUTSIDE:
        assert "affinityd" not in "".join(ended["said"])  # numactl may print warnings


def test_a_refused_memory_policy_is_reported_and_the_command_runs(seen: Document) -> None:
    (line,) = seen["memory"][OUTSIDE]["said"]
    assert line.startswith("affinityd exec: memory: bind on node 3 was refused (EINVAL: ")
    assert line.endswith("; default applies")


# Cpusets of cgroup v2.


def test_a_command_stays_in_its_cpuset(seen: Document) -> None:
    """If a cgroup's cpuset is empty, the parent cgroup's cpuset applies."""
    line = "affinityd exec: CPUs 16-19 are not near the GPU; allowed are 16-19\n"
    assert seen["far"] == placed("16-19", "16-19", "remote", line)
    assert seen["below"] == placed(FIRST, "8-15")


@pytest.mark.parametrize("moment", SHRINKING)
def test_a_pin_follows_a_cpuset_that_grows_again(seen: Document, moment: str) -> None:
    _, mask, status, words = SHRINKING[moment]
    masks, ended, printed = seen["shrinking"][moment]
    assert (masks, ended) == ([mask], status)
    assert words in printed
