"""Jobs with fewer near CPUs than they asked for: another allocation helps them, and no pin does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.allocations import with_allocations
from affinityd.audit.judge import Judge
from affinityd.audit.model import ProcessFacts
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import format_list, parse_list
from affinityd.enforce.policy.identity import ProcessIdentity
from tests.support.asking import ask
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process, scan_of
from tests.support.enforced_node import NEAR_ALONE, Site, masks, places, said
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

PAIR = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
LONE = made({0: "0-3", 1: "4-7"})
SECOND = ("nvidia", 1)
DGX = machine("dgx-a100")


def cause(*found: ProcessFacts, on: object = LONE) -> list[str | None]:
    """Return the causes of processes that were found together."""
    judged = [Judge(on).judge(facts) for facts in found]  # type: ignore[arg-type]
    return [it.cause for it in with_allocations(on, frozenset(), judged)]  # type: ignore[arg-type]


def of_slurm(mask: str, cpuset: str, **more: object) -> ProcessFacts:
    return process(mask, cpuset=cpuset, membership=SLURM_JOB, **more)  # type: ignore[arg-type]


def in_a_pod(mask: str, cpuset: str, limit: int | None) -> ProcessFacts:
    facts = process(mask, cpuset=cpuset, membership=KUBERNETES_POD)
    return replace(facts, cpu_limit=limit, cgroups="0::/a")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(of_slurm("2-5", "2-5"), "allocation", id="all four that it asked for"),
        pytest.param(of_slurm("5", "2-5"), "allocation", id="or some, as its task of several"),
        pytest.param(of_slurm("2-3", "2-5"), None, id="near ones alone are local all the same"),
        pytest.param(of_slurm("0-7", "2-5"), "unpinned", id="a mask beyond its cpuset, if it were"),
        pytest.param(of_slurm("4-5", "4-5"), "allocation", id="no near CPU at all"),
        pytest.param(
            replace(of_slurm("2-5", "2-5"), is_confined=False), "mask", id="not confined: not known"
        ),
        pytest.param(in_a_pod("2-5", "2-7", 4), "allocation", id="a pod's limit"),
        pytest.param(in_a_pod("2-7", "2-7", 4), "mask", id="more than its limit"),
        pytest.param(in_a_pod("2-5", "2-7", 2), "mask", id="a limit that near CPUs hold"),
        pytest.param(in_a_pod("2-5", "2-7", None), "allocation", id="as a plan gives so many"),
        pytest.param(in_a_pod("2-3,5", "2-7", None), "mask", id="as no plan does"),
        pytest.param(
            replace(in_a_pod("2-5", "2-7", 4), membership=LONE_CONTAINER), "mask", id="no job"
        ),
    ],
)
def test_cpus_that_were_asked_for_and_are_far_are_no_mistake_of_a_mask(
    facts: ProcessFacts, expected: str | None
) -> None:
    assert cause(facts) == [expected]


def test_the_gpus_of_a_job_divide_what_it_asked_for() -> None:
    first, second = of_slurm("0-1,4-7", "0-1,4-7"), of_slurm("4-7", "0-1,4-7", pid=200, gpu=SECOND)
    assert cause(first, second, on=PAIR) == ["mask", None]  # each has two, or four, near its own
    assert cause(first, on=PAIR) == ["allocation"]  # alone it asked for all six


def test_what_works_for_a_process_is_judged_with_it() -> None:
    rank = of_slurm("2-5", "2-5")
    worker = of_slurm("3-4", "2-5", pid=101, holder=100)
    assert cause(rank, worker) == ["allocation", "allocation"]


def test_a_job_with_a_machine_of_its_own_is_to_be_pinned() -> None:
    assert cause(of_slurm("0-255", "0-255"), on=DGX) == ["unpinned"]


def test_the_remedy_is_another_allocation_and_says_how_many_cpus_are_near() -> None:
    (audited,) = with_allocations(LONE, frozenset(), [Judge(LONE).judge(of_slurm("2-5", "2-5"))])
    remedy = Remedies(LONE, scan_of(LONE, audited)).of(audited)
    assert remedy is not None
    assert remedy.command is None
    assert "its job was given only 2 CPUs there: have Cores=" in remedy.why


def test_enforcement_leaves_what_has_the_cpus_that_it_asked_for() -> None:
    site = Site(LONE)
    (left,) = site.look(of_slurm("2-5", "2-5"))
    assert said(left) == ["left allocation"]
    assert "only 2 CPUs" in (left.why or "")
    assert said(*site.look(of_slurm("2-3", "2-5"))) == ["fits"]


def test_enforcement_never_takes_a_cpu_that_was_asked_for() -> None:
    pod = in_a_pod("2-7", "2-7", 4)
    (decision,) = Site(LONE).look(pod)
    assert (said(decision), places([decision])) == (["drifted mask"], ["2-5"])
    (pinned,) = Site(LONE).pin(pod)
    assert masks(pinned) == ["2-5"]


def test_what_a_plan_gave_for_more_than_a_machine_s_share_is_not_taken_back() -> None:
    """As `srun --exclusive -c64` of one task: no cgroup tells how many it asked for."""
    asked = ask(DGX, gpus="0", mode="node", task_cpus="64")
    given = format_list(asked.cpus)
    (left,) = Site(DGX).look(of_slurm(given, "0-255"))
    assert said(left) == ["left allocation"]
    assert cause(of_slurm(given, "0-255"), on=DGX) == ["allocation"]
    (moved,) = Site(DGX).look(of_slurm("0-63", "0-255"))  # as many, and not the nearest
    assert said(moved) == ["drifted mask"]


def test_a_process_that_asked_for_all_of_a_machine_keeps_it_where_its_environment_says_so() -> None:
    facts = of_slurm("0-255", "0-255")
    told = ProcessIdentity(given=parse_list("0-255"))
    (left,) = Site(DGX, identities={facts.pid: told}).look(facts)
    assert said(left) == ["left allocation"]
    assert "was given CPUs 0-255" in (left.why or "")
    (drifted,) = Site(DGX, identities={facts.pid: ProcessIdentity(given=parse_list("0-127"))}).look(
        facts
    )
    assert said(drifted) == ["drifted unpinned"]


def test_a_cgroup_below_a_container_asks_for_nothing_more() -> None:
    pod = in_a_pod("2-7", "2-7", 4)
    below = replace(pod, pid=300, cgroups="0::/a/b")
    assert cause(pod, below) == ["mask", "mask"]


def test_a_job_in_a_container_is_none_of_the_node_s() -> None:
    victim = of_slurm("0-1,4-7", "0-1,4-7")
    forged = replace(SLURM_JOB, outside="c" * 64)
    other = process("4-7", pid=200, gpu=SECOND, cpuset="0-1,4-7", membership=forged)
    assert cause(victim, other, on=PAIR)[0] == cause(victim, on=PAIR)[0] == "allocation"


def test_cpus_that_no_plan_gives_are_not_asked_for() -> None:
    judged = [Judge(LONE).judge(of_slurm("3-5", "0-5"))]
    (audited,) = with_allocations(LONE, parse_list("0-2"), judged)
    assert audited.cause == "allocation"


@pytest.mark.parametrize(
    ("policy", "place"),
    [
        pytest.param("", "2-7", id="what its job was given"),
        pytest.param('cpus = "granted"', "2-7", id="the same in a word"),
        pytest.param(NEAR_ALONE, "2-3", id="near CPUs alone"),
        pytest.param("cpus = 3", "2-4", id="a number"),
    ],
)
def test_the_policy_says_how_many_cpus_count_as_asked_for(policy: str, place: str) -> None:
    assert places(Site(LONE, policy).look(of_slurm("0-7", "2-7"))) == [place]
