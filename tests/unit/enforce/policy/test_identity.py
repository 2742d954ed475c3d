"""Who a process is, by files like those of /proc, and folders of pods."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd import threads
from affinityd.audit.model import ContainerResources, Job, Membership, ProcessFacts
from affinityd.cpuset import CpuSet, parse_list
from affinityd.enforce.policy import identity
from affinityd.enforce.policy.identity import ProcessIdentities, ProcessIdentity
from affinityd.linux import files
from tests.support.audit_facts import POD, SLURM_JOB, process
from tests.support.daemons import PATIENCE, eventually

UNNAMED = 3_999_999_999  #: a uid without a name
SLURMS = {"SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "bio", "SLURM_JOB_USER": "alice"}
SLURM = (*SLURMS,)
JOB = {**SLURMS, "TEAM": "vision", "SECRET": "of no rule"}
ENVIRON = "".join(f"{name}={text}\0" for name, text in JOB.items()).encode()
STAT = f"{{}} (python) S 1 {'0 ' * 17}5 {'0 ' * 30}"
RETITLED = b"\0\0\0"


def facts(root: Path, environ: bytes | None = ENVIRON, pid: int = 7) -> ProcessFacts:
    """Write what /proc has of a process: its environment; None: it cannot be read."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(STAT.format(pid))
    if environ is not None:
        (folder / "environ").write_bytes(environ)
    return process("0", pid=pid, uid=UNNAMED)


def told(root: Path, environ: bytes | None, *variables: str) -> ProcessIdentity:
    return ProcessIdentities(str(root)).of(facts(root, environ), variables)


def test_slurm_partition_account_and_user_come_from_the_initial_environment(tmp_path: Path) -> None:
    its, paths = replace(facts(tmp_path), cgroups="4:memory:/m\n0::/a/b\n"), ("/m", "/a/b")
    said = {name: text for name, text in JOB.items() if name != "SECRET"}
    known = ProcessIdentities(str(tmp_path))
    whole = ProcessIdentity(UNNAMED, "alice", "gpu", "bio", cgroups=paths, environment=said)
    assert known.of(its, (*SLURM, "TEAM", "SIZE")) == whole
    team = ProcessIdentity(UNNAMED, cgroups=paths, environment={"TEAM": "vision"})
    assert known.of(its, ("TEAM",)) == team
    users = [known.of(replace(its, uid=uid), SLURM).user for uid in (0, UNNAMED, None)]
    assert users == ["root", "alice", "alice"]  # as the machine calls it, else as Slurm does


@pytest.mark.parametrize(
    ("said", "switch", "given"),
    [
        (b"AFFINITYD=off", "off", None),
        (b"AFFINITYD=Observe", "observe", None),
        (b"AFFINITYD=obsreve", "off", None),
        (b"AFFINITYD_LOCALITY=mixed\0AFFINITYD_CPULIST=0-3,8", "on", parse_list("0-3,8")),
        (b"AFFINITYD_LOCALITY=local\0AFFINITYD_CPULIST=0-3,8", "on", None),
        (b"AFFINITYD_LOCALITY=mixed\0AFFINITYD_CPULIST=0-", "on", None),
        (b"AFFINITYD_LOCALITY=mixed", "on", frozenset()),
    ],
)
def test_the_environment_has_the_switch_and_cpus_that_a_job_asked_for(
    tmp_path: Path, said: bytes, switch: str, given: CpuSet | None
) -> None:
    found = told(tmp_path, said + b"\0")
    assert (found.switch, found.given) == (switch, given)


