"""The jobs of processes by their cgroups, and processes that hold a GPU without a living job."""

import os
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.auditor import Auditor
from affinityd.audit.findings import states
from affinityd.audit.jobs import ProcessOwners, membership, service, why_orphan
from affinityd.audit.model import SLURM, GpuHolders, Holding, Job, Membership, ProcessFacts
from affinityd.linux.processes import ProcessTable
from affinityd.topology.model import GpuKey
from tests.support.audit_facts import GPU, KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process
from tests.support.machines.by_hand import made
from tests.support.tables import cases, rows

UID = "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01"
ID = "3f1a" * 16

STEPS = "/system.slice/slurmstepd.scope"
IN_POD = f"kubernetes {UID} container {ID}"


def member(cgroups: str) -> str:
    """Return the job, step and container of a process."""
    it = membership(cgroups)
    job = f"{it.job.scheduler} {it.job.id}" if it.job else None
    named = {"step": it.step, "container": it.container}
    return " ".join(filter(None, (job, *(f"{name} {id_}" for name, id_ in named.items() if id_))))


@pytest.mark.parametrize(("path", "expected"), cases("cgroups.tsv"))
def test_only_folders_of_schedulers_and_runtimes_tell_job_and_container(
    path: str, expected: str
) -> None:
    assert member(f"0::{path}\n") == expected


UNNUMBERED = Job(SLURM, "sEKNKTV3WPV500")


@pytest.mark.parametrize(
    ("title", "uid", "job"),
    [
        ("slurmstepd: [4711.0]", 0, Job(SLURM, "4711")),
        ("slurmstepd: [4711.batch]", 0, Job(SLURM, "4711")),
        ("slurmstepd: [4711.0]", 1000, UNNUMBERED),  # a user's program with this title
        ("slurmstepd: [4711+1.0]", 0, UNNUMBERED),  # a component has another number
        ("slurmstepd", 0, UNNUMBERED),  # the title is not set yet
    ],
)
def test_a_slurmstepd_s_title_gives_the_number_of_a_job_with_a_sluid(
    tmp_path: Path, title: str, uid: int, job: Job
) -> None:
    folder = f"{STEPS}/{UNNUMBERED.id}"
    mounts = "29 22 0:26 / /cg rw - cgroup2 cgroup rw"
    for path, text in (
        ("proc/self/mountinfo", mounts),
        (f"cg{folder}/step_batch/slurm/cgroup.procs", "70\n71\n"),
        ("proc/71/cmdline", title),
        ("proc/71/status", f"Name:\tslurmstepd\nUid:\t{uid}\t{uid}\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    its = membership(f"0::{folder}/step_0/user/task_0\n", str(tmp_path))
    assert (its.job, its.step) == (job, "0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("garbage\n0::\n", ""),
        ("11:memory:/user.slice\n9:cpuset:/slurm/uid_1/job_7/step_0\n", "slurm 7 step 0"),
        (f"9:cpuset:/docker/{ID}\n8:freezer:/slurm/uid_1/job_7/step_0\n", "slurm 7 step 0"),
        (f"5:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/init.scope\n", IN_POD),
        (f"5:devices:/\n0::/system.slice/docker-{ID}.scope\n", f"container {ID}"),
    ],
)
def test_the_job_may_be_in_any_line_of_the_cgroup_file(text: str, expected: str) -> None:
    assert member(text) == expected


def test_systemds_service_is_read_from_the_cgroup() -> None:
    assert service("4:memory:/x\n1:name=systemd:/system.slice/a.service/sub\n") == "a.service"
    assert service("0::/user.slice/user-1000.slice/session-3.scope\n") is None
    assert service("0::/user.slice/my.service.d/x\n") is None


ABSENT = 10**7  #: above any kernel's pid_max
INIT = "1 init 0 0 0"

LEFT = "its parent has ended, its user (uid 1000) has no"
NO_JOB = f"{LEFT} Slurm job on this node, and it is in no container or service"
NOT_NOTICED = "it has ended, and its parent (process {}) has not waited for it"
HEADLESS = "its main thread has ended, and other threads still run"
ENDED = "Slurm job 7 has ended: it has no slurmstepd any more"


def owners(proc: Path, *processes: str, says: str = "") -> ProcessOwners:
    """Return the owners of a new /proc; a process is `PID NAME PARENT UID TERMINAL [STATE]`.

    `says` is the text of all cgroup files and titles.
    """
    for line in processes:
        pid, name, parent, uid, terminal, *state = line.split()
        folder = proc / pid
        folder.mkdir()
        head = f"{pid} ({name}) {''.join(state) or 'S'} {parent} 0 0 {terminal} "
        (folder / "stat").write_text(head + "0 " * 12 + "1 0 5 " + "0 " * 30)
        (folder / "status").write_text(f"Uid:\t{uid}\t0\t0\t0\n")
        (folder / "cgroup").write_text(says)
        (folder / "cmdline").write_text(says)
    return ProcessOwners(ProcessTable(str(proc)))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (process("0"), None),
        (process("0", state="Z"), NOT_NOTICED.format(50)),
        (process("0", "0", state="Z"), HEADLESS),
        (process("0", parent=1), None),  # no scheduler owns the node
        (process("0", state="Z", holds=False), None),
    ],
)
def test_a_process_is_an_orphan_if_it_has_ended_or_lost_its_main_thread(
    facts: ProcessFacts, reason: str | None, tmp_path: Path
) -> None:
    assert why_orphan(facts, owners(tmp_path, INIT)) == reason


