"""Patience: which process is pinned at once, which waits or is given up; what is remembered."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from affinityd.audit.facts.gather import TICKS
from affinityd.cpuset import parse_list
from affinityd.enforce.decide import WAITS
from affinityd.enforce.model import PinAttempt, PinOutcome
from tests.support.enforced_node import NEAR_ALONE, NOW, TWO, Site, masks, moved, rank, said, worker

RANK = rank("0-7", "0-7")
IN_PLACE = moved(RANK, "0-3")
GIVEN_UP, DRIFTED, FITS = ["left given_up"], ["drifted unpinned"], ["fits"]


@pytest.mark.parametrize(
    ("age", "verdict"), [(0.0, ["left young"]), (9.9, ["left young"]), (10.1, DRIFTED)]
)
def test_a_process_that_has_just_started_may_yet_pin_itself(age: float, verdict: list[str]) -> None:
    start = int((NOW - age) * TICKS)
    (decision,) = Site(TWO).look(replace(RANK, start=start))
    assert (said(decision), decision.cause, decision.drifted) == (verdict, "unpinned", 2)
    if age == 0:
        assert decision.why == "it started 0 s ago, and is left alone for its first 10 s"
    assert said(*Site(TWO).look(replace(rank("0-3"), start=start))) == FITS


RESET = "its masks were reset 2 times in a row after a pin, by itself or by its scheduler: "
REFUSED = "its pin was refused 2 times in a row (EPERM: it is another's): "


@pytest.mark.parametrize(
    ("outcome", "happened", "count"),
    [
        (PinOutcome(pinned=2), RESET, 6),
        (PinOutcome(refused=2, error="EPERM: it is another's"), REFUSED, 0),
    ],
)
def test_what_is_reset_or_refused_is_given_up(
    outcome: PinOutcome, happened: str, count: int
) -> None:
    """There is a scan every 15 s; a reset that several of them see counts once."""
    site, tries, found = Site(TWO), [], {}
    for boot in range(0, 6000, 15):
        (found[boot],) = site.look(RANK, boot=NOW + boot)
        if found[boot].verdict == "drifted":
            tries.append(boot)
            site.backoff.note(PinAttempt(found[boot], outcome))
    assert [later - one for one, later in pairwise(tries)] == [15, 30, 60, 120, 240]
    assert found[30].why == f"{happened}the next pin is in 15 s"
    assert (found[30].cause, found[30].drifted) == ("unpinned", 2)
    end = f"{happened.replace('2', '6')}it is not pinned again until its cpuset changes"
    why = found[5985].why or ""
    assert why.startswith(f"{end}; check what it sets (OMP_PROC_BIND") if count else why == end
    assert {said(it)[0] for boot, it in found.items() if boot > tries[-1]} == {*GIVEN_UP}
    record = site.backoff.record(RANK)
    assert (site.backoff.resets, record.resets, record.pins) == (count, count, count)


def reset(times: int, policy: str = "") -> tuple[Site, float]:
    """Pin a process and have it reset so often, as soon as it is pinned again; return when."""
    site, boot = Site(TWO, policy), NOW
    site.pin(RANK, boot=boot)
    for wait in (*WAITS[1:], 0.0)[:times]:
        boot += wait + 1
        site.pin(RANK, boot=boot)
    return site, boot


@pytest.mark.parametrize("times", [1, 5])
def test_a_cpuset_that_was_rewritten_begins_the_count_anew(times: int) -> None:
    site, boot = reset(times, NEAR_ALONE)
    assert said(*site.look(RANK, boot=boot + 1)) in (["left waiting"], GIVEN_UP)
    rewritten = moved(replace(RANK, cpuset=parse_list("0-5")), "0-5")
    (pinned,) = site.pin(rewritten, boot=boot + 2)
    assert masks(pinned) == ["0-3", "0-3"]
    assert said(*site.look(rewritten, boot=boot + 3)) == ["left waiting"]
    assert said(*site.look(rewritten, boot=boot + 33)) == ["drifted mask"]


def test_an_hours_rest_in_place_begins_the_count_anew() -> None:
    site, boot = reset(5)
    for seconds, process, verdict in (
        (1, RANK, GIVEN_UP),
        (15, IN_PLACE, FITS),
        (3600, RANK, GIVEN_UP),
        (3610, IN_PLACE, FITS),
        (7200, RANK, DRIFTED),
    ):
        assert said(*site.look(process, boot=boot + seconds)) == verdict
    assert site.backoff.resets == 5 + 3  # each time that it had been in place


def test_a_plan_that_changes_is_followed_at_once_and_is_no_reset() -> None:
    site, its = Site(TWO), RANK
    plans = [(Site(TWO, f"mode = '{mode}'").policy, mode) for mode in ("single", "node")]
    for second in range(20):
        site.policy, mode = plans[second % 2]
        (its,) = site.pin(its, boot=NOW + second)
        assert masks(its) == [{"single": "0", "node": "0-3"}[mode]] * 2
    assert (site.backoff.resets, site.backoff.record(its).pins) == (0, 20)


def test_observing_never_counts() -> None:
    site = Site(TWO)
    for second in range(0, 600, 15):
        assert said(*site.look(RANK, boot=NOW + second)) == DRIFTED
    assert (site.backoff.resets, site.backoff.record(RANK).pins) == (0, 0)


def test_a_process_that_was_not_seen_is_remembered_for_a_while_and_by_its_start() -> None:
    site, boot = reset(5)
    site.look(boot=boot + 599)
    assert said(*site.look(RANK, boot=boot + 600)) == GIVEN_UP
    assert said(*site.look(replace(RANK, start=RANK.start + 1), boot=boot + 600)) == DRIFTED
    site.look(boot=boot + 1201)
    assert said(*site.look(RANK, boot=boot + 1202)) == DRIFTED


def test_a_process_that_re_applies_an_older_mask_of_ours_waits_as_any_other() -> None:
    site = Site(TWO, 'mode = "single"')
    (once,) = site.pin(RANK)
    site.policy = Site(TWO).policy
    (now,) = site.pin(once, boot=NOW + 15)
    assert (masks(once), masks(now), site.backoff.resets) == (["0"] * 2, ["0-3"] * 2, 0)
    pins = 0
    for boot in range(30, 1200, 15):
        pins += said(*site.look(once, boot=NOW + boot)) == ["drifted share"]
        site.pin(once, boot=NOW + boot)
    assert pins == 5
    assert said(*site.look(once, boot=NOW + 1200)) == GIVEN_UP


# What came of a pin.


@pytest.mark.parametrize(
    ("outcome", "pins"),
    [
        (PinOutcome(is_gone=True), 0),
        (PinOutcome(), 0),  # it found its place by itself
        (PinOutcome(pinned=1, is_settled=False, is_late=True), 1),
        (PinOutcome(pinned=1, refused=1, error="EBUSY"), 1),  # one of its threads
    ],
)
def test_what_was_pinned_in_part_has_reset_nothing(outcome: PinOutcome, pins: int) -> None:
    site = Site(TWO)
    (decision,) = site.look(RANK)
    for number in range(1, 11 if outcome.is_late else 2):
        site.backoff.note(PinAttempt(decision, outcome))
        assert site.backoff.record(RANK).pins == number * pins
        half = moved(RANK, "0-3", "0-7")
        assert said(*site.look(half, boot=NOW + 15 * number)) == DRIFTED
    assert site.backoff.resets == 0


def test_a_mask_that_the_kernel_cut_is_ours_too() -> None:
    site = Site(TWO)
    loader = worker("0-7", of=RANK)
    _, decision = site.look(RANK, loader)
    site.backoff.note(PinAttempt(decision, PinOutcome(pinned=1, cut=parse_list("2"))))
    site.policy = Site(TWO, 'mode = "single"').policy
    assert said(*site.look(RANK, moved(loader, "2"))) == [*DRIFTED, "drifted share"]
    assert said(*site.look(RANK, moved(loader, "3"))) == [*DRIFTED, "left on_purpose"]


@pytest.mark.parametrize(("masks_in_turn", "kept"), [(40, 16), (2, 4)])
def test_the_latest_masks_of_ours_are_remembered_each_once(masks_in_turn: int, kept: int) -> None:
    """Two plans in turn push no earlier one out."""
    site = Site(TWO)
    (decision,) = site.look(RANK)
    for turn in range(-1, 40):
        cut = parse_list("7" if turn < 0 else f"0,{turn % masks_in_turn + 1}")
        site.backoff.note(PinAttempt(decision, PinOutcome(pinned=2, cut=cut)))
    assert len(site.backoff.record(RANK).given) == kept
    assert parse_list("0-3") in site.backoff.given(RANK)
    assert (parse_list("7") in site.backoff.given(RANK)) == (masks_in_turn == 2)


def test_a_daemon_that_starts_anew_pins_nothing_that_fits() -> None:
    pinned = Site(TWO).pin(RANK, worker("0-7", of=RANK), rank("0-7", gpu=1))
    assert said(*Site(TWO).look(*pinned)) == FITS * 3
