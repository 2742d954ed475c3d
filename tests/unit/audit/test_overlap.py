"""CPUs that two jobs have both pinned themselves to."""

from __future__ import annotations

import pytest

from affinityd.audit.model import AuditedProcess, Job, Membership
from affinityd.audit.overlap import overlap
from affinityd.cpuset import format_list
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, POD, audited, process

FIRST = Membership(Job("slurm", "7"))
SECOND = Membership(Job("slurm", "8"))
OTHER = Membership(container="ef56" * 16)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param([], "", id="nobody runs"),
        pytest.param(
            [
                audited(process("4-5", membership=FIRST)),
                audited(process("6-7", membership=SECOND)),
            ],
            "",
            id="two jobs, apart",
        ),
        pytest.param(
            [
                audited(process("4-5", membership=FIRST)),
                audited(process("5-6", membership=SECOND)),
            ],
            "5",
            id="two jobs that share a CPU",
        ),
        pytest.param(
            [audited(process("4-5", membership=FIRST)), audited(process("5-6", membership=FIRST))],
            "",
            id="two processes of one job",
        ),
        pytest.param(
            [
                audited(process("4-7", membership=FIRST)),
                audited(process("4-7", membership=SECOND)),
            ],
            "",
            id="who takes all that is near shares it",
        ),
        pytest.param(
            [
                audited(process("4-5", membership=FIRST, cpuset="4-5")),
                audited(process("4-5", membership=SECOND, cpuset="4-5")),
            ],
            "",
            id="and all that its cpuset has of it",
        ),
        pytest.param(
            [
                audited(process("0-1", membership=FIRST)),
                audited(process("0-1", membership=SECOND)),
            ],
            "",
            id="far CPUs are another matter",
        ),
        pytest.param(
            [
                audited(process("4-7", "4", membership=FIRST), itself=(1,)),
                audited(process("4-7", "4", membership=SECOND), itself=(1,)),
            ],
            "",
            id="what libraries pinned does not count",
        ),
        pytest.param(
            [
                audited(process("4", membership=FIRST)),
                audited(process("4", name="nv-hostengine"), is_daemon=True),
            ],
            "",
            id="nor do known daemons",
        ),
        pytest.param(
            [audited(process("4", session=10)), audited(process("4", pid=200, session=11))],
            "4",
            id="of no job: by session",
        ),
        pytest.param(
            [audited(process("4", session=10)), audited(process("4", pid=200, session=10))],
            "",
            id="of no job: one session",
        ),
        pytest.param(
            [audited(process("4")), audited(process("4", pid=200))],
            "4",
            id="of no job and no known session: by process",
        ),
        pytest.param(
            [
                audited(process("4", session=1, membership=LONE_CONTAINER)),
                audited(process("4", session=1, membership=OTHER)),
            ],
            "4",
            id="of no job: by container, before the session",
        ),
        pytest.param(
            [
                audited(process("4-6", membership=FIRST)),
                audited(process("5", membership=SECOND)),
                audited(process("6", pid=300, session=3)),
            ],
            "5-6",
            id="three of them",
        ),
        pytest.param(
            [
                audited(process("0-1,4-5", membership=FIRST), near="0-7"),
                audited(process("1-2", membership=SECOND), near="0-3"),
            ],
            "1",
            id="one that has taken a part of two nodes, for GPUs on both",
        ),
        pytest.param(
            [
                audited(process("0-7", membership=FIRST), near="0-7"),
                audited(process("1-2", membership=SECOND), near="0-3"),
            ],
            "",
            id="or all of both",
        ),
    ],
)
def test_overlap(processes: list[AuditedProcess], expected: str) -> None:
    assert format_list(frozenset().union(*overlap(processes).values())) == expected


def test_where_nobody_knows_what_is_near_nothing_overlaps() -> None:
    both = [audited(process("4", membership=it), near=None) for it in (FIRST, SECOND)]
    assert overlap(both) == {}


def test_the_owners_of_an_overlap_are_named() -> None:
    pod, container = KUBERNETES_POD, LONE_CONTAINER
    found = overlap(
        [
            audited(process("4-5", membership=FIRST)),
            audited(process("5-6", membership=SECOND)),
            audited(process("5", membership=FIRST)),
            audited(process("6", membership=pod)),
            audited(process("7", membership=container)),
            audited(process("7", session=40)),
            audited(process("4,7", pid=300)),
        ]
    )
    assert found == {
        ("session 300", "slurm 7"): {4},
        ("slurm 7", "slurm 8"): {5},
        (f"kubernetes {POD}", "slurm 8"): {6},
        ("container cd34cd34cd34", "session 300", "session 40"): {7},
    }


def test_cpus_with_the_same_owners_are_told_together() -> None:
    both = [audited(process("4-6", membership=it)) for it in (SECOND, FIRST)]
    found = overlap(both)
    assert found == {("slurm 7", "slurm 8"): {4, 5, 6}}
