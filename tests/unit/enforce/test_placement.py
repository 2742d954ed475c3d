"""Where the processes of jobs are to run: as a plan for their GPUs and cpusets has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.model import Job, Membership, ProcessFacts
from affinityd.cpuset import parse_list
from affinityd.enforce.policy.identity import ProcessIdentity
from tests.support.asking import ask, cpulists
from tests.support.audit_facts import KUBERNETES_POD
from tests.support.enforced_node import NEAR_ALONE, NOW, Site, masks, places, rank, said, worker
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import UNIQUE

DGX = machine("dgx-a100")
FOUR = made({0: "0-7", 1: "8-15"}, gpus=[0, 0, 1, 1])  # a core has one CPU
EVERY = "0-15"


def ranks(*gpus: int, cpuset: str = EVERY, mask: str | None = None) -> list[ProcessFacts]:
    """Return a job's processes, one a GPU."""
    return [rank(mask or cpuset, gpu=gpu, cpuset=cpuset) for gpu in gpus]


@pytest.mark.parametrize("mode", [*UNIQUE, "node", "socket", "all", "core_complex", "single"])
@pytest.mark.parametrize(
    ("gpus", "cpuset"),
    [
        pytest.param([0, 1, 2, 3], "0-255", id="half of the GPUs, and the whole machine"),
        pytest.param([0, 2, 4, 7], "0-255", id="some of each node"),
        pytest.param([0, 1, 2, 3], "16-31,48-63", id="a cpuset with a thread of each core"),
        pytest.param([6], "80-95", id="one GPU"),
    ],
)
@pytest.mark.parametrize("reserved", ["", "16,48,80,112"])
def test_ranks_have_what_plan_answers_for_their_gpus_and_cpuset(
    gpus: list[int], cpuset: str, mode: str, reserved: str
) -> None:
    found = places(
        Site(DGX, f'mode = "{mode}"', reserved=reserved).look(*ranks(*gpus, cpuset=cpuset))
    )
    wanted = ",".join(map(str, gpus))
    may_use = parse_list(cpuset) - parse_list(reserved)
    part = -(-len(may_use) // len(gpus))  # and of a whole machine no more than a GPU's
    asked = min(part, 16) if cpuset == "0-255" else part
    reply = ask(DGX, gpus=wanted, cpuset=cpuset, mode=mode, reserved=reserved, cpus=str(asked))
    assert found == cpulists(reply)


@pytest.mark.parametrize("said", ["share = 'node'", "share = 'requested'"])
def test_the_share_is_the_policys(said: str) -> None:
    policy = f"mode = 'unique_contiguous'\n{said}\nscope = 'socket'\nmin_physical_cores = 2"
    found = places(Site(DGX, policy).look(*ranks(0, 2, cpuset="0-255")))
    parameter = {"share": said.split("'")[1]}
    reply = ask(DGX, gpus="0,2", mode="unique_contiguous", scope="socket", **parameter)
    assert found == cpulists(reply)


UNIQUELY = 'mode = "unique_contiguous"\nshare = "requested"'


def test_processes_on_one_gpu_share_its_cpus() -> None:
    first, second = ranks(0, 1)
    mate = rank(EVERY, pid=300, cpuset=EVERY)
    assert places(Site(FOUR, UNIQUELY).look(first, mate, second)) == ["0-3", "0-3", "4-7"]


def test_ranks_are_counted_by_job() -> None:
    (mine,), (other,) = ranks(0), ranks(1)
    other = rank(EVERY, gpu=1, cpuset=EVERY, membership=Membership(Job("slurm", "8")))
    assert places(Site(FOUR, UNIQUELY).look(mine, other)) == ["0-7", "0-7"]


def test_who_works_for_a_rank_runs_where_that_does() -> None:
    first, second = ranks(0, 1)
    loaders = [worker(EVERY, of=first, pid=901), worker(EVERY, of=second, pid=902)]
    found = Site(FOUR, UNIQUELY).look(first, second, *loaders)
    assert places(found) == ["0-3", "4-7", "0-3", "4-7"]


def test_a_rank_that_ends_moves_no_other() -> None:
    site = Site(FOUR, UNIQUELY)
    _, second = site.pin(*ranks(0, 1))
    assert said(*site.look(second)) == ["fits"]
    assert places(site.look(second)) == ["4-7"]


def test_a_rank_that_is_not_seen_for_a_while_is_where_it_was() -> None:
    site = Site(FOUR, UNIQUELY)
    _, second = site.pin(*ranks(0, 1))
    site.look(boot=NOW + 300)
    assert said(*site.look(second, boot=NOW + 599)) == ["fits"]


def test_a_job_that_nobody_saw_for_long_is_another() -> None:
    site = Site(FOUR, UNIQUELY)
    _, second = site.pin(*ranks(0, 1))
    site.look(boot=NOW + 601)
    assert places(site.look(second, boot=NOW + 602)) == ["0-7"]


def test_a_rank_that_joins_moves_the_others_once_and_that_is_no_reset() -> None:
    site = Site(FOUR, UNIQUELY)
    first, second = ranks(0, 1)
    (pinned,) = site.pin(first)
    assert masks(pinned) == ["0-7"]
    assert said(*site.look(pinned, second)) == ["drifted share", "drifted unpinned"]
    both = site.pin(pinned, second)
    assert [masks(facts) for facts in both] == [["0-3"], ["4-7"]]
    assert said(*site.look(*both)) == ["fits", "fits"]
    assert site.backoff.resets == 0


A, B = (Membership(KUBERNETES_POD.job, container=letter * 64) for letter in "ab")


def test_containers_of_a_pod_with_cpusets_of_their_own_are_planned_each() -> None:
    pod = [
        rank("0-3", gpu=0, cpuset="0-3", membership=A),
        rank("0-3", gpu=1, cpuset="0-3", membership=A),
        rank("4-11", gpu=2, cpuset="4-11", membership=B),
    ]
    site = Site(FOUR, UNIQUELY)
    assert places(site.look(*pod)) == ["0-1", "2-3", "8-11"]
    assert places(site.look(*pod[:1], *pod[2:])) == ["0-1", "8-11"]
    assert places(site.look(*pod[:2])) == ["0-1", "2-3"]


def test_steps_whose_cpusets_overlap_are_planned_together() -> None:
    batch = rank(EVERY, gpu=0, cpuset=EVERY)
    step = rank("4-11", gpu=1, cpuset="4-11")
    assert places(Site(FOUR, UNIQUELY).look(batch, step)) == ["0-3", "4-7"]


def test_cpusets_that_others_hold_together_are_planned_together() -> None:
    topology = made({0: "0-11"}, gpus=[0, 0, 0])
    chain = [rank(its, gpu=gpu, cpuset=its) for gpu, its in enumerate(["0-4", "4-8", "8-11"])]
    assert places(Site(topology, UNIQUELY).look(*chain)) == ["0-3", "4-7", "8-11"]


def test_who_has_moved_to_another_cpuset_is_no_rank_in_its_old_one() -> None:
    site = Site(FOUR, UNIQUELY)
    mates = [rank("0-3", gpu=gpu, cpuset="0-3") for gpu in (0, 1)]
    assert places(site.look(*mates)) == ["0-1", "2-3"]
    mates[1] = rank("4-7", gpu=1, cpuset="4-7")
    assert places(site.look(*mates)) == ["0-3", "4-7"]


@pytest.mark.parametrize("aside", [{"is_daemon": True}, {"orphan": "its job is over"}])
def test_daemons_and_orphans_are_no_ranks(aside: dict[str, Any]) -> None:
    site = Site(FOUR, UNIQUELY)
    first, second = ranks(0, 1)
    assert places(site.look(first, replace(site.audited(second), **aside))) == ["0-7", None]


def test_a_step_that_a_plan_for_all_gives_nothing_is_told_so() -> None:
    batch = rank(EVERY, gpu=0, cpuset=EVERY)
    step = rank("0-3", gpu=1, cpuset="0-3")
    found = Site(FOUR, UNIQUELY).look(batch, step)
    assert places(found) == ["0-3", None]
    assert said(*found) == ["drifted unpinned", "left no_plan"]
    assert found[1].why == (
        "of the CPUs 4-7 that mode unique_contiguous gives its job on GPU 1, none is near and in "
        "its own cpuset, 0-3: a mode whose ranks share, like node, or one cpuset for all would do"
    )


def test_who_works_for_a_rank_in_a_narrower_cpuset_has_what_is_in_it() -> None:
    first = rank(EVERY, cpuset=EVERY)
    loader = worker("2-9", of=first, cpuset="2-9")
    assert places(Site(FOUR).look(first, loader)) == ["0-7", "2-7"]


@pytest.mark.parametrize(
    ("beside", "cpuset", "place"),
    [
        pytest.param([1], EVERY, "0-7", id="both on one node"),
        pytest.param([3], EVERY, "0-15", id="on two"),
        pytest.param([3], "6-9", "6-9", id="on two, of which it has some of each"),
        pytest.param([3], "4-7", "4-7", id="on two, of which it has one alone"),
    ],
)
def test_a_process_with_several_gpus_runs_near_them_all(
    beside: list[int], cpuset: str, place: str
) -> None:
    keys = tuple(("nvidia", gpu) for gpu in beside)
    facts = rank(cpuset, cpuset=cpuset, beside=keys)
    assert places(Site(FOUR).look(facts)) == [place]


def test_a_process_with_several_gpus_is_not_sent_far_for_one_of_them() -> None:
    topology = made(
        {0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[0, 1], distances=[("1", "0", 20), ("1", "2", 12)]
    )
    facts = rank("0-3,8-11", cpuset="0-3,8-11", beside=(("nvidia", 1),))
    assert places(Site(topology).look(facts)) == ["0-3"]


def test_a_process_with_several_gpus_is_as_many_ranks() -> None:
    facts = rank(EVERY, cpuset=EVERY, beside=(("nvidia", 2),))
    mate = rank(EVERY, gpu=1, cpuset=EVERY)
    assert places(Site(FOUR, UNIQUELY).look(facts, mate)) == ["0-3,8-11", "4-7"]


def test_who_started_ranks_on_other_gpus_runs_where_all_of_them_do() -> None:
    launcher = rank(EVERY, cpuset=EVERY)
    shell = worker(EVERY, of=launcher, pid=901)
    helper = worker(EVERY, of=launcher, pid=902)
    below = rank(EVERY, gpu=2, cpuset=EVERY, parent=901)
    loader = worker(EVERY, of=below, pid=903)
    found = Site(FOUR, UNIQUELY).look(launcher, shell, helper, below, loader)
    assert places(found) == ["0-15", "0-15", "0-7", "8-15", "8-15"]


def test_parents_that_seem_to_go_in_a_circle_come_to_an_end() -> None:
    circle = [rank(EVERY, gpu=gpu, cpuset=EVERY, parent=300 - 100 * gpu - 100) for gpu in (0, 1)]
    assert places(Site(FOUR, UNIQUELY).look(*circle)) == ["0-7", "0-7"]


@pytest.mark.parametrize(
    ("reserved", "mode", "place"),
    [
        pytest.param("0-3", "node", "4-7", id="some near CPUs are reserved"),
        pytest.param("0-7", "node", None, id="all are"),
        pytest.param("0-7", "even", "8-15", id="which a mode for everywhere does not mind"),
    ],
)
def test_reserved_cpus_are_nobodys(reserved: str, mode: str, place: str | None) -> None:
    site = Site(FOUR, f'mode = "{mode}"', reserved=reserved)
    assert places(site.look(*ranks(0))) == [place]


def test_ranks_may_be_treated_each_in_its_own_way() -> None:
    policy = f"{UNIQUELY}\n[[rule]]\nuid = 7\nmode = 'node'"
    site = Site(FOUR, policy, identities={200: ProcessIdentity(7)})
    assert places(site.look(*ranks(0, 1))) == ["0-3", "0-7"]


def test_a_topology_that_was_read_anew_is_planned_on_anew() -> None:
    site = Site(FOUR)
    assert places(site.look(*ranks(0))) == ["0-7"]
    other = Site(made({0: "0-3", 1: "4-15"}, gpus=[0, 0, 1, 1]))
    other._history = site._history
    assert places(other.look(*ranks(0))) == ["0-3"]


def test_a_gpu_without_cpus_of_its_own_has_the_nearest() -> None:
    topology = made(
        {0: "0-3", 1: "4-7", 2: ""}, gpus=[2], distances=[("2", "0", 20), ("2", "1", 30)]
    )
    assert places(Site(topology, NEAR_ALONE).look(rank("0-7"))) == ["0-3"]
