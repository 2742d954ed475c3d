"""Whose a process is: its job, who else is in it, and who speaks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.facts.job import Job, Membership
from affinityd.audit.facts.process import ProcessFacts
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB
from tests.support.enforced_node import NO_JOB, TWO, Site, rank, said, worker

RANK, WIDE = rank("0-3"), rank("0-7")
MATE = rank("0-7", gpu=1)  #: pid 200
OFF = {200: Who(switch="off")}
CONTAINER = "ab12" * 16


@pytest.mark.parametrize(
    ("off", "left"),
    [
        pytest.param(100, {100, 200, 210, 220, 230, 900}, id="the job's first: all of the job"),
        pytest.param(200, {200, 210, 220, 230}, id="another: itself and its descendants"),
        pytest.param(220, {220, 230}, id="its ancestors do not count"),
        pytest.param(300, {300}, id="another job's is no concern of this one"),
    ],
)
def test_a_process_opts_out_for_itself_and_its_descendants(off: int, left: set[int]) -> None:
    helper = replace(worker("0-7", of=MATE), pid=210)
    nested = replace(MATE, pid=220, parent=210)
    decisions = Site(TWO, identities={off: Who(switch="off")}).look(
        rank("0-7", pid=300, membership=KUBERNETES_POD),
        *(MATE, helper, nested, replace(worker("0-7", of=nested), pid=230)),
        *(WIDE, worker("0-7", of=WIDE)),  # it has started with MATE, and has the lower pid
    )
    assert {it.process.facts.pid for it in decisions if it.reason == "opted_out"} == left


def test_no_process_takes_part_in_anothers_container_by_its_id() -> None:
    """A user may call cgroups of their own as they like; a container's id is no secret."""
    own = Membership(container=CONTAINER)
    its = f"/system.slice/docker-{CONTAINER}.scope"
    spoof = f"/user.slice/user-1000.slice/user@1000.service/libpod-{CONTAINER}.scope"
    victim = replace(WIDE, membership=own, cgroups=f"0::{its}\n")
    other = replace(MATE, membership=own, cgroups=f"0::{spoof}\n")
    inside = replace(MATE, pid=300, membership=own, cgroups=f"0::{its}/init.scope\n")
    decisions = Site(TWO, identities=OFF).look(victim, other, inside)
    assert said(*decisions) == ["drifted unpinned", "left opted_out", "drifted unpinned"]
    assert [it.job for it in decisions] == [Job("container", path) for path in (its, spoof, its)]


def test_no_process_takes_part_in_a_job_of_slurm_from_within_a_container() -> None:
    within = replace(MATE, membership=replace(SLURM_JOB, outside=CONTAINER))
    decisions = Site(TWO, identities=OFF).look(WIDE, within)
    assert said(*decisions) == ["drifted unpinned", "left opted_out"]
    assert decisions[1].job == Job("slurm", f"7 in container {CONTAINER}")


def test_in_a_cgroup_that_a_rule_names_each_user_opts_out_for_themselves() -> None:
    mine, theirs = (replace(it, membership=NO_JOB, cgroups="0::/shared\n") for it in (WIDE, MATE))
    words = {mine.pid: "on", theirs.pid: "off"}
    identities = {pid: Who(cgroups=("/shared",), switch=word) for pid, word in words.items()}
    site = Site(TWO, '[[rule]]\ncgroup = "/shared"', identities=identities)
    decisions = site.look(mine, replace(theirs, uid=1001))
    assert said(*decisions) == ["drifted unpinned", "left opted_out"]


def test_what_works_for_a_process_is_treated_as_that() -> None:
    identities = {100: Who(7), 900: Who(8)}
    site = Site(TWO, "[[rule]]\nuid = 7\nleave = true", identities=identities)
    assert said(*site.look(RANK, worker("0-7", of=RANK))) == ["left policy"] * 2
    assert 900 not in site.asked


NAMED = '[[rule]]\ncgroup = "/batch/*"'
RENDER = replace(WIDE, membership=NO_JOB, cgroups="0::/batch/render\n")
UNNAMED = replace(RENDER, cgroups="0::/user.slice\n")
IN_POD, ALONE = (rank("0-7", membership=it) for it in (KUBERNETES_POD, LONE_CONTAINER))


@pytest.mark.parametrize(
    ("policy", "facts", "job"),
    [
        ("", WIDE, Job("slurm", "7")),
        ("", IN_POD, KUBERNETES_POD.job),
        ("", ALONE, Job("container", "cd34" * 16)),  # which no scheduler started
        (NAMED, RENDER, Job("cgroup", "/batch/render")),
        (NAMED, replace(RENDER, membership=SLURM_JOB), Job("slurm", "7")),
        (NAMED, UNNAMED, None),
        (None, RENDER, None),  # no policy could be read
        ("mode = 'socket'", RENDER, None),
        (f"{NAMED}\nleave = true", RENDER, None),  # a rule that leaves makes no job
    ],
)
def test_cgroups_or_the_policy_name_a_job(
    policy: str, facts: ProcessFacts, job: Job | None
) -> None:
    who = Who(namespace="ml", pod="train-0", cgroups=("/batch/render",))
    site = Site(TWO, policy, identities={100: who})
    (decision,) = site.look(facts)
    assert decision.job == job
    assert decision.pod == ("ml/train-0" if facts is IN_POD else None)
    assert said(decision) == ["left no_job" if job is None else "drifted unpinned"]
    if facts is UNNAMED:  # which user's it is was not even asked
        assert site.asked == []


@pytest.mark.parametrize(
    ("of", "left"),
    [
        (RANK, {"membership": NO_JOB}),
        (RANK, {"membership": Membership(Job("slurm", "8"))}),
        (RENDER, {"cgroups": "0::/batch/other\n"}),
    ],
)
def test_what_has_left_its_holders_job_is_left(of: ProcessFacts, left: dict[str, Any]) -> None:
    of_holder, of_worker = Site(TWO, NAMED).look(of, replace(worker("0-7", of=of), **left))
    assert of_holder.job is not None
    assert said(of_worker) == ["left no_job"]


def test_a_worker_whose_holder_was_not_found_is_decided_by_itself() -> None:
    assert said(*Site(TWO).look(worker("0-7", of=RANK))) == ["drifted unpinned"]
