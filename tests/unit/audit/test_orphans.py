"""Processes that hold a GPU and belong to no living job."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import pytest

from affinityd.audit.membership import service
from affinityd.audit.model import Holding, Membership, ProcessFacts
from affinityd.audit.orphans import MissingProcesses, missing_process, why
from affinityd.audit.owners import ProcessOwners
from affinityd.linux.process_table import ProcessTable
from tests.support.audit_facts import GPU, KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process
from tests.support.children import sleeping

NOBODY = 10**7  #: above any kernel's pid_max
INIT, STEPD, SHELL, TASK = 1, 40, 50, 100
SLURMD, SSHD, LOGIN, OTHERS = 41, 42, 43, 44

ALICE, BOB = 1000, 1001
NO_SESSION = (
    "the process that started it has ended, its owner (uid 1000) has no session left, and it "
    "belongs to no job, container or service"
)
NO_JOB = (
    "the process that started it has ended, and its owner (uid 1000) has no job here, though "
    "Slurm runs this node's jobs; it belongs to no container or service"
)


def owners_in(proc: Path) -> ProcessOwners:
    """Return what owns the processes of a /proc."""
    return ProcessOwners(ProcessTable(str(proc)))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(process("0"), None, id="its parent lives"),
        pytest.param(
            process("0", state="Z"),
            "it has ended, and whoever started it (process 50) has not noticed",
            id="a zombie",
        ),
        pytest.param(
            process("0", state="Z", parent=INIT),
            "it has ended, and whoever started it (process 1) has not noticed",
            id="a zombie that init is to notice",
        ),
        pytest.param(
            process("0", "0", state="Z"),
            "its main thread has ended, and others have not",
            id="a dead main thread",
        ),
        pytest.param(
            process("0", parent=INIT),
            NO_SESSION,
            id="left over",
        ),
        pytest.param(process("0", parent=INIT, service="ollama.service"), None, id="a service"),
        pytest.param(process("0", parent=INIT, membership=LONE_CONTAINER), None, id="a container"),
        pytest.param(process("0", parent=INIT, membership=KUBERNETES_POD), None, id="a pod"),
        pytest.param(
            process("0", parent=INIT, holds=False), None, id="left over, and it holds no GPU"
        ),
        pytest.param(process("0", state="Z", holds=False), None, id="a zombie that holds none"),
    ],
)
def test_who_is_an_orphan(facts: ProcessFacts, reason: str | None, tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    assert why(facts, owners_in(tmp_path)) == reason


def write(
    proc: Path,
    pid: int,
    name: str,
    *,
    parent: int,
    cgroup: str = "",
    title: str = "",
    uid: int = 0,
    terminal: int = 0,
    state: str = "S",
) -> None:
    """Write what /proc has of a process."""
    folder = proc / str(pid)
    folder.mkdir()
    head = f"{pid} ({name}) {state} {parent} 0 0 {terminal} "
    (folder / "stat").write_text(head + "0 " * 12 + "1 0 5 " + "0 " * 30)
    (folder / "status").write_text(f"Uid:\t{uid}\t0\t0\t0\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "cmdline").write_text(title)


#: A process of /proc: its pid, name, parent, uid and terminal.
Row = tuple[int, str, int, int, int]

SLURMD_OF_ROOT: Row = (SLURMD, "slurmd", INIT, 0, 0)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        pytest.param([], NO_SESSION, id="nothing else of its owner's runs"),
        pytest.param(
            [(SSHD, "sshd", INIT, 0, 0), (LOGIN, "sshd", SSHD, ALICE, 0)],
            None,
            id="root's sshd has let its owner in",
        ),
        pytest.param([(LOGIN, "bash", INIT, ALICE, 34816)], None, id="its owner has a terminal"),
        pytest.param([(LOGIN, "bash", 0, ALICE, 0)], None, id="let in from out of sight"),
        pytest.param(
            [(SSHD, "sshd", INIT, 0, 0), (LOGIN, "sshd", SSHD, BOB, 34816)],
            NO_SESSION,
            id="another user has a session",
        ),
        pytest.param(
            [(LOGIN, "systemd", INIT, ALICE, 0), (OTHERS, "(sd-pam)", LOGIN, ALICE, 0)],
            NO_SESSION,
            id="its user manager runs as long as it does, and is no session",
        ),
        pytest.param(
            [SLURMD_OF_ROOT, (LOGIN, "bash", INIT, ALICE, 34816)],
            NO_JOB,
            id="Slurm runs the node's jobs, and its owner has none there",
        ),
        pytest.param(
            [SLURMD_OF_ROOT, (STEPD, "slurmstepd", INIT, 0, 0), (OTHERS, "t", STEPD, ALICE, 0)],
            None,
            id="a job of its owner lives, and it may be of that one",
        ),
        pytest.param(
            [SLURMD_OF_ROOT, (STEPD, "slurmstepd", INIT, 0, 0), (OTHERS, "t", STEPD, BOB, 0)],
            NO_JOB,
            id="a job of another user lives",
        ),
        pytest.param(
            [(SLURMD, "slurmd", INIT, BOB, 0), (LOGIN, "bash", INIT, ALICE, 34816)],
            None,
            id="what a user calls slurmd runs no jobs",
        ),
    ],
)
def test_what_was_left_behind_is_an_orphan_where_nothing_owns_it(
    tmp_path: Path, others: list[Row], reason: str | None
) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, TASK, "python", parent=INIT, uid=ALICE)
    for pid, name, parent, uid, terminal in others:
        write(tmp_path, pid, name, parent=parent, uid=uid, terminal=terminal)
    assert why(process("0", parent=INIT), owners_in(tmp_path)) == reason


def test_a_zombie_of_a_session_is_none(tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, SSHD, "sshd", parent=INIT)
    write(tmp_path, LOGIN, "sshd", parent=SSHD, uid=ALICE, state="Z")
    assert why(process("0", parent=INIT), owners_in(tmp_path)) == NO_SESSION


@pytest.mark.parametrize("uid", [0, 999, None])
def test_what_the_system_runs_needs_no_session(tmp_path: Path, uid: int | None) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, SLURMD, "slurmd", parent=INIT)
    assert why(process("0", parent=INIT, uid=uid), owners_in(tmp_path)) is None


def test_where_sessions_cannot_be_seen_nothing_is_left_behind(tmp_path: Path) -> None:
    write(tmp_path, TASK, "python", parent=INIT, uid=ALICE)
    assert why(process("0", parent=INIT), owners_in(tmp_path)) is None


OF_JOB_7 = "0::/system.slice/slurmstepd.scope/job_7/step_0/slurm\n"
OF_JOB_8 = "0::/system.slice/slurmstepd.scope/job_8/step_0/slurm\n"


@pytest.mark.parametrize(
    ("parent", "stepd", "is_orphan"),
    [
        pytest.param(SHELL, ("slurmstepd", INIT, "", ""), False, id="it is above the task"),
        pytest.param(INIT, ("slurmstepd", INIT, OF_JOB_7, ""), False, id="it is in its cgroup"),
        pytest.param(
            INIT, ("slurmstepd", INIT, "", "slurmstepd: [7.batch]\0"), False, id="its title says so"
        ),
        pytest.param(INIT, ("slurmstepd", INIT, OF_JOB_8, ""), True, id="it is another job's"),
        pytest.param(
            INIT, ("slurmstepd", INIT, "", "slurmstepd: [77.0]\0"), True, id="of a longer number"
        ),
        pytest.param(SHELL, ("sshd", INIT, OF_JOB_7, ""), True, id="there is none"),
    ],
)
def test_a_job_of_slurms_lives_as_long_as_a_slurmstepd_of_it(
    tmp_path: Path, parent: int, stepd: tuple[str, int, str, str], is_orphan: bool
) -> None:
    write(tmp_path, INIT, "init", parent=0)
    name, above, cgroup, title = stepd
    write(tmp_path, STEPD, name, parent=above, cgroup=cgroup, title=title)
    write(tmp_path, SHELL, "bash", parent=STEPD)
    reason = why(process("0", parent=parent, membership=SLURM_JOB), owners_in(tmp_path))
    assert reason == ("Slurm's job 7 has ended: it has no slurmstepd any more" * is_orphan or None)


@pytest.mark.parametrize("parent", [INIT, STEPD])
def test_what_a_user_calls_slurmstepd_keeps_no_job_alive(tmp_path: Path, parent: int) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, STEPD, "slurmstepd", parent=INIT, cgroup=OF_JOB_7, uid=1000)
    assert why(process("0", parent=parent, membership=SLURM_JOB), owners_in(tmp_path)) is not None


def test_where_roots_processes_are_hidden_no_job_has_ended(tmp_path: Path) -> None:
    write(tmp_path, SHELL, "bash", parent=STEPD)
    assert why(process("0", parent=SHELL, membership=SLURM_JOB), owners_in(tmp_path)) is None


def test_a_job_of_which_a_slurmstepd_was_found_ends_with_it(tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, STEPD, "slurmstepd", parent=INIT, cgroup=OF_JOB_7)
    task = process("0", parent=INIT, membership=SLURM_JOB)
    assert why(task, owners_in(tmp_path)) is None
    shutil.rmtree(tmp_path / str(STEPD))
    assert why(task, owners_in(tmp_path)) is not None


def test_parents_that_seem_to_go_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, STEPD, "bash", parent=SHELL)
    write(tmp_path, SHELL, "bash", parent=STEPD)
    reason = why(process("0", parent=SHELL, membership=SLURM_JOB), owners_in(tmp_path))
    assert reason is not None


@pytest.mark.parametrize(
    ("cgroups", "expected"),
    [
        ("0::/system.slice/ollama.service\n", "ollama.service"),
        ("4:memory:/x\n1:name=systemd:/system.slice/a.service/sub\n", "a.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        ("0::/\n", None),
        ("", None),
        ("0::/user.slice/my.service.d/x\n", None),
    ],
)
def test_a_service_is_read_from_the_cgroup(cgroups: str, expected: str | None) -> None:
    assert service(cgroups) == expected


def missing(*scans: tuple[float, Collection[Holding]]) -> list[list[Holding]]:
    """Return the missing processes of scans, by when the driver was asked and what it named."""
    known = MissingProcesses()
    return [list(known.found(unseen, asked)) for asked, unseen in scans]


NAMED = Holding(NOBODY, GPU)


@pytest.mark.parametrize(
    ("scans", "expected"),
    [
        pytest.param([(1, [NAMED])], [[]], id="once may be a race"),
        pytest.param([(1, [NAMED]), (2, [NAMED])], [[], [NAMED]], id="twice"),
        pytest.param([(1, [NAMED]), (2, []), (3, [NAMED])], [[], [], []], id="not twice running"),
        pytest.param(
            [(1, [NAMED]), (2, [Holding(NOBODY, ("nvidia", 1))])], [[], []], id="on another GPU"
        ),
        pytest.param(
            [(1, [NAMED]), (1, [NAMED]), (1, [NAMED])],
            [[], [], []],
            id="said once, and it counts for three scans",
        ),
        pytest.param(
            [(1, [NAMED]), (1, [NAMED]), (2, [NAMED]), (2, [NAMED]), (3, [])],
            [[], [], [NAMED], [NAMED], []],
            id="said twice, and each counts for two",
        ),
        pytest.param(
            [(1, []), (1, [NAMED]), (2, [NAMED])], [[], [], []], id="it was there when it was named"
        ),
    ],
)
def test_what_the_driver_names_twice_and_is_not_there_is_missing(
    scans: list[tuple[float, list[Holding]]], expected: list[list[Holding]]
) -> None:
    assert missing(*scans) == expected


def test_a_process_that_proc_hides_is_not_missing() -> None:
    with sleeping() as child:
        hidden = [Holding(child.pid, GPU), Holding(INIT, GPU)]
        assert missing(*((asked, hidden) for asked in range(3))) == [[], [], []]


def test_a_missing_process_is_told_as_what_it_is() -> None:
    told = missing_process(Holding(NOBODY, GPU, memory_bytes=7))
    assert (told.facts.pid, told.facts.threads, told.placement) == (NOBODY, (), "unknown")
    assert told.facts.membership == Membership()
    assert told.orphan == "the driver names it, and there is no such process"
