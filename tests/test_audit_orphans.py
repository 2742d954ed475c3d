"""Processes that hold a GPU and belong to no living job."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import Holding, Membership, ProcessFacts
from affinityd.audit.orphans import Ghosts, Stepds, ghost, service, why
from tests.auditing import GPU, KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process
from tests.children import sleeping

NOBODY = 10**7  #: above any kernel's pid_max
INIT, STEPD, SHELL, TASK = 1, 40, 50, 100


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
            process("0", "0", state="Z"),
            "its main thread has ended, and others have not",
            id="a dead main thread",
        ),
        pytest.param(
            process("0", parent=INIT),
            "whoever started it is gone, and it is of no job, container or service",
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
    assert why(facts, Stepds(str(tmp_path))) == reason


def write(
    proc: Path, pid: int, name: str, *, parent: int, cgroup: str = "", title: str = ""
) -> None:
    """Write what /proc has of a process."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} " + "0 " * 16 + "5 " + "0 " * 30)
    (folder / "cgroup").write_text(cgroup)
    (folder / "cmdline").write_text(title)


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
    reason = why(process("0", parent=parent, membership=SLURM_JOB), Stepds(str(tmp_path)))
    assert reason == ("Slurm's job 7 has ended: it has no slurmstepd any more" * is_orphan or None)


def test_where_roots_processes_are_hidden_no_job_has_ended(tmp_path: Path) -> None:
    write(tmp_path, SHELL, "bash", parent=STEPD)
    assert why(process("0", parent=SHELL, membership=SLURM_JOB), Stepds(str(tmp_path))) is None


def test_a_job_of_which_a_slurmstepd_was_found_ends_with_it(tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, STEPD, "slurmstepd", parent=INIT, cgroup=OF_JOB_7)
    stepds = Stepds(str(tmp_path))
    task = process("0", parent=INIT, membership=SLURM_JOB)
    for _ in range(2):
        stepds.begin()
        assert why(task, stepds) is None
    shutil.rmtree(tmp_path / str(STEPD))
    stepds.begin()
    assert why(task, stepds) is not None


def test_who_is_left_over_stays_so_though_another_run_of_its_job_begins(tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    stepds = Stepds(str(tmp_path))
    task = process("0", parent=INIT, membership=SLURM_JOB)
    assert why(task, stepds) is not None
    write(tmp_path, STEPD, "slurmstepd", parent=INIT, cgroup=OF_JOB_7)
    stepds.begin()
    assert why(task, stepds) is not None
    assert why(replace(task, start=6), stepds) is None


def test_parents_that_seem_to_go_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    write(tmp_path, INIT, "init", parent=0)
    write(tmp_path, STEPD, "bash", parent=SHELL)
    write(tmp_path, SHELL, "bash", parent=STEPD)
    reason = why(process("0", parent=SHELL, membership=SLURM_JOB), Stepds(str(tmp_path)))
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


needs_initial = pytest.mark.skipif(
    not Ghosts().sees_all, reason="these tests run in a pid namespace of their own"
)


@needs_initial
def test_what_the_driver_names_twice_and_is_not_there_is_a_ghost() -> None:
    ghosts = Ghosts()
    named = Holding(NOBODY, GPU)
    assert ghosts.found([named]) == []
    assert ghosts.found([named]) == [named]
    assert ghosts.found([]) == []
    assert ghosts.found([named]) == []


@needs_initial
def test_a_process_that_proc_hides_is_no_ghost() -> None:
    ghosts = Ghosts()
    with sleeping() as child:
        for _ in range(3):
            assert ghosts.found([Holding(child.pid, GPU), Holding(INIT, GPU)]) == []


def test_in_a_pid_namespace_of_its_own_nobody_knows_of_ghosts(tmp_path: Path) -> None:
    ghosts = Ghosts(os.fspath(tmp_path))
    named = Holding(NOBODY, GPU)
    assert [ghosts.found([named]) for _ in range(3)] == [[], [], []]


def test_a_ghost_is_told_as_what_it_is() -> None:
    told = ghost(Holding(NOBODY, GPU, memory_bytes=7))
    assert (told.facts.pid, told.facts.threads, told.placement) == (NOBODY, (), "unknown")
    assert told.facts.membership == Membership()
    assert told.orphan == "the driver names it, and there is no such process"
