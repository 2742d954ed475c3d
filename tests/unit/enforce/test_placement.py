"""The jobs of a scan, and the CPUs on which their processes should run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.model import Job, Membership, ProcessFacts
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from affinityd.topology.model import Topology
from tests.support.asking import ask, cpulists
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB
from tests.support.enforced_node import (
    NEAR_ALONE,
    NO_JOB,
    NOW,
    TWO,
    Site,
    masks,
    places,
    rank,
    said,
    worker,
)
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import UNIQUE

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
def test_off_holds_for_a_process_and_its_descendants(off: int, left: set[int]) -> None:
    helper = replace(worker("0-7", of=MATE), pid=210)
    nested = replace(MATE, pid=220, parent=210)
    decisions = Site(TWO, identities={off: Who(switch="off")}).look(
        rank("0-7", pid=300, membership=KUBERNETES_POD),
        *(MATE, helper, nested, replace(worker("0-7", of=nested), pid=230)),
        *(WIDE, worker("0-7", of=WIDE)),  # it has started with MATE, and has the lower pid
    )
    assert {it.process.facts.pid for it in decisions if it.reason == "opted_out"} == left


def test_a_cgroup_with_a_containers_id_is_not_that_container() -> None:
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


def test_a_slurm_cgroup_in_a_container_is_not_the_nodes_job() -> None:
    within = replace(MATE, membership=replace(SLURM_JOB, outside=CONTAINER))
    decisions = Site(TWO, identities=OFF).look(WIDE, within)
    assert said(*decisions) == ["drifted unpinned", "left opted_out"]
    assert decisions[1].job == Job("slurm", f"7 in container {CONTAINER}")


def test_in_a_cgroup_of_a_rule_off_holds_for_one_user() -> None:
    mine, theirs = (replace(it, membership=NO_JOB, cgroups="0::/shared\n") for it in (WIDE, MATE))
    words = {mine.pid: "on", theirs.pid: "off"}
    identities = {pid: Who(cgroups=("/shared",), switch=word) for pid, word in words.items()}
    site = Site(TWO, '[[rule]]\ncgroup = "/shared"', identities=identities)
    decisions = site.look(mine, replace(theirs, uid=1001))
    assert said(*decisions) == ["drifted unpinned", "left opted_out"]


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
def test_a_worker_that_has_left_its_holders_job_is_left(
    of: ProcessFacts, left: dict[str, Any]
) -> None:
    of_holder, of_worker = Site(TWO, NAMED).look(of, replace(worker("0-7", of=of), **left))
    assert of_holder.job is not None
    assert said(of_worker) == ["left no_job"]


DGX = machine("dgx-a100")
FOUR = made({0: "0-7", 1: "8-15"}, gpus=[0, 0, 1, 1])  # a core has one CPU
EVERY = "0-15"


def ranks(*gpus: int, cpuset: str = EVERY) -> list[ProcessFacts]:
    return [rank(cpuset, gpu=gpu, cpuset=cpuset) for gpu in gpus]


@pytest.mark.parametrize("mode", [*UNIQUE, "node", "socket", "single"])
@pytest.mark.parametrize(
    ("gpus", "cpuset", "asked"),
    [
        ((0, 1, 2, 3), "0-255", 16),  # of a whole machine no more than a GPU's part
        ((0, 2, 4, 7), "0-255", 16),
        ((0, 1, 2, 3), "16-31,48-63", 8),  # a thread of each core
        ((6,), "81-95", 15),
    ],
)
@pytest.mark.parametrize("reserved", ["", "16,48,80,112"])
def test_ranks_get_the_plan_for_their_gpus_and_cpuset(
    gpus: Sequence[int], cpuset: str, asked: int, mode: str, reserved: str
) -> None:
    site = Site(DGX, f'mode = "{mode}"', reserved=reserved)
    found = places(site.look(*ranks(*gpus, cpuset=cpuset)))
    named, parameters = ",".join(map(str, gpus)), {"cpuset": cpuset, "reserved": reserved}
    assert found == cpulists(ask(DGX, gpus=named, mode=mode, cpus=str(asked), **parameters))


UNIQUELY = 'mode = "unique_contiguous"\nshare = "requested"'
ONE_NODE = made({0: "0-11"}, gpus=[0, 0, 0])
NO_CPUS = made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2], distances=[("2", "0", 20), ("2", "1", 30)])
FARTHER = [("1", "0", 20), ("1", "2", 12)]
THREE = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[0, 1], distances=FARTHER)
FIRST, SECOND = ranks(0, 1)
OF_OTHER_JOB = rank(EVERY, gpu=1, cpuset=EVERY, membership=Membership(Job("slurm", "8")))
A, B = (Membership(KUBERNETES_POD.job, container=letter * 64) for letter in "ab")
POD = [
    *(rank("0-3", gpu=gpu, cpuset="0-3", membership=A) for gpu in (0, 1)),
    rank("4-11", gpu=2, cpuset="4-11", membership=B),
]
CIRCLE = [rank(EVERY, gpu=gpu, cpuset=EVERY, parent=200 - 100 * gpu) for gpu in (0, 1)]


def holding(gpu: int, cpuset: str) -> ProcessFacts:
    return rank(cpuset, cpuset=cpuset, beside=(("nvidia", gpu),))


ON_SAME_GPU = rank(EVERY, pid=300, cpuset=EVERY)
WORKERS = [worker(EVERY, of=it, pid=it.pid + 1) for it in (FIRST, SECOND)]
OVERLAPPING = [rank(EVERY, cpuset=EVERY), rank("4-11", gpu=1, cpuset="4-11")]
SHELL, HELPER = (worker(EVERY, of=FIRST, pid=pid) for pid in (901, 902))
BELOW = rank(EVERY, gpu=2, cpuset=EVERY, parent=SHELL.pid)
CHAINED = [rank(its, gpu=gpu, cpuset=its) for gpu, its in enumerate(["0-4", "4-8", "8-11"])]


@pytest.mark.parametrize(
    ("topology", "processes", "expected"),
    [
        (FOUR, [FIRST, ON_SAME_GPU, SECOND], "0-3 0-3 4-7"),  # processes on one GPU share its CPUs
        (FOUR, [FIRST, OF_OTHER_JOB], "0-7 0-7"),  # ranks are counted by job
        (FOUR, [FIRST, SECOND, *WORKERS], "0-3 4-7 0-3 4-7"),  # a worker runs where its rank does
        (FOUR, [FIRST, worker("2-9", of=FIRST, cpuset="2-9")], "0-7 2-7"),  # in its own cpuset
        # One that has started ranks on other GPUs runs where all of them do.
        (FOUR, [FIRST, SHELL, HELPER, BELOW, worker(EVERY, of=BELOW)], "0-15 0-15 0-7 8-15 8-15"),
        (FOUR, OVERLAPPING, "0-3 4-7"),  # steps whose cpusets overlap are planned together
        (ONE_NODE, CHAINED, "0-3 4-7 8-11"),  # and those that others hold together
        (FOUR, POD, "0-1 2-3 8-11"),  # containers with cpusets of their own: each
        (FOUR, CIRCLE, "0-7 0-7"),  # parents that seem a circle
        (FOUR, [holding(1, EVERY)], "0-7"),  # two GPUs on one node
        (FOUR, [holding(3, EVERY)], "0-15"),  # on two
        (FOUR, [holding(3, "6-9")], "6-9"),  # some CPUs of each
        (FOUR, [holding(3, "4-7")], "4-7"),  # CPUs of one alone
        (THREE, [holding(1, "0-3,8-11")], "0-3"),  # it is not sent far for one
        (FOUR, [holding(2, EVERY), SECOND], "0-3,8-11 4-7"),  # two GPUs are two ranks
        (NO_CPUS, [rank("0-7")], "0-3"),  # a GPU's node without CPUs: the nearest
    ],
)
def test_ranks_divide_the_cpus_of_their_job(
    topology: Topology, processes: list[ProcessFacts], expected: str
) -> None:
    assert places(Site(topology, f"{NEAR_ALONE}\n{UNIQUELY}").look(*processes)) == expected.split()


def test_the_end_of_a_rank_moves_no_other() -> None:
    site = Site(FOUR, UNIQUELY)
    _, second = site.pin(FIRST, SECOND)
    assert places(site.look(second)) == ["4-7"]
    site.look(boot=NOW + 300)
    assert said(*site.look(second, boot=NOW + 599)) == ["fits"]
    site.look(boot=NOW + 1200)
    assert places(site.look(second, boot=NOW + 1201)) == ["0-7"]  # it is another job by then


def test_a_new_rank_moves_the_others_once_and_is_no_reset() -> None:
    site = Site(FOUR, UNIQUELY)
    (pinned,) = site.pin(FIRST)
    assert masks(pinned) == ["0-7"]
    assert said(*site.look(pinned, SECOND)) == ["drifted share", "drifted unpinned"]
    both = site.pin(pinned, SECOND)
    assert [masks(facts) for facts in both] == [["0-3"], ["4-7"]]
    assert said(*site.look(*both)) == ["fits", "fits"]
    assert site.backoff.resets == 0


@pytest.mark.parametrize("aside", [{"is_daemon": True}, {"orphan": "its job is over"}])
def test_daemons_and_orphans_are_no_ranks(aside: dict[str, Any]) -> None:
    site = Site(FOUR, UNIQUELY)
    assert places(site.look(FIRST, replace(site.audited(SECOND), **aside))) == ["0-7", None]


def test_a_step_without_cpus_in_the_plan_is_left_with_the_reason() -> None:
    first, second = Site(FOUR, UNIQUELY).look(FIRST, rank("0-3", gpu=1, cpuset="0-3"))
    assert (places([first]), said(second)) == (["0-3"], ["left no_plan"])
    assert second.why == (
        "mode unique_contiguous gives its job CPUs 4-7 on GPU 1, and none of them is both near and "
        "in the cpuset of this process, 0-3: use a mode in which ranks share CPUs, like node, or "
        "one cpuset for all processes of the job"
    )


@pytest.mark.parametrize(
    ("policy", "place"), [("", "4-11"), ("cpus = 6", "4-9"), ("cpus = 'none'", "4-7")]
)
def test_a_rank_has_the_cpus_that_the_policy_asks_for(policy: str, place: str) -> None:
    assert places(Site(FOUR, policy).look(*ranks(0, cpuset="4-11"))) == [place]
