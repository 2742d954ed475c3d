"""Which processes are let alone or only observed, for which reason, and what is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from affinityd.audit.facts.process import ProcessFacts
from affinityd.cpuset import parse_list
from affinityd.daemon.metrics.enforcement import drifts_of
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER
from tests.support.enforced_node import NO_JOB, NOW, TWO, Site, masks, moved, rank, said, worker
from tests.support.machines.by_hand import made

LOST = made({0: "0-3", 1: "4-7"}, gpus=[0, None])
RANK, FAR = rank("0-3"), rank("4-7")
OVER = "Slurm job 7 has ended: it has no slurmstepd any more"
OFF = {100: Who(switch="off")}


LONE = rank("0-7", membership=NO_JOB)
IN_A = replace(LONE, cgroups="3:cpuset:/\n0::/a\n")
IN_CONTAINER = rank("4-7", cpuset="4-7", membership=LONE_CONTAINER)
NO_JOB_WHY = (
    "it is in no job, or has left its parent's job (its cgroups are {}): start it by "
    "Slurm or in a container, or name its cgroup in a rule of the policy"
)
FAR_FROM_0 = "GPU 0 is on node 0, near CPUs 0-3, and"
CONTAINERS = f"{FAR_FROM_0} its cpuset, 4-7 (container cd34cd34cd34), has no CPU there: set a"
IS_RESERVED = "all CPUs of its cpuset that are near GPU 0, 2"
RULE_2 = "[[rule]]\nuid = 0\n[[rule]]\nuid = 1000\nleave = true"
TOO_MANY = Site(TWO, "min_physical_cores = 5")


@pytest.mark.parametrize(
    ("site", "facts", "why"),
    [
        (Site(TWO), IN_A, NO_JOB_WHY.format("'/a'")),
        (Site(TWO), LONE, NO_JOB_WHY.format("roots of their hierarchies")),
        (Site(TWO, None), RANK, "no policy could be read since the start: correct the policy file"),
        (Site(TWO, "leave = true"), RANK, "the top level of the policy leaves it alone"),
        (Site(TWO, RULE_2), RANK, "rule 2 of the policy leaves it alone"),
        (Site(TWO, identities=OFF), RANK, "AFFINITYD=off is in the environment of process 100 of"),
        (Site(LOST), rank("0-7", beside=(("nvidia", 1),)), "the NUMA node of GPU 1 is not known: "),
        (Site(TWO), rank("0-7", cpuset=None), "the cpuset of process 100 cannot be read here: mo"),
        (Site(TWO), rank("4-7", cpuset="4-7"), f"{FAR_FROM_0} its job was given no CPU there: put"),
        (Site(TWO), IN_CONTAINER, CONTAINERS),
        (Site(TWO, reserved="0-2"), rank("2-7", cpuset="2,4-7"), f"{IS_RESERVED}, are reserved: "),
        (TOO_MANY, RANK, "mode node: rank 0 (GPU 0) would have 4 physical cores, fewer than 5"),
    ],
)
def test_it_is_said_why_and_what_would_help(site: Site, facts: ProcessFacts, why: str) -> None:
    (decision,) = site.look(facts)
    assert decision.verdict == "left"
    assert str(decision.why).startswith(why)
    assert decision.cause == ("allocation" if decision.reason == "allocation" else None)


@pytest.mark.parametrize("way", ["leave", "observe"])
def test_what_a_rule_may_leave_or_observe_for_all_that_is_known_is_left(way: str) -> None:
    unread = Who(unread=frozenset(("partition",)))
    site = Site(TWO, f'[[rule]]\npartition = "debug"\n{way} = true', identities={100: unread})
    assert said(*site.look(RANK)) == ["fits"]
    (decision,) = site.look(rank("0-7"))
    assert (said(decision), decision.cause) == (["left policy"], "unpinned")
    assert str(decision.why).startswith(
        "rule 1 of the policy may leave it alone or observe it, but a key of the rule cannot be "
        "read here (partition): give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for "
    )


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
def test_a_job_that_masks_confine_is_left(threads: str, is_confined: bool, verdict: str) -> None:
    facts = replace(rank(*threads.split()), is_confined=is_confined)
    assert said(*Site(TWO).look(facts)) == [verdict]


FEW = rank("2-5", cpuset="2-5")
ASKED = "it asked for more CPUs than are near its GPUs, and was given CPUs 0-3,6-7: give its job"


@pytest.mark.parametrize(
    ("policy", "facts", "verdict", "why"),
    [
        ("", FEW, "left allocation", "GPU 0 is on node 0, near CPUs 0-3"),
        ("cpus = 'none'", rank("0-3,6"), "left allocation", ASKED),  # by its environment
        ("cpus = 'none'", rank("0-3,5-6"), "drifted mask", "it may run on CPUs 0-3,5-6, and sh"),
    ],
)
def test_what_was_given_the_cpus_that_it_asked_for_is_left(
    policy: str, facts: ProcessFacts, verdict: str, why: str
) -> None:
    given = {100: Who(given=parse_list("0-3,6-7"))}
    (decision,) = Site(TWO, policy, identities=given).look(facts)
    assert said(decision) == [verdict]
    assert str(decision.why).startswith(why)


def test_what_was_seen_with_the_whole_machine_is_pinned_again_after_a_reset() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(replace(rank("0-7"), is_confined=False))
    assert masks(pinned) == ["0-3"]
    assert said(*site.look(moved(pinned, "4-5"), boot=NOW + 1)) == ["drifted mask"]


def test_an_orphan_or_a_known_daemon_and_what_works_for_it_are_not_pinned() -> None:
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
BY_TOP = "the top level of the policy says observe"
BY_RULE = "rule 1 of the policy says observe"


@pytest.mark.parametrize(
    ("policy", "who", "because"),
    [
        ("", Who(switch="observe"), BY_JOB),
        (TRIAL, Who(partition="trial"), BY_RULE),
        (PILOT, Who(partition="a"), BY_TOP),
        (PILOT, Who(partition="pilot"), None),
        (PILOT, Who(partition="pilot", switch="observe"), BY_JOB),
        (PILOT, UNREAD, BY_TOP),  # whether the rule means it is not known
    ],
)
def test_what_is_observed_is_not_pinned(policy: str, who: Who, because: str | None) -> None:
    where = "it may run on CPUs 4-7, and should run on 0-3"
    decisions = Site(TWO, policy, identities={100: who}).look(FAR, worker("4-7", of=FAR))
    assert said(*decisions) == ["drifted mask"] * 2
    why = f"{where}; it is not pinned: {because}" if because else where
    assert {(it.is_observed, it.why) for it in decisions} == {(because is not None, why)}
    assert drifts_of(decisions)["nvidia", 0].would_pin == {"mask": 2}


@pytest.mark.parametrize(
    ("policy", "words", "process", "expected"),
    [
        (PILOT, {100: "off"}, FAR, "left opted_out"),
        ("", {100: "observe", 50: "off"}, replace(FAR, parent=50), "left opted_out"),  # the least
        ("leave = true", {}, FAR, "left policy"),
        (PILOT, {}, RANK, "fits"),
    ],
)
def test_what_is_left_alone_or_fits_is_not_observed(
    policy: str, words: Mapping[int, str], process: ProcessFacts, expected: str
) -> None:
    identities = {pid: Who(switch=word) for pid, word in words.items()}
    parent = rank("0-3", gpu=1, pid=50)
    decision, _ = Site(TWO, policy, identities=identities).look(process, parent)
    assert (said(decision), decision.is_observed) == ([expected], False)


def test_a_process_is_observed_as_the_first_of_its_job_says() -> None:
    identities = {200: Who(switch="observe")}
    first = rank("0-3", gpu=1, start=4)
    decisions = Site(TWO, identities=identities).look(FAR, first)
    assert [it.is_observed for it in decisions] == [True, True]
