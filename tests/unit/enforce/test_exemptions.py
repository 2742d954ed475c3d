"""Which processes are let alone or only observed, for which reason, and what is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.daemon.metrics.enforcement import drifts_of
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER
from tests.support.enforced_node import NO_JOB, NOW, TWO, Site, masks, moved, rank, said, worker
from tests.support.machines.by_hand import made

LOST = made({0: "0-3", 1: "4-7"}, gpus=[0, None])
RANK, FAR = rank("0-3"), rank("4-7")
OVER = "Slurm job 7 has ended: it has no slurmstepd any more"
OFF = {100: Who(switch="off")}


def test_the_first_reason_that_holds_is_the_one_that_is_told() -> None:
    """Everything is wrong with a process, and is mended bit by bit."""
    none, leaves, off = (Site(LOST, it, identities=OFF) for it in (None, "leave = true", ""))
    reserved, well = Site(LOST, reserved="0-3"), Site(LOST)
    nowhere = rank("4-7", gpu=1, pid=100, cpuset=None, membership=NO_JOB)
    of_job = replace(nowhere, membership=KUBERNETES_POD)
    placed = replace(of_job, gpu=("nvidia", 0))
    far, near = (replace(placed, cpuset=frozenset(cpus)) for cpus in ({4, 5}, {3, 4}))
    orphan = replace(none.audited(nowhere), orphan=OVER)
    looks: list[tuple[Site, ProcessFacts | AuditedProcess, str]] = [
        (none, replace(orphan, is_daemon=True), "left daemon"),
        (none, orphan, "left orphan"),
        (none, nowhere, "left no_job"),
        (none, of_job, "left no_policy"),
        (leaves, of_job, "left policy"),
        (off, of_job, "left opted_out"),
        (well, of_job, "left unknown_place"),
        (reserved, placed, "left unknown_cpuset"),
        (reserved, far, "left allocation"),
        (reserved, near, "left no_plan"),
        (well, near, "drifted mask"),
    ]
    assert [said(*site.look(it)) for site, it, _ in looks] == [[what] for *_, what in looks]


LONE = rank("0-7", membership=NO_JOB)
IN_A = replace(LONE, cgroups="3:cpuset:/\n0::/a\n")
IN_CONTAINER = rank("4-7", cpuset="4-7", membership=LONE_CONTAINER)
NO_JOB_WHY = (
    "it is in no job, or has left its parent's (its cgroups are {}): start it by "
    "Slurm or in a container, or name its cgroup in a rule of the policy"
)
FAR_FROM_0 = "GPU 0 is on node 0, near CPUs 0-3, and"
CONTAINERS = f"{FAR_FROM_0} its cpuset, 4-7 (container cd34cd34cd34), has no CPU there: set a"
RULE_2 = "[[rule]]\nuid = 0\n[[rule]]\nuid = 1000\nleave = true"
TOO_MANY = Site(TWO, "min_physical_cores = 5")


@pytest.mark.parametrize(
    ("site", "facts", "why"),
    [
        (Site(TWO), IN_A, NO_JOB_WHY.format("'/a'")),
        (Site(TWO), LONE, NO_JOB_WHY.format("roots of their hierarchies")),
        (Site(TWO, None), RANK, "no policy could be read since the start: correct its file"),
        (Site(TWO, "leave = true"), RANK, "the top level of the policy leaves it alone"),
        (Site(TWO, RULE_2), RANK, "rule 2 of the policy leaves it alone"),
        (Site(TWO, identities=OFF), RANK, "AFFINITYD=off is in the environment of process 100 of"),
        (Site(LOST), rank("0-7", beside=(("nvidia", 1),)), "the NUMA node of GPU 1 is not known: "),
        (Site(TWO), rank("0-7", cpuset=None), "the cpuset of process 100 cannot be read here: mo"),
        (Site(TWO), rank("4-7", cpuset="4-7"), f"{FAR_FROM_0} its job was given no CPU there: put"),
        (Site(TWO), IN_CONTAINER, CONTAINERS),
        (Site(TWO, reserved="0-2"), rank("2-7", cpuset="2,4-7"), "all CPUs near GPU 0 that its c"),
        (TOO_MANY, RANK, "mode node: rank 0 (GPU 0) would have 4 physical cores, fewer than 5"),
    ],
)
def test_of_what_is_let_alone_it_is_said_why_and_what_mends_it(
    site: Site, facts: ProcessFacts, why: str
) -> None:
    (decision,) = site.look(facts)
    assert decision.verdict == "left"
    assert str(decision.why).startswith(why)
    assert decision.cause == ("allocation" if decision.reason == "allocation" else None)


def test_what_a_rule_may_leave_for_all_that_is_known_is_left() -> None:
    unread = Who(unread=frozenset(("partition",)))
    site = Site(TWO, '[[rule]]\npartition = "debug"\nleave = true', identities={100: unread})
    assert said(*site.look(RANK)) == ["fits"]
    (decision,) = site.look(rank("0-7"))
    assert (said(decision), decision.cause) == (["left policy"], "unpinned")
    assert str(decision.why).startswith(
        "rule 1 of the policy may leave it alone or observe it, and depends on what cannot be read "
        "here (partition): give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for environments"
    )


@pytest.mark.parametrize(
    ("threads", "is_confined", "verdict"),
    [
        pytest.param("4-5", True, "drifted mask", id="its cpuset is its allocation"),
        pytest.param("4-5", False, "left unknown_cpuset", id="its mask may be its allocation"),
        pytest.param("4-5 0-7", False, "left unknown_cpuset", id="whatever a thread has"),
        pytest.param("0-1", False, "fits", id="near its GPU there is nothing to do"),
        pytest.param("0-7", False, "drifted unpinned", id="it was given no part"),
    ],
)
def test_a_slurm_job_that_masks_alone_confine_is_given_no_others_cpus(
    threads: str, is_confined: bool, verdict: str
) -> None:
    facts = replace(rank(*threads.split()), is_confined=is_confined)
    assert said(*Site(TWO).look(facts)) == [verdict]


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
        pytest.param("", Who(switch="observe"), BY_JOB, id="its owner says so"),
        pytest.param(TRIAL, Who(partition="trial"), BY_RULE, id="a rule"),
        pytest.param(PILOT, Who(partition="a"), BY_TOP, id="the top"),
        pytest.param(PILOT, Who(partition="pilot"), None, id="a rule pins it"),
        pytest.param(PILOT, Who(partition="pilot", switch="observe"), BY_JOB, id="not for its job"),
        pytest.param(PILOT, UNREAD, BY_TOP, id="whether the rule means it is not known"),
    ],
)
def test_what_has_drifted_is_not_pinned_where_it_is_observed(
    policy: str, who: Who, because: str | None
) -> None:
    where = "it may run on CPUs 4-7, and should run on 0-3"
    decisions = Site(TWO, policy, identities={100: who}).look(FAR, worker("4-7", of=FAR))
    assert said(*decisions) == ["drifted mask"] * 2
    why = f"{where}; it is not pinned: {because}" if because else where
    assert {(it.is_observed, it.why) for it in decisions} == {(because is not None, why)}
    would_pin = drifts_of(decisions)["nvidia", 0].would_pin
    assert would_pin == {"mask": 2}  # as what a pin would mend


@pytest.mark.parametrize(
    ("policy", "who", "process", "what"),
    [
        (PILOT, Who(switch="off"), FAR, "left opted_out"),
        (TRIAL, UNREAD, FAR, "left policy"),
        (PILOT, Who(), RANK, "fits"),
    ],
)
def test_a_process_that_is_let_alone_or_fits_is_not_observed(
    policy: str, who: Who, process: ProcessFacts, what: str
) -> None:
    (decision,) = Site(TWO, policy, identities={100: who}).look(process)
    assert (said(decision), decision.is_observed) == ([what], False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({200: "observe"}, ("drifted", True)),
        ({100: "observe", 200: "off"}, ("opted_out", False)),
    ],
)
def test_of_a_jobs_ranks_the_least_that_one_says_counts(
    words: Mapping[int, str], expected: tuple[str, bool]
) -> None:
    identities = {pid: Who(switch=word) for pid, word in words.items()}
    found = Site(TWO, identities=identities).look(FAR, rank("0-3", gpu=1))
    assert [(it.reason or it.verdict, it.is_observed) for it in found] == [expected] * 2