@pytest.mark.parametrize(
    ("others", "reason"),
    rows("""
    no scheduler owns the node |  |
    its owner has no job, on a Slurm node | 41 slurmd 1 0 0; 43 bash 1 1000 34816 | job
    its owner has a job, on a Slurm node | 41 slurmd 1 0 0; 40 slurmstepd 1 0 0; 44 t 40 1000 0 |
    only another user has a job | 41 slurmd 1 0 0; 40 slurmstepd 1 0 0; 44 t 40 1001 0 | job
    a user's program with the name slurmd | 41 slurmd 1 1001 0; 43 bash 1 1000 34816 |
    """),
)
def test_a_process_of_no_job_container_or_service_is_an_orphan_where_slurm_runs(
    tmp_path: Path, others: str, reason: str
) -> None:
    there = owners(tmp_path, INIT, "100 python 1 1000 0", *filter(None, others.split("; ")))
    assert why_orphan(process("0", parent=1), there) == (NO_JOB if reason else None)


@pytest.mark.parametrize(
    "owner",
    [
        *({"membership": it} for it in (LONE_CONTAINER, KUBERNETES_POD)),
        *({"uid": uid} for uid in (0, 999, None)),
        *({"holds": False}, {"service": "ollama.service"}),
    ],
)
def test_on_slurm_nodes_processes_of_containers_services_or_system_users_are_no_orphans(
    tmp_path: Path, owner: dict[str, Any]
) -> None:
    there = owners(tmp_path, INIT, "100 python 1 1000 0", "41 slurmd 1 0 0")
    assert why_orphan(process("0", parent=1, **owner), there) is None


OF_JOB = "0::/system.slice/slurmstepd.scope/job_{}/step_0/slurm\n"
TITLE = "slurmstepd: [{}]\0"
STEPD, FORGED = "40 slurmstepd 1 0 0", "40 slurmstepd 1 1000 0"
SHELL = "50 bash 40 1000 0"


@pytest.mark.parametrize(
    ("parent", "stepd", "says", "is_orphan"),
    [
        (50, STEPD, "", False),  # the slurmstepd is above the task
        (1, STEPD, OF_JOB.format(7), False),
        (1, STEPD, TITLE.format("7.batch"), False),
        (1, STEPD, TITLE.format("77.0"), True),
        (50, "40 sshd 1 0 0", OF_JOB.format(7), True),
        (50, FORGED, OF_JOB.format(7), True),  # a user's program of that name keeps no job alive
        (50, "40 bash 50 0 0", "", True),  # parents that seem to go in a circle
    ],
)
def test_a_slurm_job_lives_while_it_has_a_slurmstepd(
    tmp_path: Path, parent: int, stepd: str, says: str, is_orphan: bool
) -> None:
    there = owners(tmp_path, INIT, stepd, SHELL, says=says)
    reason = why_orphan(process("0", parent=parent, membership=SLURM_JOB), there)
    assert reason == (ENDED if is_orphan else None)


