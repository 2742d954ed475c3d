"""Whose a process is: its job, who else is in it, and who speaks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.model import Job, Membership, ProcessFacts
from affinityd.enforce.policy.identity import ProcessIdentity
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB
from tests.support.enforced_node import Site, rank, said, worker
from tests.support.machines.by_hand import made

TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
NOBODY = Membership()
RANK = rank("0-3")


def test_who_opts_out_does_so_for_all_of_its_job() -> None:
    site = Site(TWO, identities={200: ProcessIdentity(switch="off")})
    mates = [rank("0-7"), rank("0-7", gpu=1), rank("0-7", pid=300, membership=KUBERNETES_POD)]
    decisions = site.look(*mates, worker("0-7", of=mates[0]))
    assert said(*decisions) == [
        "left opted_out",
        "left opted_out",
        "drifted unpinned",
        "left opted_out",
    ]


CONTAINER = "ab12" * 16


def test_nobody_takes_part_in_anothers_container_by_its_id() -> None:
    """Whose cgroups are their own may call one as they like; its id is no secret."""
    own = Membership(container=CONTAINER)
    its = f"0::/system.slice/docker-{CONTAINER}.scope\n"
    spoof = f"0::/user.slice/user-1000.slice/user@1000.service/libpod-{CONTAINER}.scope\n"
    victim = rank("0-7", membership=own, cgroups=its)
    other = rank("0-7", membership=own, gpu=1, cgroups=spoof)
    inside = rank("0-7", membership=own, gpu=1, pid=300, cgroups=f"{its[:-1]}/init.scope\n")
    site = Site(TWO, identities={other.pid: ProcessIdentity(switch="off")})
    decisions = site.look(victim, other, inside)
    assert said(*decisions) == ["drifted unpinned", "left opted_out", "drifted unpinned"]
    jobs = [it.job.id for it in decisions if it.job is not None]
    assert jobs == [its[3:-1], spoof[3:-1], its[3:-1]]


def test_nobody_takes_part_in_a_job_of_slurm_from_within_a_container() -> None:
    within = replace(SLURM_JOB, outside=CONTAINER)
    decisions = Site(TWO, identities={200: ProcessIdentity(switch="off")}).look(
        rank("0-7"), rank("0-7", gpu=1, membership=within)
    )
    assert said(*decisions) == ["drifted unpinned", "left opted_out"]
    assert decisions[1].job == Job("slurm", f"7 in container {CONTAINER}")


def test_in_a_cgroup_that_a_rule_names_each_user_opts_out_for_themselves() -> None:
    mine, other = (
        rank("0-7", gpu=gpu, membership=NOBODY, cgroups="0::/shared\n") for gpu in (0, 1)
    )
    theirs = replace(other, uid=1001)
    identities = {
        it.pid: ProcessIdentity(cgroups=("/shared",), switch="off" if it is theirs else "on")
        for it in (mine, theirs)
    }
    site = Site(TWO, '[[rule]]\ncgroup = "/shared"', identities=identities)
    assert said(*site.look(mine, theirs)) == ["drifted unpinned", "left opted_out"]


def test_who_works_for_a_process_is_treated_as_that() -> None:
    site = Site(
        TWO,
        "[[rule]]\nuid = 7\nleave = true",
        identities={100: ProcessIdentity(7), 900: ProcessIdentity(8)},
    )
    assert said(*site.look(RANK, worker("0-7", of=RANK))) == ["left policy"] * 2
    assert 900 not in site.asked


CGROUPS = "0::/batch/render\n"
NAMED = '[[rule]]\ncgroup = "/batch/*"'


@pytest.mark.parametrize(
    ("policy", "facts", "job"),
    [
        pytest.param("", rank("0-7"), Job("slurm", "7"), id="Slurm's"),
        pytest.param("", rank("0-7", membership=KUBERNETES_POD), KUBERNETES_POD.job, id="a pod"),
        pytest.param(
            "",
            rank("0-7", membership=LONE_CONTAINER),
            Job("container", "cd34" * 16),
            id="a container that none of them started",
        ),
        pytest.param(
            NAMED,
            rank("0-7", membership=NOBODY, cgroups=CGROUPS),
            Job("cgroup", "/batch/render"),
            id="a cgroup that a rule names",
        ),
        pytest.param(
            NAMED,
            rank("0-7", membership=NOBODY, cgroups="0::/user.slice\n"),
            None,
            id="a cgroup that none names",
        ),
        pytest.param(
            "mode = 'socket'",
            rank("0-7", membership=NOBODY, cgroups=CGROUPS),
            None,
            id="the policy's own words name none",
        ),
        pytest.param(
            f"{NAMED}\nleave = true",
            rank("0-7", membership=NOBODY, cgroups=CGROUPS),
            None,
            id="a rule that leaves it makes no job of it",
        ),
    ],
)
def test_the_job_of_a_process_is_what_its_cgroups_or_the_policy_say(
    policy: str, facts: ProcessFacts, job: Job | None
) -> None:
    (decision,) = Site(TWO, policy).look(facts)
    assert decision.job == job
    assert said(decision) == ["left no_job" if job is None else "drifted unpinned"]


@pytest.mark.parametrize(
    ("policy", "of", "left"),
    [
        pytest.param("", RANK, {"membership": NOBODY}, id="no job"),
        pytest.param("", RANK, {"membership": Membership(Job("slurm", "8"))}, id="another job"),
        pytest.param(
            NAMED,
            rank("0-3", membership=NOBODY, cgroups=CGROUPS),
            {"cgroups": "0::/batch/other\n"},
            id="another cgroup",
        ),
    ],
)
def test_who_has_left_the_job_of_its_holder_is_let_alone(
    policy: str, of: ProcessFacts, left: dict[str, Any]
) -> None:
    gone = replace(worker("0-7", of=of), **left)
    assert said(*Site(TWO, policy).look(of, gone)) == ["fits", "left no_job"]


def test_nobody_asks_who_a_process_in_no_job_is() -> None:
    site = Site(TWO, NAMED)
    site.look(rank("0-7", membership=NOBODY, cgroups="0::/user.slice\n"))
    assert site.asked == []


def test_a_worker_whose_holder_was_not_found_is_decided_by_itself() -> None:
    assert said(*Site(TWO).look(worker("0-7", of=RANK))) == ["drifted unpinned"]
