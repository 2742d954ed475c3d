"""A real kernel on a machine with many NUMA nodes: plans that are applied there.

What came of each plan (guest_apply.py) is judged here.
"""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.hardware import BARE_NODE, GPU_NODES, NODES, cpus_of, distance
from tests.e2e.vm.reading import Document, mapped, mask, numactl_policy, threads, told

SOURCES = ("sysfs", "daemon", "node.json")  #: whom `affinityd exec` can plan by
FIRST = cpus_of(GPU_NODES[0])

#: The nodes that have memory and are nearest to the GPUs of the one that has none.
NEAR_BARE = {node for node in range(NODES) if distance(BARE_NODE, node) == 12}


def half_of(rank: int) -> str:
    """Return the CPUs of a rank that divides its node with the other rank there: a core."""
    first = int(cpus_of(GPU_NODES[rank]).partition("-")[0]) + 2 * (rank % 2)
    return f"{first}-{first + 1}"


HALVES = [half_of(rank) for rank in range(len(GPU_NODES))]


# Commands that take their place.


@pytest.mark.parametrize("source", SOURCES)
def test_each_rank_is_on_the_node_of_its_gpu(seen: Document, source: str) -> None:
    ranks = seen["ranks"][source]["node"]
    assert [mask(rank) for rank in ranks] == [cpus_of(node) for node in GPU_NODES]
    assert {rank["stderr"] for rank in ranks} == {""}


@pytest.mark.parametrize("source", SOURCES)
def test_ranks_in_a_unique_mode_divide_their_node(seen: Document, source: str) -> None:
    ranks = seen["ranks"][source]["unique_contiguous"]
    masks = [mask(rank) for rank in ranks]
    assert masks == HALVES
    assert all(one.isdisjoint(other) for one, other in combinations(map(parse_list, masks), 2))
    assert {rank["stderr"] for rank in ranks} == {""}


@pytest.mark.parametrize(
    ("way", "cpus"),
    [
        ("asked", [HALVES[rank] for rank in (0, 3, 6)]),
        ("files", ["4-7,12-15,20-23,28-31"] * 3),  # near one of the container's GPUs
    ],
)
def test_ranks_of_a_pod_are_placed_by_the_script_that_init_left(
    seen: Document, way: str, cpus: list[str]
) -> None:
    ranks = seen["pods"][way]
    assert [mask(rank) for rank in ranks] == cpus
    assert {told(rank)["AFFINITYD_CPULIST"] for rank in ranks} == {mask(rank) for rank in ranks}


@pytest.mark.parametrize(("way", "cpus"), [("asked", "5-7"), ("files", "5-7")])
def test_a_pod_s_own_cpuset_is_the_limit(seen: Document, way: str, cpus: str) -> None:
    rank = seen["pods"][f"narrow, {way}"]
    assert mask(rank) == cpus  # of node 1; near any GPU
    assert told(rank)["AFFINITYD_ALLOWED"] == "5-9"


@pytest.mark.parametrize("source", SOURCES)
def test_a_command_is_told_where_it_is(seen: Document, source: str) -> None:
    for ranks in (seen["ranks"][source]["node"], seen["ranks"][source]["unique_contiguous"]):
        assert [told(rank) for rank in ranks] == [
            {
                "AFFINITYD_TIMEOUT": "60",  # which it was given
                "AFFINITYD_CPULIST": mask(rank),
                "AFFINITYD_ALLOWED": "0-31",
                "AFFINITYD_LOCALITY": "local",
            }
            for rank in ranks
        ]


@pytest.mark.parametrize("source", SOURCES)
def test_a_rank_that_starts_by_itself_is_where_a_fork_is(seen: Document, source: str) -> None:
    ranks = seen["ranks"][source]
    assert mask(ranks["started"]) == mask(ranks["node"][-1])
    assert ranks["started"]["stderr"] == ""


