"""What becomes of processes: verdicts, causes and reasons, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.facts.process import ProcessFacts
from affinityd.cpuset import parse_list
from affinityd.topology.model import Topology
from tests.support.enforced_node import NEAR_ALONE, NOW, TWO, Site, masks, moved, rank, said, worker
from tests.support.machines.facts import machine

DGX = machine("dgx-a100")  # GPU 0 is on node 3
GH200 = machine("gh200x4")  # GPU 1 is on the second of four nodes


RANK = rank("0-3")
FAR = rank("4-7")
ENDED = "Z"  #: the main thread has ended, and is not judged


def of_dgx(*masks: str) -> ProcessFacts:
    return rank(*masks, cpuset="0-300")


def of_gh200(*masks: str) -> ProcessFacts:
    return rank(*masks, gpu=1, cpuset="0-287")


def ended(*masks: str) -> ProcessFacts:
    return rank(*masks, state=ENDED)


@pytest.mark.parametrize(
    ("topology", "facts", "verdict", "drifted", "on_purpose"),
    [
        (DGX, of_dgx("0-15"), "drifted mask", 1, 0),
        (DGX, of_dgx("48-79"), "drifted mask", 1, 0),  # near and far
        (DGX, of_dgx("0-255"), "drifted unpinned", 1, 0),
        (DGX, of_dgx("48-63,176-191"), "fits", 0, 0),
        (DGX, of_dgx("48-63", "0-255"), "drifted unpinned", 1, 0),  # all that are online
        (DGX, of_dgx("50", "50"), "fits", 0, 0),  # an OpenMP runtime collapsed it, near
        (DGX, of_dgx("0", "0"), "drifted mask", 2, 0),  # or far
        (GH200, of_gh200("72-143"), "fits", 0, 0),
        (GH200, of_gh200("0-71"), "drifted mask", 1, 0),
        (TWO, rank("0-3", "4-7"), "left on_purpose", 0, 1),  # NCCL took its NIC's node
        (TWO, rank("0-7", "4-7"), "drifted unpinned", 1, 1),  # before the rest was pinned
        (TWO, rank("0-3", "0-7"), "drifted unpinned", 1, 0),  # one has its whole cpuset
        (TWO, rank("0-3", "2"), "fits", 0, 0),
        (TWO, rank("0-3", "5", "6"), "fits", 0, 2),  # OpenMP has a far core for each
        (TWO, rank("4", "4", "6"), "drifted mask", 2, 1),  # the main thread collapsed, far
        (TWO, rank("1", "1", "6"), "fits", 0, 1),  # or near
        (TWO, rank("4-7", "0-3"), "drifted mask", 1, 0),  # taskset without -a, on another
        (TWO, ended("4-7", "0-3"), "fits", 0, 0),
        (TWO, ended("0-3", "4-7"), "left on_purpose", 0, 1),
        (TWO, ended("0-3", "0-7"), "drifted unpinned", 1, 0),
        (TWO, ended("4-7", "4-7"), "drifted mask", 1, 0),  # what it had
    ],
)
def test_a_rank_is_to_run_on_its_gpus_node_and_a_thread_that_was_pinned_on_purpose_is_left(
    topology: Topology, facts: ProcessFacts, verdict: str, drifted: int, on_purpose: int
) -> None:
    (decision,) = Site(topology).look(facts)
    assert said(decision) == [verdict]
    assert (decision.drifted, decision.on_purpose) == (drifted, on_purpose)


@pytest.mark.parametrize("other", ["5-6", "4-7"])
def test_a_librarys_thread_stays_on_purpose_after_our_pin(other: str) -> None:
    """To the audit, too."""
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7", "0-7", other))
    assert masks(pinned) == ["0-3", "0-3", other]
    (decision,) = site.look(pinned)
    assert (said(decision), decision.on_purpose) == (["fits"], 1)
    assert not decision.process.is_mismatch


def test_a_worker_that_was_confined_is_left_and_one_that_inherited_is_not() -> None:
    site, launcher = Site(TWO), rank("0-7")
    masks_of = {901: "0-7", 902: "6 6", 903: "2"}
    started = [worker(*its.split(), of=launcher, pid=pid) for pid, its in masks_of.items()]
    decisions = site.look(launcher, *started)
    assert said(*decisions) == [*["drifted unpinned"] * 2, "left on_purpose", "fits"]
    assert decisions[2].why == "it was pinned to 6 on purpose; taskset -apc 0-7 902 resets it"
    later = site.pin(launcher, *started)
    assert said(*site.look(*later)) == ["fits", "fits", "left on_purpose", "fits"]


@pytest.mark.parametrize(
    ("process", "verdict", "counts"),
    [
        (worker("6", "0-7", of=RANK), "drifted unpinned", (1, 1)),  # a confined worker's stray
        (replace(worker("6", "0-3", of=RANK), state=ENDED), "fits", (0, 0)),
        (worker("4-5", of=RANK, cpuset="4-7"), "left allocation", (0, 0)),
    ],
)
def test_a_worker_is_judged_by_itself(
    process: ProcessFacts, verdict: str, counts: tuple[int, int]
) -> None:
    of_rank, of_worker = Site(TWO).look(RANK, process)
    assert said(of_rank, of_worker) == ["fits", verdict]
    assert (of_worker.drifted, of_worker.on_purpose) == counts


def test_a_worker_with_what_its_rank_had_at_first_has_inherited_it() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(FAR)
    assert said(*site.look(pinned, worker("4-7", of=pinned))) == ["fits", "drifted mask"]


def test_a_rank_that_collapses_later_is_pinned_with_its_threads() -> None:
    site = Site(TWO)
    facts = rank("0-3", "0-3", "5")
    assert said(*site.look(facts)) == ["fits"]
    (decision,) = site.look(moved(facts, "6", "6", "5"))
    assert (said(decision), decision.drifted, decision.on_purpose) == (["drifted mask"], 2, 1)


def test_a_launcher_far_from_its_own_gpu_is_not_said_to_be_near() -> None:
    """Below it is a process whose GPU has near CPUs in their cpuset."""
    launcher = rank("4-5", gpu=0, cpuset="4-7", pid=100)
    below = rank("4-7", gpu=1, cpuset="4-7", pid=200, parent=100)
    wide = moved(launcher, "4-7")
    assert said(*Site(TWO, reserved="7").look(wide, below)) == ["drifted mask", "drifted share"]


def test_it_is_told_which_threads_are_far_on_purpose() -> None:
    (decision,) = Site(TWO).look(rank("0-3", "4-7", "4-7", "2"))
    assert decision.why == (
        "2 threads of it (first 101) may run on CPUs 4-7: they were pinned on purpose; "
        "affinityd pin --force moves them"
    )


def test_a_mask_of_ours_that_the_cpuset_has_outgrown_is_widened_and_no_other() -> None:
    """The kernel keeps what was asked for, where it can (since Linux 6.2)."""
    site = Site(TWO, NEAR_ALONE)
    (pinned,) = site.pin(rank("0,4-7", cpuset="0,4-7"))
    assert masks(pinned) == ["0"]
    grown = replace(pinned, cpuset=parse_list("0-7"))
    (again,) = site.pin(grown, boot=NOW + 15)
    assert masks(again) == ["0-3"]
    assert site.backoff.resets == 0
    assert said(*site.look(again, boot=NOW + 30)) == ["fits"]
    assert said(*site.look(moved(again, "2"), boot=NOW + 45)) == ["fits"]