@pytest.mark.parametrize(
    ("environ", "environment"),
    [
        pytest.param(b"TEAM=\xff\0TEAM=second\0SIZE\0=\0", {"TEAM": "\udcff"}, id="the first one"),
        pytest.param(b"TEAM=a\0SIZE=" + b"l" * files.MOST + b"\0", {"TEAM": "a"}, id="cut off"),
        pytest.param(None, None, id="not readable"),
        pytest.param(RETITLED, None, id="written over, and the parent is of other cgroups"),
    ],
)
def test_only_variables_that_rules_name_are_kept(
    tmp_path: Path, environ: bytes | None, environment: dict[str, str] | None
) -> None:
    facts(tmp_path, b"TEAM=of the first process\0", pid=1)
    (tmp_path / "proc/1/cgroup").write_text("0::/init\n")
    found = told(tmp_path, environ, "TEAM", "SIZE")
    assert found.environment == environment
    assert found.unread == ({"environment"} if environment is None else set())
    of_slurm = replace(facts(tmp_path, environ), membership=SLURM_JOB)
    unread = ProcessIdentities(str(tmp_path)).of(of_slurm, SLURM).unread
    all_of_it = {"environment", "partition", "account", "user"}
    assert unread == (all_of_it if environment is None else set())


def test_a_late_environment_is_used_by_the_next_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its, known = facts(tmp_path, b"AFFINITYD=off\0"), ProcessIdentities(str(tmp_path))
    answer, here = threading.Event(), identity.environment

    def late(facts: ProcessFacts, root: str) -> Mapping[str, str] | None:
        answer.wait(PATIENCE)
        return here(facts, root)

    monkeypatch.setattr(threads, "STUCK_SECONDS", 0.01)
    monkeypatch.setattr(identity, "environment", late)
    assert (known.of(its, ()).environment, known.of(its, ()).switch) == (None, "observe")
    answer.set()
    eventually(lambda: known.of(its, ()).switch == "off", "it says off")


def test_kubelet_names_a_pod_without_a_log_folder(tmp_path: Path) -> None:
    given = ContainerResources("team", "train-0", "main", {}, frozenset(), frozenset(), frozenset())
    facts = replace(process("0"), membership=Membership(Job("kubernetes", POD)), given=given)
    known = ProcessIdentities(root=str(tmp_path), pods=str(tmp_path / "none")).of(facts, ())
    assert (known.namespace, known.pod) == ("team", "train-0")
    assert known.unread == {"environment"}
    assert facts.owner == "pod team/train-0"
    (tmp_path / f"other_a-pod-with-its-gpu_{POD}").mkdir()
    by_uid = ProcessIdentities(root=str(tmp_path), pods=str(tmp_path)).of(facts, ())
    assert (by_uid.namespace, by_uid.pod) == ("other", "a-pod-with-its-gpu"), "its uid is proof"


def test_a_new_pod_is_named_by_the_next_scan(tmp_path: Path) -> None:
    def named(known: ProcessIdentities, scheduler: str, job: str) -> tuple[str | None, str | None]:
        its = known.of(replace(process("0"), membership=Membership(Job(scheduler, job))), ())
        is_unread = scheduler == "kubernetes" and its.pod is None
        assert (its.unread >= {"namespace", "pod"}) == is_unread
        return its.namespace, its.pod

    static = "f9a3b61a8b4ad6bd0b5a1d6f1b2f4c3e"  # its uid is a hash
    for name in (f"ml-team_trainer-0_{POD}", f"kube-system_etcd-node1_{static}", "lost+found"):
        (tmp_path / name).mkdir()
    known = ProcessIdentities(pods=str(tmp_path))
    assert named(known, "kubernetes", POD) == ("ml-team", "trainer-0")
    assert named(known, "kubernetes", static) == ("kube-system", "etcd-node1")
    assert named(known, "slurm", POD) == (None, None)
    assert named(known, "kubernetes", "new") == (None, None)
    (tmp_path / "default_late_new").mkdir()
    known.begin(15.0)
    assert named(known, "kubernetes", "new") == ("default", "late")
    nowhere = ProcessIdentities(pods=str(tmp_path / "none"))
    assert named(nowhere, "kubernetes", POD) == (None, None)