def test_every_rank_asked_the_daemon_that_was_there(seen: Document) -> None:
    before, after = (
        sum(map(float, re.findall(r"^affinityd_plans_total\{.*\} (.*)$", metrics, re.MULTILINE)))
        for metrics in seen["metrics"]
    )
    ranks = seen["ranks"]["daemon"]
    assert after - before == len(ranks["node"]) + len(ranks["unique_contiguous"]) + 1


def test_ranks_that_see_their_own_gpu_alone_take_nothing_from_each_other(seen: Document) -> None:
    assert [mask(rank) for rank in seen["own GPUs"]] == HALVES


def test_a_rank_that_another_rank_started_has_its_own_place(seen: Document) -> None:
    assert mask(seen["nested"]) == cpus_of(GPU_NODES[4])
    assert told(seen["nested"])["AFFINITYD_ALLOWED"] == "0-31"


@pytest.mark.parametrize(
    ("caller", "allowed"),
    [
        ("of the root", {"cpulist": "0-31", "source": "caller", "within": "0-31"}),
        ("in a cpuset", {"cpulist": "5-9", "source": "caller", "within": "5-9"}),
        ("in a cpuset, for more", {"cpulist": "5-9", "source": "request", "within": "5-9"}),
        ("below it, with a mask", {"cpulist": "6-7", "source": "caller", "within": "5-9"}),
    ],
)
def test_the_daemon_knows_who_asks_by_his_cgroup_without_a_handle_of_the_kernels(
    seen: Document, caller: str, allowed: Document
) -> None:
    """Its kernel is older than SO_PEERPIDFD."""
    assert seen["callers"]["has handles"] is False
    assert seen["callers"][caller] == allowed


def test_a_command_for_which_there_was_no_time_runs_unpinned(seen: Document) -> None:
    assert mask(seen["too late"]) == "0-31"
    assert seen["too late"]["stderr"] == (
        "affinityd exec: finding a place took too long; the daemon at "
        "/run/affinityd/affinityd.sock did not answer in time; the command runs unpinned\n"
    )


def test_a_script_takes_its_place_with_all_its_threads_and_its_memory(seen: Document) -> None:
    assert seen["script"]["status"] == 0, seen["script"]["stderr"]
    bound = json.loads(seen["script"]["stdout"])
    assert bound["masks"] == [[14, 15]] * 2
    assert bound["cpus"] == [14, 15]
    assert (bound["source"], bound["locality"]) == ("daemon", "local")
    assert bound["memory"] == "bind on node 3"
    assert numactl_policy(bound["numactl"]) == ("bind", "3")
    assert bound["warnings"] == []


# Memory that they fill.

#: Which command → its policy by get_mempolicy(2), by numa_maps, and the nodes of its pages.
FILLED = {
    "no policy": (("default", ""), "default", {3}),
    "local": (("local", ""), "local", {3}),
    "preferred": (("preferred", "3"), "prefer:3", {3}),
    "bind": (("bind", "3"), "bind:3", {3}),
    "interleave": (("interleave", "1 3 7"), "interleave:1,3,7", {1, 3, 7}),
    "bind, no memory near": (("bind", "4"), "bind:4", {4}),
}


@pytest.mark.parametrize("command", FILLED)
def test_memory_is_filled_on_the_node_of_the_gpu(seen: Document, command: str) -> None:
    by_numactl, by_numa_maps, nodes = FILLED[command]
    ended = seen["memory"][command]
    assert (ended["status"], ended["stderr"]) == (0, "")
    assert numactl_policy(ended["stdout"]) == by_numactl
    policy, pages = mapped(ended["stdout"])
    assert policy == by_numa_maps
    assert pages.keys() == nodes
    assert min(pages.values()) > 0.8 * max(pages.values())
    assert sum(pages.values()) * 4096 > 32 << 20


def test_several_nodes_are_preferred_to_all_others(seen: Document) -> None:
    ended = seen["memory"]["preferred on several"]
    assert "affinityd" not in ended["stderr"]  # numactl has something to say
    assert numactl_policy(ended["stdout"]) == ("preferred-many", "1 3 7")
    policy, pages = mapped(ended["stdout"])
    assert policy == "prefer (many):1,3,7"
    assert pages.keys() <= {1, 3, 7}


