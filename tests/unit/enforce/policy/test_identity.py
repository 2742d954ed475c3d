"""Who a process is, by files like those of /proc, and folders of pods."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import Job, Membership, ProcessFacts
from affinityd.cpuset import CpuSet, parse_list
from affinityd.enforce.policy import environ, identity
from affinityd.enforce.policy.identity import ProcessIdentities, ProcessIdentity, pods_of
from affinityd.linux import files
from affinityd.recent import REMEMBERED
from tests.support.audit_facts import KUBERNETES_POD, POD, SLURM_JOB, process
from tests.support.daemons import PATIENCE, eventually

UNNAMED = 3_999_999_999  #: a uid without a name
SLURMS = {"SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "bio", "SLURM_JOB_USER": "alice"}
SLURM = (*SLURMS,)
JOB = {**SLURMS, "TEAM": "vision", "SECRET": "of no rule"}
ENVIRON = "".join(f"{name}={text}\0" for name, text in JOB.items())
STAT = f"{{}} (python) S 1 {'0 ' * 17}5 {'0 ' * 30}"
RETITLED = "\0\0\0"


def facts(root: Path, environ: str | bytes | None = ENVIRON, pid: int = 7) -> ProcessFacts:
    """Write what /proc has of a process: its environment; None: it cannot be read."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(STAT.format(pid))
    if environ is not None:
        (folder / "environ").write_bytes(
            environ if isinstance(environ, bytes) else environ.encode()
        )
    return process("0", pid=pid, uid=UNNAMED)


def told(root: Path, environ: str | bytes | None, *variables: str) -> ProcessIdentity:
    return ProcessIdentities(str(root)).of(facts(root, environ), variables)


def test_a_job_is_told_by_the_environment_that_it_was_started_with(tmp_path: Path) -> None:
    its = replace(facts(tmp_path), cgroups="4:memory:/m\n0::/a/b\n")
    said = {name: text for name, text in JOB.items() if name != "SECRET"}
    known = ProcessIdentities(str(tmp_path))
    whole = ProcessIdentity(
        UNNAMED, "alice", "gpu", "bio", cgroups=("/m", "/a/b"), environment=said
    )
    assert known.of(its, (*SLURM, "TEAM", "SIZE")) == whole
    team = ProcessIdentity(UNNAMED, cgroups=("/m", "/a/b"), environment={"TEAM": "vision"})
    assert known.of(its, ("TEAM",)) == team


@pytest.mark.parametrize(
    ("uid", "user"),
    [(0, "root"), (UNNAMED, "alice"), (None, "alice")],
    ids=["a name that this machine has", "a uid without a name", "no uid"],
)
def test_a_user_is_who_the_machine_says_and_else_who_slurm_says(
    tmp_path: Path, uid: int | None, user: str
) -> None:
    its = replace(facts(tmp_path), uid=uid)
    assert ProcessIdentities(str(tmp_path)).of(its, SLURM).user == user


@pytest.mark.parametrize(
    ("text", "switch"),
    [("off", "off"), ("", "on"), ("Observe", "observe"), ("obsreve", "off")],
)
def test_a_job_may_say_that_it_is_left_alone_or_observed(
    tmp_path: Path, text: str, switch: str
) -> None:
    assert told(tmp_path, f"AFFINITYD={text}\0").switch == switch


@pytest.mark.parametrize(
    ("locality", "cpulist", "given"),
    [
        ("mixed", "0-3,8", parse_list("0-3,8")),
        *(("local", "0-3,8", None), ("mixed", "0-", None), ("mixed", "", frozenset())),
    ],
)
def test_a_job_may_say_which_cpus_it_was_given_near_and_far(
    tmp_path: Path, locality: str, cpulist: str, given: CpuSet | None
) -> None:
    said = f"AFFINITYD_LOCALITY={locality}\0AFFINITYD_CPULIST={cpulist}\0"
    assert told(tmp_path, said).given == given


