"""Who a process is: real ones, and folders of pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import Job, Membership, ProcessFacts
from affinityd.cpuset import CpuSet, parse_list
from affinityd.enforce.policy import identity
from affinityd.enforce.policy.identity import ProcessIdentities, ProcessIdentity, pods_of
from affinityd.linux import files
from affinityd.linux.processes import PROC, cgroups_of, stat_of
from affinityd.recent import REMEMBERED
from tests.support.audit_facts import KUBERNETES_POD, POD, SLURM_JOB, process
from tests.support.children import program, sleeping

NOBODYS = 3_999_999_999  #: a uid

JOB = {
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_ACCOUNT": "bio",
    "SLURM_JOB_USER": "alice",
    "TEAM": "vision",
    "SECRET": "of no rule",
}

#: Writes zeros over what it was started with, as setproctitle does: fields 48 to 51 of
#: proc_pid_stat(5) say where that is.
RETITLED = """
import ctypes
fields = open('/proc/self/stat').read().rpartition(')')[2].split()
arguments, _, environment, end = map(int, fields[45:49])
ctypes.memset(arguments, 0, end - arguments)
print('ready', flush=True)
input()
"""

SLURM = ("SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_USER")

#: Starts a worker of that code, and says its pid.
LAUNCHER = """
import subprocess, sys
command = [sys.executable, '-I', '-S', '-c', sys.argv[1]]
worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(worker.stdout.readline(), worker.pid, flush=True)
input()
"""


@contextmanager
def worker(code: str) -> Iterator[ProcessFacts]:
    """Run a worker of a job, which its launcher has started."""
    with program(LAUNCHER, code, env=JOB) as launcher:
        assert launcher.stdout is not None
        yield facts_of(int(launcher.stdout.readline()))


def facts_of(pid: int, *, uid: int | None = NOBODYS, proc: str = PROC) -> ProcessFacts:
    stat = stat_of(pid, proc)
    assert stat is not None
    return replace(process("0", pid=pid, uid=uid), start=stat.start, cgroups=cgroups_of(pid, proc))


def about(pid: int, *variables: str) -> ProcessIdentity:
    return ProcessIdentities().of(facts_of(pid), {*SLURM, *variables})


def test_a_job_is_told_by_the_environment_that_it_was_started_with() -> None:
    with sleeping(JOB) as child:
        told = about(child.pid, "TEAM", "SIZE")
        nobody_asked = ProcessIdentities().of(facts_of(child.pid), ("TEAM",))
        cgroups = cgroups_of(child.pid)
    assert (told.partition, told.account, told.user, told.uid) == ("gpu", "bio", "alice", NOBODYS)
    assert told.environment == {name: JOB[name] for name in JOB if name != "SECRET"}
    assert (nobody_asked.partition, nobody_asked.user) == (None, None)
    assert told.unread == nobody_asked.unread == frozenset()
    assert told.cgroups
    assert all(f":{path}\n" in cgroups for path in told.cgroups)
    assert told.switch == "on"
    assert (told.namespace, told.pod) == (None, None)


@pytest.mark.parametrize(
    ("uid", "user"),
    [(0, "root"), (NOBODYS, "alice"), (None, "alice")],
    ids=["a name that this machine has", "a uid without a name", "no uid"],
)
def test_a_user_is_who_the_machine_says_and_else_who_slurm_says(uid: int | None, user: str) -> None:
    with sleeping(JOB) as child:
        assert ProcessIdentities().of(facts_of(child.pid, uid=uid), SLURM).user == user


@pytest.mark.parametrize(
    ("text", "switch"),
    [
        *(("off", "off"), ("No", "off"), ("on", "on"), ("", "on")),
        *(("Observe", "observe"), ("obsreve", "off")),
    ],
)
def test_a_job_may_say_that_it_is_left_alone_or_observed(text: str, switch: str) -> None:
    with sleeping({"AFFINITYD": text}) as child:
        assert about(child.pid).switch == switch


@pytest.mark.parametrize(
    ("locality", "cpulist", "given"),
    [
        ("mixed", "0-3,8", parse_list("0-3,8")),
        *(("local", "0-3,8", None), ("mixed", "0-", None), ("mixed", "", frozenset())),
    ],
)
def test_a_job_may_say_which_cpus_it_was_given_near_and_far(
    locality: str, cpulist: str, given: CpuSet | None
) -> None:
    said = {"AFFINITYD_LOCALITY": locality, "AFFINITYD_CPULIST": cpulist}
    with sleeping(said) as child:
        assert about(child.pid).given == given


def test_of_a_variable_that_is_there_twice_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/stat").write_bytes(Path("/proc/self/stat").read_bytes())
    (tmp_path / "proc/7/environ").write_bytes(b"TEAM=\xff\0TEAM=second\0SIZE\0=\0")
    facts = facts_of(7, proc=str(tmp_path / "proc"))
    assert ProcessIdentities(str(tmp_path)).of(facts, ("TEAM", "SIZE")).environment == {
        "TEAM": "\udcff"
    }


def test_what_a_worker_wrote_over_is_asked_of_who_started_it() -> None:
    with worker(RETITLED) as facts:
        assert set(Path(f"/proc/{facts.pid}/environ").read_bytes()) == {0}
        told = ProcessIdentities().of(facts, (*SLURM, "TEAM"))
        elsewhere = ProcessIdentities().of(
            replace(facts, cgroups="0::/another/job\n"), (*SLURM, "TEAM")
        )
    assert (told.partition, (told.environment or {})["TEAM"]) == ("gpu", "vision")
    assert (elsewhere.partition, elsewhere.environment) == (None, None)
    assert elsewhere.unread == {"environment"}
    in_slurm = replace(facts, cgroups="0::/another/job\n", membership=SLURM_JOB)
    unread = ProcessIdentities().of(in_slurm, SLURM).unread
    assert unread == {"partition", "account", "user", "environment"}


def test_of_a_process_that_has_ended_or_whose_number_is_anothers_nothing_is_known() -> None:
    with sleeping(JOB) as child:
        facts = facts_of(child.pid)
        assert ProcessIdentities().of(replace(facts, start=facts.start + 1), ()).environment is None
    assert ProcessIdentities().of(facts, ()).environment is None


def test_an_environment_that_nobody_may_read_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/stat").write_bytes(Path("/proc/self/stat").read_bytes())
    assert (
        ProcessIdentities(str(tmp_path))
        .of(facts_of(7, proc=str(tmp_path / "proc")), ())
        .environment
        is None
    )


def test_an_environment_is_read_once_unless_more_is_asked_for() -> None:
    known = ProcessIdentities()
    with sleeping(JOB) as child:
        facts = facts_of(child.pid)
        first = known.of(facts, ("TEAM",)).environment
    assert known.of(facts, ("TEAM",)).environment is first
    assert known.of(facts, ("TEAM", "SIZE")).environment is None  # it has ended


def test_another_process_by_the_same_number_is_asked_anew() -> None:
    """What the former was started with is no word of the new one's."""
    known = ProcessIdentities()
    with sleeping({**JOB, "AFFINITYD": "off"}) as child:
        facts = facts_of(child.pid)
        assert known.of(facts, SLURM).switch == "off"
        other = known.of(replace(facts, start=facts.start + 1), SLURM)
    assert (other.switch, other.environment) == ("on", None)


