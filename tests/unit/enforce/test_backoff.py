"""Patience: who is pinned at once, who waits, and who is given up; and what is remembered."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from affinityd.audit.gather import TICKS
from affinityd.cpuset import parse_list
from affinityd.enforce.backoff import WAITS
from affinityd.enforce.model import PinAttempt, PinOutcome
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

TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
RANK = rank("0-7", "0-7")


@pytest.mark.parametrize(
    ("age", "verdict"),
    [
        pytest.param(0.0, "left young", id="it starts"),
        pytest.param(9.9, "left young", id="it may yet pin itself"),
        pytest.param(10.1, "drifted unpinned", id="it did not"),
    ],
)
def test_who_has_just_started_is_let_alone(age: float, verdict: str) -> None:
    facts = replace(RANK, start=int((NOW - age) * TICKS))
    (decision,) = Site(TWO).look(facts)
    assert said(decision) == [verdict]
    assert (decision.cause, decision.drifted) == ("unpinned", 2)


def test_who_is_young_is_told_how_young() -> None:
    (decision,) = Site(TWO).look(replace(RANK, start=int((NOW - 4) * TICKS)))
    assert decision.why == "it started 4 s ago, and is let alone for its first 10 s"


def test_who_is_young_and_runs_where_it_is_to_fits() -> None:
    assert said(*Site(TWO).look(replace(rank("0-3"), start=int(NOW * TICKS)))) == ["fits"]


def test_who_is_reset_again_and_again_waits_ever_longer_and_is_given_up() -> None:
    """Its masks are gone at every scan; there is one every 15 s."""
    site, pins = Site(TWO), []
    reasons = {}
    for boot in range(0, 1200, 15):
        (decision,) = site.look(RANK, boot=NOW + boot)
        reasons[boot] = decision.reason
        if decision.reason is None:
            site.pin(RANK, boot=NOW + boot)
            pins.append(boot)
    waits = [later - pin for pin, later in pairwise(pins)]
    assert waits == [15, 30, 60, 120, 240]
    assert reasons[30] == "waiting"
    assert {reason for boot, reason in reasons.items() if boot > pins[-1]} == {"given_up"}
    assert (
        site.backoff.resets,
        site.backoff.record(RANK).resets,
        site.backoff.record(RANK).pins,
    ) == (6,) * 3


def reset(site: Site, times: int, boot: float = NOW) -> float:
    """Pin a process and have it reset so often, as soon as it is pinned again; return when."""
    site.pin(RANK, boot=boot)
    for wait in (*WAITS[1:], 0.0)[:times]:
        boot += wait + 1
        site.pin(RANK, boot=boot)
    return boot


def test_what_waits_or_was_given_up_keeps_its_cause_and_says_what_happened() -> None:
    site = Site(TWO)
    boot = reset(site, 1)
    (waiting,) = site.look(RANK, boot=boot + 10)
    assert said(waiting) == ["left waiting"]
    assert (waiting.cause, waiting.drifted, places([waiting])) == ("unpinned", 2, ["0-3"])
    assert waiting.why == (
        "something in it, or its scheduler, set its masks anew after a pin, 2 times in a row: the "
        "next pin is in 20 s"
    )
    site = Site(TWO)
    boot = reset(site, 5)
    (given_up,) = site.look(RANK, boot=boot + 1000)
    assert said(given_up) == ["left given_up"]
    assert (given_up.why or "").startswith(
        "something in it, or its scheduler, set its masks anew after a pin, 6 times in a row: it "
        "is pinned no more until its cpuset changes; "
    )


@pytest.mark.parametrize("times", [1, 5])
def test_a_cpuset_that_somebody_rewrote_begins_the_count_anew(times: int) -> None:
    site = Site(TWO, NEAR_ALONE)
    boot = reset(site, times)
    assert said(*site.look(RANK, boot=boot + 1)) in (["left waiting"], ["left given_up"])
    rewritten = moved(replace(RANK, cpuset=parse_list("0-5")), "0-5")
    (pinned,) = site.pin(rewritten, boot=boot + 2)
    assert masks(pinned) == ["0-3", "0-3"]
    assert said(*site.look(rewritten, boot=boot + 3)) == ["left waiting"]
    assert said(*site.look(rewritten, boot=boot + 33)) == ["drifted mask"]


def test_an_hours_rest_begins_the_count_anew() -> None:
    site = Site(TWO)
    boot = reset(site, 5)
    resting = moved(RANK, "0-3")
    assert said(*site.look(resting, boot=boot + 500)) == ["fits"]
    for seconds in range(500, 3600, 500):
        site.look(resting, boot=boot + seconds)
    assert said(*site.look(RANK, boot=boot + 3600)) == ["drifted unpinned"]


def test_who_was_given_up_stays_so_however_long_it_takes() -> None:
    site = Site(TWO)
    boot = reset(site, 5)
    for seconds in range(0, 20_000, 500):
        (decision,) = site.look(RANK, boot=boot + 1 + seconds)
        assert said(decision) == ["left given_up"]


def test_a_plan_that_changes_is_followed_at_once_and_is_no_reset() -> None:
    topology = made({0: "0-7", 1: "8-15"}, gpus=[0, 0])
    site = Site(topology)
    policies = [
        Site(topology, f'{NEAR_ALONE}\nshare = "requested"\nmode = "unique_{how}"').policy
        for how in ("contiguous", "interleaved")
    ]
    mates = [rank("0-15", gpu=gpu, cpuset="0-15") for gpu in (0, 1)]
    for second in range(20):
        site.policy = policies[second % 2]
        mates = site.pin(*mates, boot=NOW + second)
        assert masks(mates[1]) == [("4-7", "1,3,5,7")[second % 2]]
    assert (site.backoff.resets, site.backoff.record(mates[1]).pins) == (0, 20)


def test_a_reset_that_is_seen_often_counts_once() -> None:
    site = Site(TWO)
    boot = reset(site, 1)
    for second in range(20):
        site.look(RANK, boot=boot + second)
    assert site.backoff.resets == 2


def test_observing_never_counts() -> None:
    site = Site(TWO)
    for second in range(0, 600, 15):
        assert said(*site.look(RANK, boot=NOW + second)) == ["drifted unpinned"]
    assert (site.backoff.resets, site.backoff.record(RANK).pins) == (0, 0)


def test_who_was_not_seen_for_a_while_is_remembered_and_after_long_it_is_not() -> None:
    site = Site(TWO)
    boot = reset(site, 5)
    site.look(boot=boot + 599)
    assert said(*site.look(RANK, boot=boot + 600)) == ["left given_up"]
    site.look(boot=boot + 1201)
    assert said(*site.look(RANK, boot=boot + 1202)) == ["drifted unpinned"]


def test_another_process_by_the_same_number_is_another() -> None:
    site = Site(TWO)
    boot = reset(site, 5)
    other = replace(RANK, start=RANK.start + 1)
    assert said(*site.look(RANK, boot=boot + 1)) == ["left given_up"]
    assert said(*site.look(other, boot=boot + 2)) == ["drifted unpinned"]


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(PinOutcome(is_gone=True), id="it had ended"),
        pytest.param(PinOutcome(), id="it had found its place by itself"),
    ],
)
def test_what_was_not_pinned_is_no_pin(outcome: PinOutcome) -> None:
    site = Site(TWO)
    (decision,) = site.look(RANK)
    site.backoff.note(PinAttempt(decision, outcome))
    assert site.backoff.record(RANK).last_pin is None
    assert said(*site.look(RANK)) == ["drifted unpinned"]


def test_who_is_refused_is_tried_ever_later_and_then_no_more() -> None:
    site, tries, why = Site(TWO), [], {}
    refused = PinOutcome(refused=2, error="EPERM: it is another's")
    for boot in range(0, 1200, 15):
        (decision,) = site.look(RANK, boot=NOW + boot)
        why[boot] = decision.why
        if decision.verdict == "drifted":
            tries.append(boot)
            site.backoff.note(PinAttempt(decision, refused))
    assert [later - one for one, later in pairwise(tries)] == [15, 30, 60, 120, 240]
    assert why[30] == (
        "its pin was refused, 2 times in a row (EPERM: it is another's): the next pin is in 15 s"
    )
    assert why[1185] == (
        "its pin was refused, 6 times in a row (EPERM: it is another's): it is pinned no more "
        "until its cpuset changes"
    )
    assert (site.backoff.resets, site.backoff.record(RANK).pins) == (0, 0)


def test_who_re_applies_an_older_mask_of_ours_waits_as_any_other() -> None:
    site = Site(TWO, 'mode = "single"')
    (once,) = site.pin(RANK)
    site.policy = Site(TWO).policy
    (now,) = site.pin(once, boot=NOW + 15)
    assert (masks(once), masks(now), site.backoff.resets) == (["0"] * 2, ["0-3"] * 2, 0)
    pins = 0
    for boot in range(30, 1200, 15):
        decisions = site.look(once, boot=NOW + boot)
        pins += said(*decisions) == ["drifted share"]
        site.pin(once, boot=NOW + boot)
    assert pins == 5
    assert said(*site.look(once, boot=NOW + 1200)) == ["left given_up"]


def test_who_was_given_up_and_was_in_place_for_an_hour_is_pinned_again() -> None:
    site = Site(TWO)
    boot = reset(site, 5)
    assert said(*site.look(RANK, boot=boot + 1)) == ["left given_up"]
    assert said(*site.look(moved(RANK, "0-3"), boot=boot + 15)) == ["fits"]
    assert said(*site.look(RANK, boot=boot + 3590)) == ["left given_up"]
    assert said(*site.look(moved(RANK, "0-3"), boot=boot + 3600)) == ["fits"]
    assert said(*site.look(RANK, boot=boot + 8000)) == ["drifted unpinned"]


def test_who_was_not_finished_as_time_was_up_has_reset_nothing() -> None:
    site = Site(TWO)
    (decision,) = site.look(RANK)
    late = PinOutcome(pinned=1, is_settled=False, is_late=True)
    for boot in range(0, 150, 15):
        site.backoff.note(PinAttempt(decision, late))
        half = moved(RANK, "0-3", "0-7")
        assert said(*site.look(half, boot=NOW + boot + 15)) == ["drifted unpinned"]
    assert site.backoff.resets == 0


def test_of_whom_some_threads_were_refused_the_others_count_as_pinned() -> None:
    site = Site(TWO)
    (decision,) = site.look(RANK)
    site.backoff.note(PinAttempt(decision, PinOutcome(pinned=1, refused=1, error="EBUSY")))
    assert site.backoff.record(RANK).pins == 1
    half = moved(RANK, "0-3", "0-7")
    assert said(*site.look(half, boot=NOW + 1)) == ["drifted unpinned"]
    assert site.backoff.resets == 0


def test_a_mask_that_the_kernel_cut_is_ours_too() -> None:
    site = Site(TWO)
    loader = worker("0-7", of=RANK)
    _, decision = site.look(RANK, loader)
    site.backoff.note(PinAttempt(decision, PinOutcome(pinned=1, cut=parse_list("2"))))
    site.policy = Site(TWO, 'mode = "single"').policy
    assert said(*site.look(RANK, moved(loader, "2"))) == ["drifted unpinned", "drifted share"]
    assert said(*site.look(RANK, moved(loader, "3"))) == ["drifted unpinned", "left on_purpose"]


def test_a_processs_memory_of_masks_is_bounded() -> None:
    site = Site(TWO)
    (decision,) = site.look(RANK)
    for cpu in range(40):
        site.backoff.note(
            PinAttempt(decision, PinOutcome(pinned=2, cut=parse_list(f"0,{cpu + 1}")))
        )
    assert len(site.backoff.record(RANK).given) == 16
    assert parse_list("0-3") in site.backoff.given(RANK)


def test_two_plans_in_turn_push_no_earlier_mask_out() -> None:
    site = Site(TWO)
    (decision,) = site.look(RANK)
    site.backoff.note(PinAttempt(decision, PinOutcome(pinned=2, cut=parse_list("3"))))
    for turn in range(40):
        site.backoff.note(PinAttempt(decision, PinOutcome(pinned=2, cut=parse_list(f"{turn % 2}"))))
    assert parse_list("3") in site.backoff.given(RANK)


def test_a_daemon_that_starts_anew_pins_nothing_that_fits() -> None:
    pinned = Site(TWO).pin(RANK, worker("0-7", of=RANK), rank("0-7", gpu=1))
    assert said(*Site(TWO).look(*pinned)) == ["fits"] * 3
