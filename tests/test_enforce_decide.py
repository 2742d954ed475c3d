"""What becomes of processes: verdicts, causes and reasons, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.model import Job, Membership, ProcessFacts
from affinityd.cpuset import parse_list
from affinityd.enforce.about import About
from affinityd.topology import Topology
from tests.auditing import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB
from tests.enforcing import NOW, Site, masks, moved, places, rank, said, worker
from tests.machines.by_hand import made
from tests.machines.facts import machine

TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
DGX = machine("dgx-a100")  # GPU 0 is on node 3
GH200 = machine("gh200x4")  # GPU 1 is on the second of four nodes
LOST = made({0: "0-3", 1: "4-7"}, gpus=[0, None])
NOBODY = Membership()


@pytest.mark.parametrize(
    ("topology", "gpu", "mask", "verdict"),
    [
        pytest.param(DGX, 0, "0-15", "drifted mask", id="far"),
        pytest.param(DGX, 0, "48-79", "drifted mask", id="near and far"),
        pytest.param(DGX, 0, "0-255", "drifted unpinned", id="nobody pinned it"),
        pytest.param(DGX, 0, "48-63,176-191", "fits", id="its node"),
        pytest.param(DGX, 0, "50", "fits", id="one near CPU: an OpenMP runtime collapsed it"),
        pytest.param(DGX, 0, "0", "drifted mask", id="one far CPU: another did"),
        pytest.param(GH200, 1, "72-143", "fits", id="a node of four"),
        pytest.param(GH200, 1, "0-71", "drifted mask", id="another of them"),
        pytest.param(GH200, 1, "0-287", "drifted unpinned", id="all of them"),
    ],
)
def test_a_rank_is_to_run_on_its_gpus_node(
    topology: Topology, gpu: int, mask: str, verdict: str
) -> None:
    facts = rank(mask, mask, gpu=gpu, cpuset="0-287")
    (decision,) = Site(topology).look(facts)
    assert said(decision) == [verdict]
    assert decision.drifted == (0 if verdict == "fits" else 2)


@pytest.mark.parametrize(
    ("cpuset", "place"),
    [
        pytest.param("40-70", "48-63", id="a part of it is near"),
        pytest.param("63-64", "63", id="one CPU is"),
        pytest.param("48-50", "48-50", id="all of it is"),
        pytest.param("0-300", "48-63,176-191", id="some of it is offline"),
    ],
)
def test_never_outside_of_its_cpuset(cpuset: str, place: str) -> None:
    decisions = Site(DGX).look(rank(cpuset, cpuset=cpuset))
    assert places(decisions) == [place]


def test_a_thread_with_all_cpus_that_are_online_is_nobodys_purpose() -> None:
    (decision,) = Site(DGX).look(rank("48-63", "0-255", cpuset="0-300"))
    assert said(decision) == ["drifted unpinned"]


RANK = rank("0-3")
FAR = rank("4-7")


@pytest.mark.parametrize(
    ("threads", "verdict", "on_purpose"),
    [
        pytest.param(["0-3", "0-3"], "fits", 0, id="all in place"),
        pytest.param(["0-3", "4-7"], "left on_purpose", 1, id="NCCL took the node of its NIC"),
        pytest.param(["0-7", "4-7"], "drifted unpinned", 1, id="before anybody pinned the rest"),
        pytest.param(["0-3", "0-7"], "drifted unpinned", 0, id="a thread has its whole cpuset"),
        pytest.param(["0-3", "2"], "fits", 0, id="a thread has a CPU of its own, near"),
        pytest.param(["0-3", "5", "6"], "fits", 2, id="OpenMP has a far core for each"),
        pytest.param(["4", "4", "6"], "drifted mask", 1, id="the main thread collapsed, far"),
        pytest.param(["1", "1", "6"], "fits", 1, id="or near"),
        pytest.param(["4-7", "0-3"], "drifted mask", 0, id="taskset without -a, on another"),
    ],
)
def test_a_thread_that_somebody_pinned_on_purpose_is_left(
    threads: list[str], verdict: str, on_purpose: int
) -> None:
    (decision,) = Site(TWO).look(rank(*threads))
    assert said(decision) == [verdict]
    assert decision.on_purpose == on_purpose


def test_a_librarys_thread_stays_on_purpose_after_our_pin() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7", "0-7", "5-6"))
    assert masks(pinned) == ["0-3", "0-3", "5-6"]
    (decision,) = site.look(pinned)
    assert said(decision) == ["fits"]
    assert decision.on_purpose == 1


def test_a_worker_that_somebody_confined_is_left_and_one_that_inherited_is_not() -> None:
    launcher = rank("0-7")
    started = [
        worker("0-7", of=launcher, pid=901),
        worker("6", of=launcher, pid=902),
        worker("2", of=launcher, pid=903),
    ]
    site = Site(TWO)
    decisions = site.look(launcher, *started)
    assert said(*decisions) == [
        "drifted unpinned",
        "drifted unpinned",
        "left on_purpose",
        "fits",
    ]
    assert decisions[2].why == (
        "somebody pinned it to 6 on purpose; taskset -apc 0-7 902 gives it back to its job"
    )
    later = site.pin(launcher, *started)
    assert said(*site.look(*later)) == ["fits", "fits", "left on_purpose", "fits"]


def test_a_worker_with_what_its_rank_had_at_first_has_inherited_it() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(FAR)
    late = worker("4-7", of=pinned)
    assert said(*site.look(pinned, late)) == ["fits", "drifted mask"]


def test_a_confined_workers_stray_thread_is_pinned_alone() -> None:
    (_, decision) = Site(TWO).look(RANK, worker("6", "0-7", of=RANK))
    assert said(decision) == ["drifted unpinned"]
    assert (decision.drifted, decision.on_purpose) == (1, 1)


def test_a_mask_that_we_gave_under_another_plan_is_nobodys_purpose() -> None:
    site = Site(TWO, 'mode = "unique_contiguous"')
    mates = [rank("0-7", pid=100, gpu=0), rank("0-7", pid=200, gpu=1)]
    pinned = site.pin(*mates)
    assert [masks(facts) for facts in pinned] == [["0-3"], ["4-7"]]
    site.policy = Site(TWO, 'mode = "single"').policy
    assert said(*site.look(*pinned)) == ["drifted share", "drifted share"]


@pytest.mark.parametrize(
    ("threads", "verdict"),
    [
        pytest.param(["4-7", "0-3"], "fits", id="the others are in place"),
        pytest.param(["0-3", "4-7"], "left on_purpose", id="one is elsewhere on purpose"),
        pytest.param(["0-3", "0-7"], "drifted unpinned", id="one has drifted"),
        pytest.param(["4-7", "4-7"], "drifted mask", id="one has what the main one had"),
    ],
)
def test_a_main_thread_that_has_ended_is_not_judged(threads: list[str], verdict: str) -> None:
    assert said(*Site(TWO).look(rank(*threads, state="Z"))) == [verdict]


def test_a_worker_whose_main_thread_has_ended_is_not_left_for_its_mask() -> None:
    ended = replace(worker("6", "0-3", of=RANK), state="Z")
    assert said(*Site(TWO).look(RANK, ended)) == ["fits", "fits"]


def test_a_rank_that_collapses_later_is_pinned_with_its_threads() -> None:
    site = Site(TWO)
    facts = rank("0-3", "0-3", "5")
    assert said(*site.look(facts)) == ["fits"]
    (decision,) = site.look(moved(facts, "6", "6", "5"))
    assert (said(decision), decision.drifted, decision.on_purpose) == (["drifted mask"], 2, 1)


SHARED = 'share = "requested"\nmode = "unique_contiguous"'


def test_a_rank_on_another_ranks_cpus_near_its_own_gpu_is_to_share_them() -> None:
    topology = made({0: "0-7", 1: "8-15"}, gpus=[0, 0])
    mates = [rank("0-7", gpu=gpu, cpuset="0-15") for gpu in (0, 1)]
    decisions = Site(topology, SHARED).look(*mates)
    assert said(*decisions) == ["drifted share"] * 2
    assert places(decisions) == ["0-3", "4-7"]


RESERVED = "0-3"
OVER = "Slurm's job 7 has ended: it has no slurmstepd any more"


def test_the_first_reason_that_holds_is_the_one_that_is_told() -> None:
    """Everything is wrong with a process, and is mended bit by bit."""
    off = {100: About(is_off=True)}
    wrong = rank("4-7", gpu=1, cpuset=None, membership=NOBODY)
    told = []

    def look(site: Site, *, is_daemon: bool = False, orphan: str | None = None) -> None:
        judged = replace(site.audited(wrong), is_daemon=is_daemon, orphan=orphan)
        told.extend(said(*site.look(judged)))

    wrong = replace(wrong, pid=100)
    look(Site(LOST, None, abouts=off), is_daemon=True, orphan=OVER)
    look(Site(LOST, None, abouts=off), orphan=OVER)
    look(Site(LOST, None, abouts=off))
    wrong = replace(wrong, membership=KUBERNETES_POD)
    look(Site(LOST, None, abouts=off))
    look(Site(LOST, "leave = true", abouts=off))
    look(Site(LOST, abouts=off))
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
            Site(TWO, abouts={100: About(is_off=True)}),
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
    unread = About(unread=frozenset(("partition",)))
    site = Site(TWO, '[[rule]]\npartition = "debug"\nleave = true', abouts={100: unread})
    (decision,) = site.look(rank(mask))
    assert (said(decision), decision.cause) == ([verdict], cause)
    assert decision.why == (
        "rule 1 of the policy may leave it, and asks for what cannot be read here (partition): "
        "give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for environments, /var/log/pods "
        "for namespaces and pods; or ask for something else"
        if cause
        else None
    )


def test_a_workers_allocation_is_its_own() -> None:
    """It may be in a cpuset of its own below that of whom it works for."""
    decisions = Site(TWO).look(RANK, worker("4-5", of=RANK, cpuset="4-7"))
    assert said(*decisions) == ["fits", "left allocation"]


def test_a_launcher_far_from_its_own_gpu_is_not_said_to_be_near() -> None:
    """Below it is a process whose GPU has near CPUs in their cpuset."""
    launcher = rank("4-5", gpu=0, cpuset="4-7", pid=100)
    below = rank("4-7", gpu=1, cpuset="4-7", pid=200, parent=100)
    wide = moved(launcher, "4-7")
    assert said(*Site(TWO, reserved="7").look(wide, below)) == ["drifted mask", "drifted share"]


def test_who_has_drifted_is_told_from_where_to_where() -> None:
    (decision,) = Site(TWO).look(rank("4-6", "0-7"))
    assert decision.why == "it may run on CPUs 0-7, and is to run on 0-3"


def test_of_whom_a_thread_is_far_on_purpose_it_is_told_which() -> None:
    (decision,) = Site(TWO).look(rank("0-3", "4-7", "4-7", "2"))
    assert decision.why == (
        "2 threads of it (first 101) may run on CPUs 4-7: somebody chose them; affinityd pin "
        "--force moves them"
    )


def test_a_librarys_far_node_is_its_own_choice_to_the_audit_too_after_our_pin() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7", "0-7", "4-7"))
    assert masks(pinned) == ["0-3", "0-3", "4-7"]
    (decision,) = site.look(pinned)
    assert said(decision) == ["fits"]
    assert (decision.on_purpose, decision.process.is_mismatch) == (1, False)


def test_a_mask_of_ours_that_the_cpuset_has_outgrown_is_widened() -> None:
    """The kernel keeps what was asked for, where it can (since Linux 6.2)."""
    site = Site(TWO)
    (pinned,) = site.pin(rank("0,4-7", cpuset="0,4-7"))
    assert masks(pinned) == ["0"]
    grown = replace(pinned, cpuset=parse_list("0-7"))
    (again,) = site.pin(grown, boot=NOW + 15)
    assert masks(again) == ["0-3"]
    assert site.calm.resets == 0
    assert said(*site.look(again, boot=NOW + 30)) == ["fits"]


def test_a_narrower_mask_that_somebody_else_chose_is_not_widened() -> None:
    site = Site(TWO)
    (pinned,) = site.pin(rank("0-7"))
    assert said(*site.look(moved(pinned, "2"), boot=NOW + 15)) == ["fits"]


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
    assert {it.why for it in decisions} == {f"{OVER}; look what it does, then end it: kill 100"}


def test_what_a_known_daemon_starts_is_let_alone_with_it() -> None:
    site = Site(TWO)
    daemon = replace(site.audited(rank("0-7", membership=KUBERNETES_POD)), is_daemon=True)
    assert said(*site.look(daemon, worker("0-7", of=daemon.facts))) == ["left daemon"] * 2


def test_who_opts_out_does_so_for_all_of_its_job() -> None:
    site = Site(TWO, abouts={200: About(is_off=True)})
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
    site = Site(TWO, abouts={other.pid: About(is_off=True)})
    decisions = site.look(victim, other, inside)
    assert said(*decisions) == ["drifted unpinned", "left opted_out", "drifted unpinned"]
    jobs = [it.job.id for it in decisions if it.job is not None]
    assert jobs == [its[3:-1], spoof[3:-1], its[3:-1]]


def test_nobody_takes_part_in_a_job_of_slurm_from_within_a_container() -> None:
    within = replace(SLURM_JOB, outside=CONTAINER)
    decisions = Site(TWO, abouts={200: About(is_off=True)}).look(
        rank("0-7"), rank("0-7", gpu=1, membership=within)
    )
    assert said(*decisions) == ["drifted unpinned", "left opted_out"]
    assert decisions[1].job == Job("slurm", f"7 in container {CONTAINER}")


def test_in_a_cgroup_that_a_rule_names_each_user_opts_out_for_themselves() -> None:
    mine, other = (
        rank("0-7", gpu=gpu, membership=NOBODY, cgroups="0::/shared\n") for gpu in (0, 1)
    )
    theirs = replace(other, uid=1001)
    abouts = {it.pid: About(cgroups=("/shared",), is_off=it is theirs) for it in (mine, theirs)}
    site = Site(TWO, '[[rule]]\ncgroup = "/shared"', abouts=abouts)
    assert said(*site.look(mine, theirs)) == ["drifted unpinned", "left opted_out"]


def test_who_works_for_a_process_is_treated_as_that() -> None:
    site = Site(TWO, "[[rule]]\nuid = 7\nleave = true", abouts={100: About(7), 900: About(8)})
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