def test_without_memory_near_the_kernel_takes_the_nearest(seen: Document) -> None:
    ended = seen["memory"]["no policy, no memory near"]
    policy, pages = mapped(ended["stdout"])
    assert policy == "default"
    assert pages.keys() <= NEAR_BARE


def test_memory_that_may_not_be_had_is_said_and_the_command_runs(seen: Document) -> None:
    ended = seen["memory"]["bind, outside Mems_allowed"]
    assert ended["status"] == 0
    first, second = ended["stderr"].splitlines()
    assert first.startswith("affinityd exec: memory: bind on node 3 was refused (EINVAL: ")
    assert second.startswith("affinityd exec: memory: preferred on node 3 was refused (EINVAL: ")
    assert second.endswith("; default holds")
    assert numactl_policy(ended["stdout"]) == ("default", "")
    assert mapped(ended["stdout"])[1].keys() == {2}
    assert "physcpubind: 12 13 14 15 \n" in ended["stdout"]


# Cpusets of cgroup v2.


def test_a_command_in_a_cpuset_on_another_node_stays_there_and_is_told(seen: Document) -> None:
    ended = seen["cpusets"]["on another node"]
    assert mask(ended) == "16-19"
    assert told(ended)["AFFINITYD_ALLOWED"] == "16-19"
    assert told(ended)["AFFINITYD_LOCALITY"] == "remote"


def test_a_strict_one_runs_as_it_is_and_the_cause_is_said(seen: Document) -> None:
    ended = seen["cpusets"]["on another node, strict"]
    assert mask(ended) == "16-19"
    assert told(ended).keys() == {"AFFINITYD_TIMEOUT"}
    assert re.fullmatch(
        r"affinityd exec: strict: .* node 3.* node 4.*; the command runs unpinned\n",
        ended["stderr"],
    )


def test_below_a_cpuset_that_is_empty_counts_the_one_above(seen: Document) -> None:
    ended = seen["cpusets"]["empty, below one that is not"]
    assert mask(ended) == FIRST
    assert told(ended)["AFFINITYD_ALLOWED"] == "8-15"


#: The cpuset of a running command → its mask then, and what `affinityd verify` ends with.
SHRINKING = {"8-15": ("12-15", 0), "12-13": ("12-13", 0), "8-9": ("8-9", 1)}


@pytest.mark.parametrize("cpuset", SHRINKING)
def test_a_cpuset_takes_its_commands_along(seen: Document, cpuset: str) -> None:
    then = seen["cpusets"]["shrinking"][cpuset]
    assert (then["masks"], then["verify"]["status"]) == (
        [SHRINKING[cpuset][0]],
        SHRINKING[cpuset][1],
    )


def test_of_a_cpuset_without_a_near_cpu_is_said_that_it_is_the_cause(seen: Document) -> None:
    verified = seen["cpusets"]["shrinking"]["8-9"]["verify"]["stdout"]
    assert re.search(
        r"mismatch: GPU 0 is on node 3, and its cpuset, 8-9, has no CPU there", verified
    )
    pinned = seen["cpusets"]["shrinking"]["8-9, pinned"]
    assert pinned["status"] == 0
    assert "remote_home: rank 0 has CPUs away from NUMA node 3" in pinned["stderr"]


def test_once_the_cpuset_has_grown_again_a_pin_brings_the_command_back(seen: Document) -> None:
    pinned = seen["cpusets"]["shrinking"]["8-15 again, pinned"]
    assert (pinned["status"], pinned["stderr"]) == (0, "")
    assert pinned["stdout"].endswith("1 thread pinned to CPUs 12-15\n")


