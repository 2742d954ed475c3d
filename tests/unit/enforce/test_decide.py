"""Which processes enforcement pins, which it leaves alone and why, and when it tries again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from affinityd.audit.gather import TICKS
from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import parse_list
from affinityd.daemon.metrics.enforcement import drifts_of
from affinityd.enforce.decide import WAITS
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from affinityd.linux.pinning import PinResult
from affinityd.topology.model import Topology
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER
from tests.support.enforce_reports import done, result
from tests.support.enforced_node import (
    NEAR_ALONE,
    NO_JOB,
    NOW,
    TWO,
    Site,
    masks,
    moved,
    rank,
    said,
    worker,
)
from tests.support.machines.by_hand import made
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
def test_a_rank_belongs_on_its_gpus_node_and_threads_pinned_on_purpose_stay(
    topology: Topology, facts: ProcessFacts, verdict: str, drifted: int, on_purpose: int
) -> None:
    (decision,) = Site(topology).look(facts)
    assert said(decision) == [verdict]
    assert (decision.drifted, decision.on_purpose) == (drifted, on_purpose)


@pytest.mark.parametrize("other", ["5-6", "4-7"])
def test_a_thread_pinned_by_a_library_stays_after_a_pin(other: str) -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7", "0-7", other))
    assert masks(pinned) == ["0-3", "0-3", other]
    (decision,) = site.look(pinned)
    assert (said(decision), decision.on_purpose) == (["fits"], 1)
    assert not decision.process.is_mismatch


def test_a_confined_worker_is_left_and_one_with_an_inherited_mask_is_pinned() -> None:
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
def test_a_worker_is_judged_by_its_own_masks(
    process: ProcessFacts, verdict: str, counts: tuple[int, int]
) -> None:
    of_rank, of_worker = Site(TWO).look(RANK, process)
    assert said(of_rank, of_worker) == ["fits", verdict]
    assert (of_worker.drifted, of_worker.on_purpose) == counts


def test_a_worker_with_its_ranks_first_mask_has_inherited_it() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(FAR)
    assert said(*site.look(pinned, worker("4-7", of=pinned))) == ["fits", "drifted mask"]


def test_a_rank_that_narrows_itself_later_is_pinned_with_its_threads() -> None:
    site = Site(TWO)
    facts = rank("0-3", "0-3", "5")
    assert said(*site.look(facts)) == ["fits"]
    (decision,) = site.look(moved(facts, "6", "6", "5"))
    assert (said(decision), decision.drifted, decision.on_purpose) == (["drifted mask"], 2, 1)


def test_only_a_mask_of_affinityd_is_widened_when_the_cpuset_grows() -> None:
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


LOST = made({0: "0-3", 1: "4-7"}, gpus=[0, None])
OVER = "Slurm job 7 has ended: it has no slurmstepd any more"
OFF = {100: Who(switch="off")}


LONE = rank("0-7", membership=NO_JOB)
IN_A = replace(LONE, cgroups="3:cpuset:/\n0::/a\n")
IN_CONTAINER = rank("4-7", cpuset="4-7", membership=LONE_CONTAINER)
RULE_2 = "[[rule]]\nuid = 0\n[[rule]]\nuid = 1000\nleave = true"
TOO_MANY = Site(TWO, "min_physical_cores = 5")


@pytest.mark.parametrize(
    ("site", "facts", "reason", "quoted"),
    [
        (Site(TWO), IN_A, "no_job", "'/a'"),
        (Site(TWO), LONE, "no_job", "roots of their hierarchies"),
        (Site(TWO, None), RANK, "no_policy", "correct the policy file"),
        (Site(TWO, "leave = true"), RANK, "policy", "the top level"),
        (Site(TWO, RULE_2), RANK, "policy", "rule 2"),
        (Site(TWO, identities=OFF), RANK, "opted_out", "process 100"),
        (Site(LOST), rank("0-7", beside=(("nvidia", 1),)), "unknown_place", "GPU 1"),
        (Site(TWO), rank("0-7", cpuset=None), "unknown_cpuset", "process 100"),
        (Site(TWO), rank("4-7", cpuset="4-7"), "allocation", "near CPUs 0-3"),
        (Site(TWO), IN_CONTAINER, "allocation", "4-7 (container cd34cd34cd34)"),
        (Site(TWO, reserved="0-2"), rank("2-7", cpuset="2,4-7"), "no_plan", "near GPU 0, 2"),
        (TOO_MANY, RANK, "no_plan", "4 physical cores, fewer than 5"),
    ],
)
def test_a_process_is_left_for_a_reason_that_its_sentence_explains(
    site: Site, facts: ProcessFacts, reason: str, quoted: str
) -> None:
    (decision,) = site.look(facts)
    assert (decision.verdict, decision.reason) == ("left", reason)
    assert quoted in str(decision.why)


@pytest.mark.parametrize(
    ("threads", "is_confined", "verdict"),
    [
        ("4-5", True, "drifted mask"),  # its cpuset is its allocation
        ("4-5", False, "left unknown_cpuset"),  # its mask may be
        ("4-5 0-7", False, "left unknown_cpuset"),  # whatever a thread has
        ("0-1", False, "fits"),
        ("0-7", False, "drifted unpinned"),  # it was given no part
    ],
)
def test_a_job_confined_by_masks_alone_is_left(
    threads: str, is_confined: bool, verdict: str
) -> None:
    facts = replace(rank(*threads.split()), is_confined=is_confined)
    assert said(*Site(TWO).look(facts)) == [verdict]


def test_orphans_and_known_daemons_and_their_workers_are_not_pinned() -> None:
    site = Site(TWO)
    found = site.audited(rank("0-7", membership=KUBERNETES_POD))
    decisions = site.look(replace(found, orphan=OVER), worker("0-7", of=found.facts))
    assert said(*decisions) == ["left orphan"] * 2
    assert all(str(it.why).startswith(f"{OVER}; it may still compute: ") for it in decisions)
    decisions = site.look(replace(found, is_daemon=True), worker("0-7", of=found.facts))
    assert said(*decisions) == ["left daemon"] * 2


# What is only observed: what a pin would do is said, and nothing is pinned.

PILOT = 'observe = true\n[[rule]]\npartition = "pilot"\nobserve = false'
TRIAL = '[[rule]]\npartition = "trial"\nobserve = true'
UNREAD = Who(unread=frozenset(("partition", "account", "user", "environment")))
BY_JOB = "AFFINITYD=observe is in the environment of process 100 of its job"
IS_UNREAD = (
    "the environment of process 100 of its job cannot be read, and may have AFFINITYD=off: give "
    "the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
)
BY_TOP = "the top level of the policy says observe"
BY_RULE = "rule 1 of the policy says observe"


@pytest.mark.parametrize(
    ("policy", "who", "because"),
    [
        ("", Who(switch="observe"), BY_JOB),
        ("", Who(switch="observe", unread=frozenset({"environment"})), IS_UNREAD),
        (TRIAL, Who(partition="trial"), BY_RULE),
        (PILOT, Who(partition="a"), BY_TOP),
        (PILOT, Who(partition="pilot"), None),
        (PILOT, Who(partition="pilot", switch="observe"), BY_JOB),
        (PILOT, UNREAD, BY_TOP),  # whether the rule means it is not known
    ],
)
def test_an_observed_process_is_reported_and_not_pinned(
    policy: str, who: Who, because: str | None
) -> None:
    where = "it may run on CPUs 4-7, and should run on 0-3"
    decisions = Site(TWO, policy, identities={100: who}).look(FAR, worker("4-7", of=FAR))
    assert said(*decisions) == ["drifted mask"] * 2
    why = f"{where}; it is not pinned: {because}" if because else where
    assert {(it.is_observed, it.why) for it in decisions} == {(because is not None, why)}
    assert drifts_of(decisions)["nvidia", 0] == {"mask": 2}


def test_the_first_process_of_a_job_decides_whether_it_is_observed() -> None:
    identities = {200: Who(switch="observe")}
    first = rank("0-3", gpu=1, start=4)
    decisions = Site(TWO, identities=identities).look(FAR, first)
    assert [it.is_observed for it in decisions] == [True, True]


UNPINNED_RANK = rank("0-7", "0-7")
IN_PLACE = moved(UNPINNED_RANK, "0-3")
GIVEN_UP, DRIFTED, FITS = ["left given_up"], ["drifted unpinned"], ["fits"]


@pytest.mark.parametrize(
    ("age", "verdict"), [(0.0, ["left young"]), (9.9, ["left young"]), (10.1, DRIFTED)]
)
def test_a_young_process_is_left_since_it_may_pin_itself(age: float, verdict: list[str]) -> None:
    start = int((NOW - age) * TICKS)
    (decision,) = Site(TWO).look(replace(UNPINNED_RANK, start=start))
    assert (said(decision), decision.cause, decision.drifted) == (verdict, "unpinned", 2)
    if age == 0:
        assert decision.why == "it started 0 s ago, and is left alone for its first 10 s"
    assert said(*Site(TWO).look(replace(rank("0-3"), start=start))) == FITS


RESET = "its masks were reset 2 times in a row after a pin, by itself or by its scheduler: "
REFUSED = "its pin was refused 2 times in a row (EPERM: it is another's): "


@pytest.mark.parametrize(
    ("outcome", "happened", "count"),
    [
        (result(2), RESET, 6),
        (result(refused=2, error="EPERM: it is another's"), REFUSED, 0),
    ],
)
def test_a_process_that_is_reset_or_refused_repeatedly_is_given_up(
    outcome: PinResult, happened: str, count: int
) -> None:
    """There is a scan every 15 s; a reset that several of them see counts once."""
    site, tries, found = Site(TWO), [], {}
    for boot in range(0, 6000, 15):
        (found[boot],) = site.look(UNPINNED_RANK, boot=NOW + boot)
        if found[boot].verdict == "drifted":
            tries.append(boot)
            site.backoff.note(done(found[boot], outcome))
    assert [later - one for one, later in pairwise(tries)] == [15, 30, 60, 120, 240]
    assert found[30].why == f"{happened}the next pin is in 15 s"
    assert (found[30].cause, found[30].drifted) == ("unpinned", 2)
    end = f"{happened.replace('2', '6')}it is not pinned again until its cpuset changes"
    why = found[5985].why or ""
    assert why.startswith(f"{end}; check what it sets (OMP_PROC_BIND") if count else why == end
    assert {said(it)[0] for boot, it in found.items() if boot > tries[-1]} == {*GIVEN_UP}
    record = site.backoff.record(UNPINNED_RANK)
    assert (site.backoff.resets, record.resets, record.pins) == (count, count, count)


def reset(times: int, policy: str = "") -> tuple[Site, float]:
    """Pin a process and have it reset so often, as soon as it is pinned again; return when."""
    site, boot = Site(TWO, policy), NOW
    site.pin(UNPINNED_RANK, boot=boot)
    for wait in (*WAITS[1:], 0.0)[:times]:
        boot += wait + 1
        site.pin(UNPINNED_RANK, boot=boot)
    return site, boot


@pytest.mark.parametrize("times", [1, 5])
def test_a_rewritten_cpuset_restarts_the_count_of_resets(times: int) -> None:
    site, boot = reset(times, NEAR_ALONE)
    assert said(*site.look(UNPINNED_RANK, boot=boot + 1)) in (["left waiting"], GIVEN_UP)
    rewritten = moved(replace(UNPINNED_RANK, cpuset=parse_list("0-5")), "0-5")
    (pinned,) = site.pin(rewritten, boot=boot + 2)
    assert masks(pinned) == ["0-3", "0-3"]
    assert said(*site.look(rewritten, boot=boot + 3)) == ["left waiting"]
    assert said(*site.look(rewritten, boot=boot + 33)) == ["drifted mask"]


def test_an_hour_without_a_reset_restarts_the_count() -> None:
    site, boot = reset(5)
    for seconds, process, verdict in (
        (1, UNPINNED_RANK, GIVEN_UP),
        (15, IN_PLACE, FITS),
        (3600, UNPINNED_RANK, GIVEN_UP),
        (3610, IN_PLACE, FITS),
        (7200, UNPINNED_RANK, DRIFTED),
    ):
        assert said(*site.look(process, boot=boot + seconds)) == verdict
    assert site.backoff.resets == 5 + 3  # each time that it had been in place


def test_a_changed_plan_is_applied_at_once_and_is_no_reset() -> None:
    site, its = Site(TWO), UNPINNED_RANK
    plans = [(Site(TWO, f"mode = '{mode}'").policy, mode) for mode in ("single", "node")]
    for second in range(20):
        site.policy, mode = plans[second % 2]
        (its,) = site.pin(its, boot=NOW + second)
        assert masks(its) == [{"single": "0", "node": "0-3"}[mode]] * 2
    assert (site.backoff.resets, site.backoff.record(its).pins) == (0, 20)


# What came of a pin.


@pytest.mark.parametrize(
    ("outcome", "pins"),
    [
        (result(), 0),  # it has ended
        (result(fitting=1), 0),  # it found its place by itself
        (result(1, is_settled=False, is_late=True), 1),
        (result(1, 1, error="EBUSY"), 1),  # one of its threads
    ],
)
def test_a_partial_pin_is_no_reset(outcome: PinResult, pins: int) -> None:
    site = Site(TWO)
    (decision,) = site.look(UNPINNED_RANK)
    for number in range(1, 11 if outcome.is_late else 2):
        site.backoff.note(done(decision, outcome))
        assert site.backoff.record(UNPINNED_RANK).pins == number * pins
        half = moved(UNPINNED_RANK, "0-3", "0-7")
        assert said(*site.look(half, boot=NOW + 15 * number)) == DRIFTED
    assert site.backoff.resets == 0
