"""Judgment of processes that use GPUs."""

import pytest

from affinityd.audit.judge import Judge, is_known_daemon, overlap
from affinityd.audit.model import AuditedProcess, Job, Membership, ProcessFacts
from affinityd.cpuset import format_list, parse_list
from affinityd.topology.model import Topology
from tests.support.audit_facts import (
    GPU,
    KUBERNETES_POD,
    LONE_CONTAINER,
    SLURM_JOB,
    audited,
    process,
)
from tests.support.machines.by_hand import made
from tests.support.tables import cases, rows

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1], threads=2, siblings="adjacent")
LOST = made({0: "0-3", 1: "4-7"}, gpus=[None])
THREE = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[1, 2, 1])
BESIDE = ("nvidia", 1)


def judged(topology: Topology, facts: ProcessFacts) -> tuple[str, str]:
    found = Judge(topology).judge(facts)
    return found.placement, found.cause or ""


@pytest.mark.parametrize(("masks", "cpuset", "expected", "itself"), cases("placements.tsv"))
def test_a_process_s_placement_is_that_of_its_threads_that_no_library_pinned(
    masks: str, cpuset: str, expected: str, itself: str
) -> None:
    facts = process(*masks.split(), cpuset=cpuset or None)
    found = Judge(TWO).judge(facts)
    assert " ".join(filter(None, (found.placement, found.cause))) == expected
    assert [f"{at}" for at, it in enumerate(found.threads) if it.pinned_itself] == itself.split()
    assert found.near == Judge(TWO).near[GPU] == parse_list("4-7")
    lost = Judge(LOST).judge(facts)
    assert (lost.placement, lost.cause, lost.near) == ("unknown", None, None)


@pytest.mark.parametrize(
    ("mask", "cpuset", "expected", "cause"),
    rows("""
    a CPU near the second GPU | 8 | 0-11 | local |
    CPUs near both GPUs | 6-9 | 0-11 | local |
    far from both GPUs, with near CPUs in the cpuset | 0-3 | 0-8 | remote | mask
    a cpuset far from both GPUs | 0-3 | 0-3 | remote | allocation
    CPUs near a GPU, and far CPUs | 0-7 | 0-11 | mixed | mask
    unpinned | 0-11 | 0-11 | unpinned | unpinned
    """),
)
def test_cpus_near_any_of_several_gpus_are_near(
    mask: str, cpuset: str, expected: str, cause: str
) -> None:
    facts = process(mask, cpuset=cpuset, beside=(BESIDE,))
    assert judged(THREE, facts) == (expected, cause)
    assert Judge(THREE).judge(facts).near == parse_list("4-11")


def test_ended_processes_are_not_judged_but_their_living_threads_are() -> None:
    assert judged(TWO, process("0-3", "4-7", state="Z"))[0] == "local"
    assert judged(TWO, process("0-3", state="Z"))[0] == "unknown"
    assert judged(TWO, process(state="X"))[0] == "unknown"


@pytest.mark.parametrize(
    ("name", "uid", "membership", "is_known"),
    [
        ("nv-hostengine", 0, Membership(), True),
        ("nvidia-persiste", 999, Membership(), True),  # the kernel keeps 15 letters
        ("dcgm-exporter", 0, KUBERNETES_POD, True),
        ("dcgm-exporter", 0, SLURM_JOB, False),  # a job chose this name
        ("nv-hostengine", 1000, Membership(), False),
        ("nv-hostengine", None, Membership(), False),
        ("python3", 0, Membership(), False),
    ],
)
def test_known_daemons_are_recognized_by_their_names(
    name: str, uid: int | None, membership: Membership, is_known: bool
) -> None:
    facts = process("0-7", name=name, uid=uid, membership=membership)
    assert is_known_daemon(facts) is is_known


#: Two jobs, which may have pinned themselves to the same CPUs.
FIRST = Membership(Job("slurm", "7"))
SECOND = Membership(Job("slurm", "8"))
OTHER = Membership(container="ef56" * 16)
NEAR = "4-7"


def of(
    membership: Membership, *masks: str, cpuset: str | None = None, near: str | None = NEAR
) -> AuditedProcess:
    return audited(process(*masks, membership=membership, cpuset=cpuset), itself=(1,), near=near)


def of_session(session: int | None, mask: str, pid: int = 100) -> AuditedProcess:
    return audited(process(mask, pid=pid, session=session))


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([of(FIRST, "4-5"), of(SECOND, "6-7")], ""),
        ([of(FIRST, "4-5"), of(SECOND, "5-6")], "5"),
        ([of(FIRST, "4-5"), of(FIRST, "5-6")], ""),
        # A process on all near CPUs, or on all near CPUs of its cpuset, shares them.
        ([of(FIRST, "4-7"), of(SECOND, "4-7")], ""),
        ([of(FIRST, "4-5", cpuset="4-5"), of(SECOND, "4-5", cpuset="4-5")], ""),
        # Far CPUs, what libraries pinned, known daemons and GPUs of unknown place do not count.
        ([of(FIRST, "0-1"), of(SECOND, "0-1")], ""),
        ([of(FIRST, "4-7", "4"), of(SECOND, "4-7", "4")], ""),
        ([of(FIRST, "4"), audited(process("4", name="nv-hostengine"), is_daemon=True)], ""),
        ([of(FIRST, "4", near=None), of(SECOND, "4", near=None)], ""),
        # A process of no job counts by its container, or else by its session, or else alone.
        ([of_session(10, "4"), of_session(11, "4")], "4"),
        ([of_session(10, "4"), of_session(10, "4", pid=200)], ""),
        ([of_session(None, "4"), of_session(None, "4", pid=200)], "4"),
        ([of(LONE_CONTAINER, "4"), of(OTHER, "4")], "4"),
        # With GPUs on two nodes, CPUs count as pinned unless they are all CPUs of both nodes.
        ([of(FIRST, "0-1,4-5", near="0-7"), of(SECOND, "1-2", near="0-3")], "1"),
        ([of(FIRST, "0-7", near="0-7"), of(SECOND, "1-2", near="0-3")], ""),
    ],
)
def test_cpus_that_several_jobs_have_pinned_overlap(
    processes: list[AuditedProcess], expected: str
) -> None:
    assert format_list(frozenset().union(*overlap(processes).values())) == expected
