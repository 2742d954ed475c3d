"""What becomes of processes: verdicts, causes and reasons, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.cpuset import parse_list
from affinityd.topology.model import Topology
from tests.support.enforced_node import (
    NEAR_ALONE,
    NOW,
    Site,
    masks,
    moved,
    places,
    rank,
    said,
    worker,
)
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
DGX = machine("dgx-a100")  # GPU 0 is on node 3
GH200 = machine("gh200x4")  # GPU 1 is on the second of four nodes


@pytest.mark.parametrize(
    ("topology", "gpu", "mask", "verdict"),
    [
        pytest.param(DGX, 0, "0-15", "drifted mask", id="far"),
        pytest.param(DGX, 0, "48-79", "drifted mask", id="near and far"),
        pytest.param(DGX, 0, "0-255", "drifted unpinned", id="nobody pinned it"),
        pytest.param(DGX, 0, "48-63,176-191", "fits", id="its node"),
        pytest.param(DGX, 0, "50", "fits", id="one near CPU: an OpenMP runtime collapsed it"),
        pytest.param(DGX, 0, "0", "drifted mask", id="one far CPU: another did"),
        pytest.param(GH200, 1, "72-143", "fits", id="a node of four"),
        pytest.param(GH200, 1, "0-71", "drifted mask", id="another of them"),
        pytest.param(GH200, 1, "0-287", "drifted unpinned", id="all of them"),
    ],
)
def test_a_rank_is_to_run_on_its_gpus_node(
    topology: Topology, gpu: int, mask: str, verdict: str
) -> None:
    facts = rank(mask, mask, gpu=gpu, cpuset="0-287")
    (decision,) = Site(topology).look(facts)
    assert said(decision) == [verdict]
    assert decision.drifted == (0 if verdict == "fits" else 2)


@pytest.mark.parametrize(
    ("cpuset", "place"),
    [
        pytest.param("40-70", "48-63", id="a part of it is near"),
        pytest.param("63-64", "63", id="one CPU is"),
        pytest.param("48-50", "48-50", id="all of it is"),
        pytest.param("0-300", "48-63,176-191", id="some of it is offline"),
    ],
)
def test_never_outside_of_its_cpuset(cpuset: str, place: str) -> None:
    decisions = Site(DGX, NEAR_ALONE).look(rank(cpuset, cpuset=cpuset))
    assert places(decisions) == [place]


def test_a_thread_with_all_cpus_that_are_online_is_nobodys_purpose() -> None:
    (decision,) = Site(DGX).look(rank("48-63", "0-255", cpuset="0-300"))
    assert said(decision) == ["drifted unpinned"]


RANK = rank("0-3")
FAR = rank("4-7")


@pytest.mark.parametrize(
    ("threads", "verdict", "on_purpose"),
    [
        pytest.param(["0-3", "0-3"], "fits", 0, id="all in place"),
        pytest.param(["0-3", "4-7"], "left on_purpose", 1, id="NCCL took the node of its NIC"),
        pytest.param(["0-7", "4-7"], "drifted unpinned", 1, id="before anybody pinned the rest"),
        pytest.param(["0-3", "0-7"], "drifted unpinned", 0, id="a thread has its whole cpuset"),
        pytest.param(["0-3", "2"], "fits", 0, id="a thread has a CPU of its own, near"),
        pytest.param(["0-3", "5", "6"], "fits", 2, id="OpenMP has a far core for each"),
        pytest.param(["4", "4", "6"], "drifted mask", 1, id="the main thread collapsed, far"),
        pytest.param(["1", "1", "6"], "fits", 1, id="or near"),
        pytest.param(["4-7", "0-3"], "drifted mask", 0, id="taskset without -a, on another"),
    ],
)
def test_a_thread_that_somebody_pinned_on_purpose_is_left(
    threads: list[str], verdict: str, on_purpose: int
) -> None:
    (decision,) = Site(TWO).look(rank(*threads))
    assert said(decision) == [verdict]
    assert decision.on_purpose == on_purpose


def test_a_librarys_thread_stays_on_purpose_after_our_pin() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7", "0-7", "5-6"))
    assert masks(pinned) == ["0-3", "0-3", "5-6"]
    (decision,) = site.look(pinned)
    assert said(decision) == ["fits"]
    assert decision.on_purpose == 1


def test_a_worker_that_somebody_confined_is_left_and_one_that_inherited_is_not() -> None:
    launcher = rank("0-7")
    started = [
        worker("0-7", of=launcher, pid=901),
        worker("6", of=launcher, pid=902),
        worker("2", of=launcher, pid=903),
    ]
    site = Site(TWO)
    decisions = site.look(launcher, *started)
    assert said(*decisions) == [
        "drifted unpinned",
        "drifted unpinned",
        "left on_purpose",
        "fits",
    ]
    assert decisions[2].why == (
        "somebody pinned it to 6 on purpose; taskset -apc 0-7 902 gives it back to its job"
    )
    later = site.pin(launcher, *started)
    assert said(*site.look(*later)) == ["fits", "fits", "left on_purpose", "fits"]


def test_a_worker_with_what_its_rank_had_at_first_has_inherited_it() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(FAR)
    late = worker("4-7", of=pinned)
    assert said(*site.look(pinned, late)) == ["fits", "drifted mask"]


def test_a_confined_workers_stray_thread_is_pinned_alone() -> None:
    (_, decision) = Site(TWO).look(RANK, worker("6", "0-7", of=RANK))
    assert said(decision) == ["drifted unpinned"]
    assert (decision.drifted, decision.on_purpose) == (1, 1)


def test_a_mask_that_we_gave_under_another_plan_is_nobodys_purpose() -> None:
    site = Site(TWO, 'mode = "unique_contiguous"')
    mates = [rank("0-7", pid=100, gpu=0), rank("0-7", pid=200, gpu=1)]
    pinned = site.pin(*mates)
    assert [masks(facts) for facts in pinned] == [["0-3"], ["4-7"]]
    site.policy = Site(TWO, 'mode = "single"').policy
    assert said(*site.look(*pinned)) == ["drifted share", "drifted share"]


@pytest.mark.parametrize(
    ("threads", "verdict"),
    [
        pytest.param(["4-7", "0-3"], "fits", id="the others are in place"),
        pytest.param(["0-3", "4-7"], "left on_purpose", id="one is elsewhere on purpose"),
        pytest.param(["0-3", "0-7"], "drifted unpinned", id="one has drifted"),
        pytest.param(["4-7", "4-7"], "drifted mask", id="one has what the main one had"),
    ],
)
def test_a_main_thread_that_has_ended_is_not_judged(threads: list[str], verdict: str) -> None:
    assert said(*Site(TWO).look(rank(*threads, state="Z"))) == [verdict]


def test_a_worker_whose_main_thread_has_ended_is_not_left_for_its_mask() -> None:
    ended = replace(worker("6", "0-3", of=RANK), state="Z")
    assert said(*Site(TWO).look(RANK, ended)) == ["fits", "fits"]


def test_a_rank_that_collapses_later_is_pinned_with_its_threads() -> None:
    site = Site(TWO)
    facts = rank("0-3", "0-3", "5")
    assert said(*site.look(facts)) == ["fits"]
    (decision,) = site.look(moved(facts, "6", "6", "5"))
    assert (said(decision), decision.drifted, decision.on_purpose) == (["drifted mask"], 2, 1)


SHARED = 'share = "requested"\nmode = "unique_contiguous"'


def test_a_rank_on_another_ranks_cpus_near_its_own_gpu_is_to_share_them() -> None:
    topology = made({0: "0-7", 1: "8-15"}, gpus=[0, 0])
    mates = [rank("0-7", gpu=gpu, cpuset="0-15") for gpu in (0, 1)]
    decisions = Site(topology, f"{NEAR_ALONE}\n{SHARED}").look(*mates)
    assert said(*decisions) == ["drifted share"] * 2
    assert places(decisions) == ["0-3", "4-7"]


def test_a_workers_allocation_is_its_own() -> None:
    """It may be in a cpuset of its own below that of whom it works for."""
    decisions = Site(TWO).look(RANK, worker("4-5", of=RANK, cpuset="4-7"))
    assert said(*decisions) == ["fits", "left allocation"]


def test_a_launcher_far_from_its_own_gpu_is_not_said_to_be_near() -> None:
    """Below it is a process whose GPU has near CPUs in their cpuset."""
    launcher = rank("4-5", gpu=0, cpuset="4-7", pid=100)
    below = rank("4-7", gpu=1, cpuset="4-7", pid=200, parent=100)
    wide = moved(launcher, "4-7")
    assert said(*Site(TWO, reserved="7").look(wide, below)) == ["drifted mask", "drifted share"]


def test_who_has_drifted_is_told_from_where_to_where() -> None:
    (decision,) = Site(TWO).look(rank("4-6", "0-7"))
    assert decision.why == "it may run on CPUs 0-7, and is to run on 0-3"


def test_of_whom_a_thread_is_far_on_purpose_it_is_told_which() -> None:
    (decision,) = Site(TWO).look(rank("0-3", "4-7", "4-7", "2"))
    assert decision.why == (
        "2 threads of it (first 101) may run on CPUs 4-7: somebody chose them; affinityd pin "
        "--force moves them"
    )


def test_a_librarys_far_node_is_its_own_choice_to_the_audit_too_after_our_pin() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7", "0-7", "4-7"))
    assert masks(pinned) == ["0-3", "0-3", "4-7"]
    (decision,) = site.look(pinned)
    assert said(decision) == ["fits"]
    assert (decision.on_purpose, decision.process.is_mismatch) == (1, False)


def test_a_mask_of_ours_that_the_cpuset_has_outgrown_is_widened() -> None:
    """The kernel keeps what was asked for, where it can (since Linux 6.2)."""
    site = Site(TWO, NEAR_ALONE)
    (pinned,) = site.pin(rank("0,4-7", cpuset="0,4-7"))
    assert masks(pinned) == ["0"]
    grown = replace(pinned, cpuset=parse_list("0-7"))
    (again,) = site.pin(grown, boot=NOW + 15)
    assert masks(again) == ["0-3"]
    assert site.backoff.resets == 0
    assert said(*site.look(again, boot=NOW + 30)) == ["fits"]


def test_a_narrower_mask_that_somebody_else_chose_is_not_widened() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7"))
    assert said(*site.look(moved(pinned, "2"), boot=NOW + 15)) == ["fits"]
