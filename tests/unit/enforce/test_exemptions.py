"""Who is let alone, for which reason, and what he is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.model import Membership, ProcessFacts
from affinityd.enforce.policy.identity import ProcessIdentity
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER
from tests.support.enforced_node import NOW, Site, masks, moved, rank, said, worker
from tests.support.machines.by_hand import made

TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
LOST = made({0: "0-3", 1: "4-7"}, gpus=[0, None])
NOBODY = Membership()
RANK = rank("0-3")


RESERVED = "0-3"
OVER = "Slurm's job 7 has ended: it has no slurmstepd any more"


def test_the_first_reason_that_holds_is_the_one_that_is_told() -> None:
    """Everything is wrong with a process, and is mended bit by bit."""
    off = {100: ProcessIdentity(switch="off")}
    wrong = rank("4-7", gpu=1, cpuset=None, membership=NOBODY)
    told = []

    def look(site: Site, *, is_daemon: bool = False, orphan: str | None = None) -> None:
        judged = replace(site.audited(wrong), is_daemon=is_daemon, orphan=orphan)
        told.extend(said(*site.look(judged)))

    wrong = replace(wrong, pid=100)
    look(Site(LOST, None, identities=off), is_daemon=True, orphan=OVER)
    look(Site(LOST, None, identities=off), orphan=OVER)
    look(Site(LOST, None, identities=off))
    wrong = replace(wrong, membership=KUBERNETES_POD)
    look(Site(LOST, None, identities=off))
    look(Site(LOST, "leave = true", identities=off))
    look(Site(LOST, identities=off))
    look(Site(LOST))
    wrong = replace(wrong, gpu=("nvidia", 0))
    look(Site(LOST, reserved=RESERVED))
    wrong = replace(wrong, cpuset=frozenset({4, 5}))
    look(Site(LOST, reserved=RESERVED))
    wrong = replace(wrong, cpuset=frozenset({3, 4}))
    look(Site(LOST, reserved=RESERVED))
    look(Site(LOST))
    assert told == [
        "left daemon",
        "left orphan",
        "left no_job",
        "left no_policy",
        "left policy",
        "left opted_out",
        "left unknown_place",
        "left unknown_cpuset",
        "left allocation",
        "left no_plan",
        "drifted mask",
    ]


@pytest.mark.parametrize(
    ("site", "facts", "why"),
    [
        pytest.param(
            Site(TWO),
            rank("0-7", membership=NOBODY, cgroups="3:cpuset:/\n0::/user.slice/a\n"),
            "it is in no job, or has left that of the process it works for (its cgroups are "
            "'/user.slice/a'): start it by Slurm or in a container, or name its cgroup in a rule "
            "of the policy",
            id="no job",
        ),
        pytest.param(
            Site(TWO),
            rank("0-7", membership=NOBODY),
            "it is in no job, or has left that of the process it works for (its cgroups are roots "
            "of their hierarchies): start it by Slurm or in a container, or name its cgroup in a "
            "rule of the policy",
            id="no job, and no cgroup",
        ),
        pytest.param(
            Site(TWO, None),
            RANK,
            "no policy could be read since the start: mend its file, and it counts",
            id="no policy",
        ),
        pytest.param(
            Site(TWO, "leave = true"),
            RANK,
            "the top level of the policy leaves it",
            id="the policy leaves all",
        ),
        pytest.param(
            Site(TWO, "[[rule]]\nuid = 0\n[[rule]]\nuid = 1000\nleave = true"),
            RANK,
            "rule 2 of the policy leaves it",
            id="a rule leaves it",
        ),
        pytest.param(
            Site(TWO, identities={100: ProcessIdentity(switch="off")}),
            RANK,
            "AFFINITYD=off is in the environment of process 100 of its job",
            id="its owner wants no pin",
        ),
        pytest.param(
            Site(LOST),
            rank("0-7", beside=(("nvidia", 1),)),
            "nobody knows on which node GPU 1 is: affinityd doctor says what would tell",
            id="one of its GPUs may be anywhere",
        ),
        pytest.param(
            Site(TWO),
            rank("0-7", cpuset=None),
            "the cpuset of process 100 cannot be read here: have the node's cgroups mounted where "
            "the daemon runs",
            id="nobody knows its cpuset",
        ),
        pytest.param(
            Site(TWO),
            rank("4-7", cpuset="4-7"),
            "GPU 0 is on node 0, near CPUs 0-3, and its job was given no CPU there: have "
            "Cores=0-3 in the GPU's line of gres.conf (affinityd slurm gres-conf writes it), and "
            "submit with --gres-flags=enforce-binding",
            id="its job was given no near CPU",
        ),
        pytest.param(
            Site(TWO),
            rank("4-7", cpuset="4-7", membership=LONE_CONTAINER),
            "GPU 0 is on node 0, near CPUs 0-3, and its cpuset, 4-7 (container cd34cd34cd34), has "
            "no CPU there: whoever set that is to choose near ones",
            id="its container was not",
        ),
        pytest.param(
            Site(TWO, reserved="0-2"),
            rank("2-7", cpuset="2,4-7"),
            "all CPUs near GPU 0 that its cgroup lets it use, 2, are reserved: reserve fewer",
            id="its near CPUs are reserved",
        ),
        pytest.param(
            Site(TWO, "min_physical_cores = 5"),
            RANK,
            "mode node: rank 0 (GPU 0) would have 4 physical cores, fewer than 5: 1 rank, "
            "8 allowed CPUs; min_physical_cores=4 would do",
            id="there are too few",
        ),
    ],
)
def test_who_is_let_alone_is_told_why_and_what_mends_it(
    site: Site, facts: ProcessFacts, why: str
) -> None:
    (decision,) = site.look(facts)
    assert (decision.why, decision.verdict) == (why, "left")
    assert decision.cause == ("allocation" if decision.reason == "allocation" else None)


@pytest.mark.parametrize(
    ("mask", "verdict", "cause"),
    [
        pytest.param("0-7", "left policy", "unpinned", id="who would be pinned"),
        pytest.param("0-3", "fits", None, id="not who is in place"),
    ],
)
def test_whom_a_rule_may_leave_for_all_we_know_is_left(
    mask: str, verdict: str, cause: str | None
) -> None:
    unread = ProcessIdentity(unread=frozenset(("partition",)))
    site = Site(TWO, '[[rule]]\npartition = "debug"\nleave = true', identities={100: unread})
    (decision,) = site.look(rank(mask))
    assert (said(decision), decision.cause) == ([verdict], cause)
    assert decision.why == (
        "rule 1 of the policy may leave or observe it, and asks for what cannot be read here "
        "(partition): give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for environments, "
        "/var/log/pods for namespaces and pods; or ask for something else"
        if cause
        else None
    )


@pytest.mark.parametrize(
    ("threads", "is_confined", "verdict"),
    [
        pytest.param(["4-5"], True, "drifted mask", id="its cpuset is its allocation"),
        pytest.param(["4-5"], False, "left unknown_cpuset", id="its mask may be its allocation"),
        pytest.param(["4-5", "0-7"], False, "left unknown_cpuset", id="whatever a thread has"),
        pytest.param(["0-1"], False, "fits", id="near its GPU there is nothing to do"),
        pytest.param(["0-7"], False, "drifted unpinned", id="nobody was given a part"),
    ],
)
def test_a_slurm_job_that_masks_alone_confine_is_given_no_others_cpus(
    threads: list[str], is_confined: bool, verdict: str
) -> None:
    facts = replace(rank(*threads), is_confined=is_confined)
    assert said(*Site(TWO).look(facts)) == [verdict]


def test_who_was_seen_with_the_whole_machine_is_pinned_again_after_a_reset() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(replace(rank("0-7"), is_confined=False))
    assert masks(pinned) == ["0-3"]
    assert said(*site.look(moved(pinned, "4-5"), boot=NOW + 1)) == ["drifted mask"]


def test_an_orphan_and_who_works_for_it_are_ended_and_not_pinned() -> None:
    site = Site(TWO)
    orphan = replace(site.audited(rank("0-7")), orphan=OVER)
    decisions = site.look(orphan, worker("0-7", of=orphan.facts))
    assert said(*decisions) == ["left orphan"] * 2
    (why,) = {str(it.why) for it in decisions}
    assert why.startswith(f"{OVER}; it may still compute: ask its owner")


def test_what_a_known_daemon_starts_is_let_alone_with_it() -> None:
    site = Site(TWO)
    daemon = replace(site.audited(rank("0-7", membership=KUBERNETES_POD)), is_daemon=True)
    assert said(*site.look(daemon, worker("0-7", of=daemon.facts))) == ["left daemon"] * 2