@pytest.mark.parametrize(
    ("environ", "environment"),
    [
        pytest.param(b"TEAM=\xff\0TEAM=second\0SIZE\0=\0", {"TEAM": "\udcff"}, id="the first one"),
        pytest.param(b"TEAM=a\0SIZE=" + b"l" * files.MOST + b"\0", {"TEAM": "a"}, id="cut off"),
        pytest.param(None, None, id="not readable"),
        pytest.param(RETITLED, None, id="written over, and the parent is of other cgroups"),
    ],
)
def test_what_of_an_environment_can_be_read_is_known(
    tmp_path: Path, environ: str | bytes | None, environment: dict[str, str] | None
) -> None:
    facts(tmp_path, "TEAM=of the first process\0", pid=1)
    (tmp_path / "proc/1/cgroup").write_text("0::/init\n")
    found = told(tmp_path, environ, "TEAM", "SIZE")
    assert found.environment == environment
    assert found.unread == ({"environment"} if environment is None else set())
    of_slurm = replace(facts(tmp_path, environ), membership=SLURM_JOB)
    unread = ProcessIdentities(str(tmp_path)).of(of_slurm, SLURM).unread
    all_of_it = {"environment", "partition", "account", "user"}
    assert unread == (all_of_it if environment is None else set())


def test_an_environment_is_read_once_unless_more_is_asked_for(tmp_path: Path) -> None:
    """Another process under the number is asked anew: it said nothing of what the first said."""
    known, its = ProcessIdentities(str(tmp_path)), facts(tmp_path, f"AFFINITYD=off\0{ENVIRON}")
    first = known.of(its, ("TEAM",))
    other = known.of(replace(its, start=its.start + 1), ("TEAM",))
    assert (first.switch, other.switch, other.environment) == ("off", "on", None)
    (tmp_path / "proc/7/environ").unlink()
    assert known.of(its, ("TEAM",)).environment is first.environment
    assert known.of(its, ("TEAM", "SIZE")).environment is None


def test_an_environment_that_comes_late_is_known_to_the_next_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its, known = facts(tmp_path, "AFFINITYD=off\0"), ProcessIdentities(str(tmp_path))
    answer, read, here = threading.Event(), threading.Event(), environ.environment

    def late(facts: ProcessFacts, root: str) -> Mapping[str, str] | None:
        answer.wait()
        found = here(facts, root)
        read.set()
        return found

    monkeypatch.setattr(environ, "SECONDS", 0.01)
    monkeypatch.setattr(identity, "environment", late)
    assert (known.of(its, ()).environment, known.of(its, ()).switch) == (None, "on")
    answer.set()
    assert read.wait(PATIENCE)
    eventually(lambda: known.of(its, ()).switch == "off", "it says off")


def test_a_process_that_was_not_asked_for_in_a_while_is_forgotten(tmp_path: Path) -> None:
    known, its = ProcessIdentities(str(tmp_path)), facts(tmp_path)
    known.of(its, SLURM)
    (tmp_path / "proc/7/environ").unlink()
    known.begin(REMEMBERED)
    assert known.of(its, SLURM).partition == "gpu"
    for scan in range(2):
        known.begin(2 * REMEMBERED + 1 + scan)
    assert known.of(its, SLURM).partition is None


def test_a_user_is_looked_up_anew_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that did not answer at first is asked again."""
    names = iter((None, "bob"))
    monkeypatch.setattr(identity, "_name_of", lambda _uid: next(names))
    known, its = ProcessIdentities(str(tmp_path)), facts(tmp_path, "")
    for boot, name in ((REMEMBERED, None), (REMEMBERED + 15, None), (2 * REMEMBERED, "bob")):
        known.begin(boot)
        assert known.of(its, SLURM).user == name


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


def test_a_process_of_a_pod_has_its_name_from_the_next_scan_on_and_others_have_none(
    folder: Path,
) -> None:
    known = ProcessIdentities(pods=str(folder))

    def named(membership: Membership) -> tuple[str | None, str | None, bool]:
        its = known.of(replace(process("0"), membership=membership), ())
        return its.namespace, its.pod, its.unread >= {"namespace", "pod"}

    late = Membership(Job("kubernetes", "new"))
    assert named(KUBERNETES_POD) == ("ml-team", "trainer-0", False)
    assert named(Membership(Job("slurm", POD))) == (None, None, False)
    assert named(late) == (None, None, True)
    (folder / "default_late_new").mkdir()
    known.begin(15.0)
    assert named(late) == ("default", "late", False)
    known = ProcessIdentities(pods=str(folder / "none"))
    assert named(KUBERNETES_POD) == (None, None, True)
