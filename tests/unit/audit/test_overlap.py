"""CPUs that two jobs have both pinned themselves to."""

from __future__ import annotations

import pytest

from affinityd.audit.judge import overlap
from affinityd.audit.model import AuditedProcess, Job, Membership
from affinityd.cpuset import format_list
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, POD, audited, process

FIRST = Membership(Job("slurm", "7"))
SECOND = Membership(Job("slurm", "8"))
OTHER = Membership(container="ef56" * 16)
NEAR = "4-7"


def of(
    membership: Membership, *masks: str, cpuset: str | None = None, near: str | None = NEAR
) -> AuditedProcess:
    """Return a process whose second thread was pinned by a library."""
    return audited(process(*masks, membership=membership, cpuset=cpuset), itself=(1,), near=near)


def of_session(session: int | None, mask: str, pid: int = 100) -> AuditedProcess:
    return audited(process(mask, pid=pid, session=session))


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([of(FIRST, "4-5"), of(SECOND, "6-7")], ""),
        ([of(FIRST, "4-5"), of(SECOND, "5-6")], "5"),
        ([of(FIRST, "4-5"), of(FIRST, "5-6")], ""),
        # What takes all that is near, or all that its cpuset has of it, shares it.
        ([of(FIRST, "4-7"), of(SECOND, "4-7")], ""),
        ([of(FIRST, "4-5", cpuset="4-5"), of(SECOND, "4-5", cpuset="4-5")], ""),
        # Far CPUs, what libraries pinned, known daemons and GPUs of unknown place do not count.
        ([of(FIRST, "0-1"), of(SECOND, "0-1")], ""),
        ([of(FIRST, "4-7", "4"), of(SECOND, "4-7", "4")], ""),
        ([of(FIRST, "4"), audited(process("4", name="nv-hostengine"), is_daemon=True)], ""),
        ([of(FIRST, "4", near=None), of(SECOND, "4", near=None)], ""),
        # What is of no job is of its container, else of its session, else by itself.
        ([of_session(10, "4"), of_session(11, "4")], "4"),
        ([of_session(10, "4"), of_session(10, "4", pid=200)], ""),
        ([of_session(None, "4"), of_session(None, "4", pid=200)], "4"),
        ([of(LONE_CONTAINER, "4"), of(OTHER, "4")], "4"),
        # Of GPUs on two nodes a part of both is unique, and all of both is not.
        ([of(FIRST, "0-1,4-5", near="0-7"), of(SECOND, "1-2", near="0-3")], "1"),
        ([of(FIRST, "0-7", near="0-7"), of(SECOND, "1-2", near="0-3")], ""),
    ],
)
def test_overlap(processes: list[AuditedProcess], expected: str) -> None:
    assert format_list(frozenset().union(*overlap(processes).values())) == expected


def test_the_owners_of_an_overlap_are_named_once_for_all_of_its_cpus() -> None:
    found = overlap(
        [
            *(of(FIRST, "4-5,8-9", near="4-10"), of(SECOND, "5-6,8-9", near="4-10")),
            *(of(FIRST, "5"), of(KUBERNETES_POD, "6"), of(LONE_CONTAINER, "7")),
            *(of_session(40, "7"), of_session(None, "4,7", pid=300)),
        ]
    )
    assert found == {
        ("session 300", "slurm 7"): {4},
        ("slurm 7", "slurm 8"): {5, 8, 9},
        (f"kubernetes {POD}", "slurm 8"): {6},
        ("container cd34cd34cd34", "session 300", "session 40"): {7},
    }
