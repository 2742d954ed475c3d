"""Enforcement after a scan: decisions, pins, and what hinders a pin."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.mask_owner import MaskOwner
from affinityd.audit.model import ProcessFacts
from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import CpuSet, parse_list
from affinityd.daemon.policy_document import parse
from affinityd.daemon.state.scans import ALL, METRICS
from affinityd.enforce import enforcer as module
from affinityd.enforce.document import Enforced
from affinityd.enforce.enforcer import NO_ENVIRONMENTS, Enforcer, NodeLock
from affinityd.enforce.model import PinAttempt, TargetCpus
from affinityd.enforce.policy import PolicyFile, Treatment, identity, site
from affinityd.errors import InvalidRequestError
from affinityd.linux.pinning import PinResult
from affinityd.planner import Options
from tests.support.audit_facts import scan_of
from tests.support.enforce_reports import done, drifted, result
from tests.support.enforced_node import NOW, TWO, Site, rank
from tests.support.scans import Audit, scanned

DRIFTED, FITS = rank("4-7"), rank("0-3")
NEAR = parse_list("0-3")


class Look:
    """An enforcer, what it pinned, and what comes of its pins."""

    def __init__(self, policy: Path, *, way: str = PIN, reserved: CpuSet = frozenset()) -> None:
        self.hindrance: str | None = None
        self.pinned = list[tuple[int, CpuSet]]()
        self.noted = list[PinAttempt]()
        self.outcome = result(1)
        self.enforcer = Enforcer(
            way,
            PolicyFile(str(policy), parse=parse, is_optional=False),
            why_not_pin=lambda: self.hindrance,
            note=self.noted.append,
            reserved=reserved,
        )

    def pin(self, facts: ProcessFacts, to: TargetCpus, _deadline: float) -> PinResult:
        self.pinned.append((facts.pid, to.cpus))
        return self.outcome

    def enforce(self, facts: ProcessFacts = DRIFTED, **scan: Any) -> Enforced:  # noqa: ANN401
        found = replace(scan_of(TWO, Site(TWO).audited(facts)), **{"boot": NOW, **scan})
        return self.enforcer.enforce(TWO, found)


def what(found: Enforced) -> tuple[str, bool, int, str]:
    """Return what becomes of the one process, whether it was pinned, and what was done."""
    (decision,) = found.decisions
    return decision.reason or decision.verdict, bool(found.done), found.unreached, found.does


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text("")
    return path


@pytest.fixture
def look(policy: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    look = Look(policy)
    monkeypatch.setattr(module, "pin_process", look.pin)
    monkeypatch.setattr(identity, "environment", lambda *_: {})
    return look


def test_a_drifted_process_is_pinned_and_counted(look: Look) -> None:
    assert what(look.enforce()) == ("drifted", True, 0, PIN)
    assert what(look.enforce(FITS)) == ("fits", False, 0, PIN)
    found = look.enforce()
    assert look.pinned == [(100, NEAR)] * 2
    totals, record = found.totals, found.records[100]
    assert (totals.pins["pinned"], totals.threads, totals.resets) == (2, 2, 1)
    assert (record.pins, record.resets) == (2, 1)


def test_a_hindered_daemon_observes_until_the_hindrance_is_over(look: Look) -> None:
    look.hindrance = "another daemon pins"
    found = look.enforce()
    assert (what(found), found.wanted) == (("drifted", False, 0, OBSERVE), PIN)
    assert found.hindrance == "another daemon pins"
    look.hindrance = None
    assert what(look.enforce()) == ("drifted", True, 0, PIN)


@pytest.mark.parametrize(
    ("outcome", "owner", "ends"),
    [
        (
            result(1),
            MaskOwner("OpenMP", "OMP_PLACES=cores", "to end that: OMP_PROC_BIND=false"),
            "; its CPUs were set by OpenMP (OMP_PLACES=cores); to end that: OMP_PROC_BIND=false",
        ),
        (result(1), MaskOwner("unknown"), "by a rule of the policy"),
        (result(1), None, "by a rule of the policy"),
        (result(refused=1, error="EPERM"), MaskOwner("x", "", "y"), "its cpuset changes"),
    ],
)
def test_a_process_that_is_given_up_names_what_resets_it(
    look: Look,
    monkeypatch: pytest.MonkeyPatch,
    outcome: PinResult,
    owner: MaskOwner | None,
    ends: str,
) -> None:
    asked = list[int]()

    def owner_of(facts: ProcessFacts) -> MaskOwner | None:
        asked.append(facts.pid)
        return owner

    monkeypatch.setattr(module, "owner_of", owner_of)
    look.outcome = outcome
    for wait in range(0, 3000, 60):
        found = look.enforce(boot=NOW + wait)
    (decision,) = found.decisions
    assert decision.reason == "given_up"
    assert (decision.why or "").endswith(ends)
    assert len(asked) == (not outcome.having("refused"))  # once: a lock is taken for it


@pytest.mark.parametrize(
    ("text", "how", "reason"),
    [
        ("", {"way": OBSERVE}, "drifted"),
        ("observe = true", {}, "drifted"),
        ('[[rule]]\nenvironment.TEAM = "v*"\nleave = true', {}, "policy"),
        ("mode = 1", {}, "no_policy"),
        ("", {"reserved": NEAR}, "no_plan"),
    ],
)
def test_a_process_that_is_observed_or_left_is_not_pinned(
    policy: Path, monkeypatch: pytest.MonkeyPatch, text: str, how: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(identity, "environment", lambda *_: {"TEAM": "vision"})
    policy.write_text(text)
    found = Look(policy, **how).enforce()
    assert what(found) == (reason, False, 0, how.get("way", PIN))
    assert bool(found.policy.error) == (reason == "no_policy")


def test_processes_beyond_the_time_limit_are_reported_and_pinned_after_the_next_scan(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "PASS", -1.0)
        assert what(look.enforce()) == ("drifted", False, 1, PIN)
    assert what(look.enforce()) == ("drifted", True, 0, PIN)


def test_unreadable_environments_and_unknown_processes_are_notices(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = {("nvidia", 1): "no NVML", ("nvidia", 0): "no NVML", ("amd", 0): "no KFD"}
    assert look.enforce(unknown=unknown).notices == [
        "the processes of amd GPU 0 are not known: no KFD",
        "the processes of nvidia GPUs 0-1 are not known: no NVML",
    ]
    monkeypatch.setattr(identity, "is_running", lambda *_: True)
    monkeypatch.setattr(identity, "environment", lambda *_: None)
    look.enforcer._identities = identity.ProcessIdentities()
    assert look.enforce().notices == [NO_ENVIRONMENTS]


ONE = parse_list("1")


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (result(3), "pinned"),
        (result(3, 1, cut=ONE, is_settled=False), "refused"),
        (result(3, cut=ONE, is_settled=False), "cut"),
        (result(fitting=1, is_settled=False), "unsettled"),
        (result(fitting=1), None),
        (result(is_settled=False), None),  # it has ended
    ],
)
def test_a_pin_is_counted_once(outcome: PinResult, word: str | None) -> None:
    assert done(drifted(), outcome).outcome == word


# What the daemon makes of it.


def test_the_defaults_of_a_policy_are_the_sites_settings() -> None:
    names = ("MODE", "SCOPE", "MIN_PHYSICAL_CORES", "BALANCED", "STRICT", "CPUS", "SOCKET")
    texts = ("unique-contiguous", "socket", "2", "false", "true", "none", "/x")
    unique = Options("unique_contiguous", scope="socket", min_physical_cores=2, balanced=False)
    said = {f"AFFINITYD_{name}": text for name, text in zip(names, texts, strict=True)}
    assert site(said) == Treatment(unique, cpus="none")
    assert site({"AFFINITYD_CPUS": "4"}) == Treatment()
    assert site({"AFFINITYD_SCOPE": "socket"}).options == Options("all", scope="socket")
    with pytest.raises(InvalidRequestError, match="mode: 'nod'"):
        site({"AFFINITYD_MODE": "nod"})


def test_enforcement_that_fails_is_logged_once_and_its_last_result_stays(
    policy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(TWO, scan_of(TWO, Site(TWO).audited(DRIFTED)))
    scanning, (first,) = scanned(audit, enforce=OBSERVE, enforce_policy=str(policy))
    document = first.document("/enforce", ALL)
    assert document is not None
    assert json.loads(document)["jobs"][0]["id"] == "7"
    assert b'affinityd_enforce_mode{mode="observe"} 1.0' in first.texts[METRICS]
    monkeypatch.setattr(Enforcer, "enforce", lambda *_: 1 / 0)  # a bug of ours
    monkeypatch.setattr(scanning, "_scan", lambda *_: replace(audit.scan, boot=NOW + 15))
    with caplog.at_level(logging.ERROR):
        results = [scanning.scan(TWO) for _ in range(2)]
    assert [it.boot for it in results] == [NOW + 15] * 2
    assert [it.document("/enforce", ALL) for it in results] == [document] * 2
    failures = [it.message for it in caplog.records if it.levelname == "ERROR"]
    assert failures == ["enforcement failed; its last result stays"]


# Of several daemons on a node one pins.


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@contextmanager
def daemon(lock: Path) -> Iterator[NodeLock]:
    """Be one of them, until it ends: flock(2) tells two that opened the file apart."""
    node_lock = NodeLock(os.fspath(lock))
    try:
        yield node_lock
    finally:
        if node_lock._file is not None:
            os.close(node_lock._file)


def taken(lock: Path) -> str:
    told = f"another daemon pins on this node (fuser {lock} names it)"
    return f"{told}: this daemon observes until the other has ended"


def test_a_second_daemon_observes_until_the_first_has_ended(lock: Path) -> None:
    lock.write_bytes(b"\xff4711\n")  # of one that was killed
    with daemon(lock) as second:
        with daemon(lock) as first:
            assert [first.acquire(), second.acquire(), first.acquire()] == [None, taken(lock), None]
        assert second.acquire() is None
        with daemon(lock) as third:
            assert third.acquire() == taken(lock)


def test_the_lock_is_private_and_its_new_folder_is_public(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "lock"
    before = os.umask(0o077)
    try:
        with daemon(lock) as node_lock:
            assert node_lock.acquire() is None
    finally:
        os.umask(before)
    assert (lock.stat().st_mode & 0o777, lock.parent.stat().st_mode & 0o777) == (0o600, 0o755)