SLUID = "sEKNKTV3WPV500"
UNNUMBERED_TASK = Membership(Job("slurm", SLUID), step="0", sluid=SLUID)
BY_SLUID = OF_JOB.replace("job_{}", "{}")


@pytest.mark.parametrize(
    ("its", "is_orphan"), [(SLUID, False), ("sEKNKTV3WPV501", True), ("job_7", True)]
)
def test_a_job_without_a_number_lives_while_a_slurmstepd_is_in_its_folder(
    tmp_path: Path, its: str, is_orphan: bool
) -> None:
    there = owners(tmp_path, INIT, STEPD, says=BY_SLUID.format(its))
    reason = why_orphan(process("0", parent=1, membership=UNNUMBERED_TASK), there)
    assert reason == (ENDED.replace("7", SLUID) if is_orphan else None)


@pytest.mark.parametrize("task", [process("0", parent=1), process("0", membership=SLURM_JOB)])
def test_a_job_lives_if_processes_of_root_are_hidden(tmp_path: Path, task: ProcessFacts) -> None:
    assert why_orphan(task, owners(tmp_path, "100 python 1 1000 0")) is None


NAMED = [Holding(ABSENT, GPU)]
ELSEWHERE = [Holding(ABSENT, ("nvidia", 1))]
HIDDEN = [Holding(os.getpid(), GPU), Holding(1, GPU)]  #: processes that /proc hides


@pytest.mark.parametrize(
    ("scans", "missing"),
    [
        ([NAMED, NAMED], [[], [ABSENT]]),  # missing in one scan: perhaps a race
        ([NAMED, [], NAMED], [[], [], []]),
        ([NAMED, ELSEWHERE], [[], []]),
        ([HIDDEN, HIDDEN], [[], []]),
    ],
)
def test_a_pid_listed_twice_by_the_driver_but_without_a_process_is_missing(
    tmp_path: Path, scans: list[list[Holding]], missing: list[list[int]]
) -> None:
    held = (GpuHolders(tuple(holdings)) for holdings in scans)
    auditor, machine = Auditor(lambda _: next(held), str(tmp_path)), made({0: "0"}, gpus=[0, 0])
    found = [auditor.scan(machine).processes for _ in scans]
    assert [[it.facts.pid for it in processes] for processes in found] == missing
    why = "the driver lists it, and there is no such process"
    assert {it.orphan for processes in found for it in processes} <= {why}


SECOND = ("nvidia", 1)


@pytest.mark.parametrize(
    ("note", "title", "held", "reserved"),
    [
        ("gpus=0,1\n", "7.batch", (), {GPU, SECOND}),
        ("gpus=0,1\n", "7.batch", NAMED, {SECOND}),  # a process uses GPU 0
        ("gpus=1,9,MIG-a\n", "7.extern", (), {SECOND}),
        ("gpus=0,1\n", "8.batch", (), set()),  # no Epilog has removed the note
        ("", "7.batch", (), set()),
    ],
)
def test_unused_gpus_in_a_running_job_s_note_are_reserved(
    tmp_path: Path, note: str, title: str, held: list[Holding], reserved: set[GpuKey]
) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    owners(proc, INIT, STEPD, says=TITLE.format(title))
    notes = tmp_path / "run/affinityd-jobs"
    notes.mkdir(parents=True)
    (notes / "7").write_text(note)
    auditor = Auditor(lambda _: GpuHolders(tuple(held)), str(proc))
    machine = made({0: "0"}, gpus=[0, 0])
    auditor.scan(machine)
    scan = auditor.scan(machine)  # from the second scan on, a holder without a process counts
    assert scan.reserved == dict.fromkeys(reserved, "slurm 7")
    assert [states(scan)[gpu] for gpu in sorted(reserved)] == ["reserved"] * len(reserved)