def test_an_entry_that_is_cut_off_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/stat").write_bytes(Path("/proc/self/stat").read_bytes())
    (tmp_path / "proc/7/environ").write_bytes(b"TEAM=a\0SIZE=" + b"l" * files.MOST + b"\0")
    facts = facts_of(7, proc=str(tmp_path / "proc"))
    assert ProcessIdentities(str(tmp_path)).of(facts, ("TEAM", "SIZE")).environment == {"TEAM": "a"}


def test_a_user_is_looked_up_anew_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that did not answer at first is asked again."""
    names = iter((None, "alice"))
    monkeypatch.setattr(identity, "_name_of", lambda _uid: next(names))
    known = ProcessIdentities()
    with sleeping() as child:
        facts = facts_of(child.pid)
        for boot, name in ((REMEMBERED, None), (REMEMBERED + 15, None), (2 * REMEMBERED, "alice")):
            known.begin(boot)
            assert known.of(facts, SLURM).user == name


def test_who_is_not_asked_for_in_a_while_is_forgotten() -> None:
    known = ProcessIdentities()
    with sleeping(JOB) as child:
        facts = facts_of(child.pid)
        known.of(facts, SLURM)
    known.begin(REMEMBERED)
    assert known.of(facts, SLURM).partition == "gpu"
    for scan in range(2):
        known.begin(2 * REMEMBERED + 1 + scan)
    assert known.of(facts, SLURM).partition is None


HASH = "f9a3b61a8b4ad6bd0b5a1d6f1b2f4c3e"  #: the uid of a static pod


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (f"ml-team_trainer-0_{POD}", f"kube-system_etcd-node1_{HASH}", "lost+found"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_a_pod_is_called_as_the_folder_of_its_logs_says(folder: Path) -> None:
    known = pods_of(str(folder))
    assert known[POD] == {"namespace": "ml-team", "pod": "trainer-0"}
    assert known[HASH] == {"namespace": "kube-system", "pod": "etcd-node1"}


def test_a_process_of_a_pod_has_its_name_and_others_have_none(folder: Path) -> None:
    known = ProcessIdentities(pods=str(folder))
    of_pod = known.of(replace(process("0"), membership=KUBERNETES_POD), ())
    assert (of_pod.namespace, of_pod.pod) == ("ml-team", "trainer-0")
    of_slurm = known.of(replace(process("0"), membership=Membership(Job("slurm", POD))), ())
    assert (of_slurm.namespace, of_slurm.pod) == (None, None)


def test_a_pod_that_comes_is_known_at_the_next_scan(folder: Path) -> None:
    known, of_pod = ProcessIdentities(pods=str(folder)), Membership(Job("kubernetes", "new"))
    facts = replace(process("0"), membership=of_pod)
    assert known.of(facts, ()).pod is None
    (folder / "default_late_new").mkdir()
    known.begin(15.0)
    assert known.of(facts, ()).pod == "late"


def test_a_node_without_the_folders_tells_no_pod(tmp_path: Path) -> None:
    of_pod = replace(process("0"), membership=KUBERNETES_POD)
    told = ProcessIdentities(pods=str(tmp_path / "none")).of(of_pod, ())
    assert (told.pod, told.unread >= {"namespace", "pod"}) == (None, True)