def test_a_pin_plans_on_the_cpuset_above_where_there_is_none(seen: Document) -> None:
    mended = seen["cpusets"]["confined too far"]
    assert mended["pin"]["status"] == 0, mended["pin"]["stderr"]
    assert (mended["before"], mended["after"]) == (["8-9"], [FIRST])


# Processes that are not where they belong.

FAR, NEAR = "0-3", FIRST

#: After what → the masks of the rank's three threads and of its child's two, and verify's status.
MENDING = {
    "at first": ([[FAR, FAR, "28"], [FAR, FAR]], 1),
    "dry run": ([[FAR, FAR, "28"], [FAR, FAR]], 1),
    "pinned": ([[NEAR, NEAR, "28"], [NEAR, NEAR]], 1),
    "mended as was said": ([[NEAR, NEAR, NEAR], [NEAR, NEAR]], 0),
}


@pytest.mark.parametrize("moment", MENDING)
def test_a_lost_rank_is_found_thread_by_thread_and_mended(seen: Document, moment: str) -> None:
    masks, status = MENDING[moment]
    then = seen["lost"][moment]
    assert then["masks"] == masks
    assert then["verify"]["status"] == status
    assert threads(then["verify"]) == [
        ("local" if its == NEAR else "remote", its) for process in masks for its in process
    ]


#: After what → what it said of the rank's own threads.
PINNED = {
    "dry run": "2 threads would be pinned",
    "pinned": "2 threads pinned",
    "mended as was said": "3 threads pinned",
}


@pytest.mark.parametrize("moment", PINNED)
def test_a_pin_says_what_it_did_and_what_it_left_alone(seen: Document, moment: str) -> None:
    command = seen["lost"][moment]["command"]
    assert (command["status"], command["stderr"]) == (0, "")
    assert re.match(rf"process \d+ \(.*\): {PINNED[moment]} to CPUs 12-15\n", command["stdout"])
    is_left_alone = moment != "mended as was said"
    assert ("left alone on CPUs 28" in command["stdout"]) == is_left_alone


def test_a_table_says_once_what_brings_a_process_and_its_descendant_back(seen: Document) -> None:
    table = seen["lost"]["table"]
    assert table["status"] == 1
    (mismatch,) = re.findall(r"^.*: mismatch: .*$", table["stdout"], re.MULTILINE)
    assert re.fullmatch(
        r"process (\d+) \(.*\) and 1 descendant: mismatch: may run far from their GPUs \(remote\); "
        r"affinityd pin --tree --force \1 mends that",
        mismatch,
    )


def test_a_rank_asks_where_it_is_itself(seen: Document) -> None:
    unpinned, pinned = seen["itself"]["unpinned"], seen["itself"]["pinned"]
    assert (unpinned["status"], threads(unpinned)) == (1, [("unpinned", "0-31")])
    assert (pinned["status"], threads(pinned)) == (0, [("local", NEAR)])


def test_memory_that_was_filled_before_the_pin_is_found_on_request(seen: Document) -> None:
    memory = seen["far memory"]
    assert memory["filled, then pinned"]["status"] == 0
    found = memory["filled, then pinned, resident"]
    assert found["status"] == 1
    assert re.search(
        r"mismatch: \d+% of its resident memory .*; migratepages \d+ .* 3 moves it", found["stdout"]
    )


def test_memory_that_was_moved_as_was_said_is_near(seen: Document) -> None:
    assert seen["far memory"]["migratepages"]["status"] == 0, seen["far memory"]["migratepages"]
    assert seen["far memory"]["its pages moved"]["status"] == 0


def test_memory_that_is_bound_far_away_is_found_without_a_look_at_it(seen: Document) -> None:
    found = seen["far memory"]["bound far away"]
    assert found["status"] == 1
    assert (
        "mismatch: its memory policy is bind on node 1, and GPU 0 is on node 3" in found["stdout"]
    )


def test_memory_is_near_on_any_of_the_nearest_nodes_that_have_some(seen: Document) -> None:
    found = seen["far memory"]["no memory near"]
    assert found["status"] == 0, found["stdout"]
