"""Enforcement put together: a real process in a real job's cgroup, looked at and pinned."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.auditor import Auditor
from affinityd.audit.model import ProcessFacts, Scan
from affinityd.config.settings import OBSERVE, PIN, Settings
from affinityd.cpuset import CpuSet
from affinityd.daemon.api.documents import Viewer
from affinityd.daemon.enforcement import Enforcement
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.policy_document import parse
from affinityd.daemon.state.scanner import Audit
from affinityd.enforce import enforcer as module
from affinityd.enforce import pinner
from affinityd.enforce.enforcer import Enforced, Enforcer
from affinityd.enforce.memory_migration import MemoryMigrations
from affinityd.enforce.model import PinOutcome
from affinityd.enforce.policy import identity
from affinityd.enforce.policy.file import PolicyFile
from affinityd.errors import NotEnforcedError
from affinityd.linux.processes import mask_of
from affinityd.topology.model import Topology
from tests.support.audit_facts import GPU, POD, Known
from tests.support.children import sleeping
from tests.support.cpusets import cgroup, needs_cpuset, pod_parts
from tests.support.tiny import BOTH, CPUS, tiny

pytestmark = [
    needs_cpuset,
    pytest.mark.skipif(os.geteuid() != 0, reason="moves processes into cgroups"),
]

NODES = tiny(0, 1)
NEAR, FAR = (frozenset({cpu}) for cpu in CPUS)
LATER = 60.0  #: seconds, by which a process is no longer young


@pytest.fixture(scope="module")
def started() -> Iterator[int]:
    """Run a process in a pod."""
    with cgroup(*pod_parts(POD), cpus=BOTH) as folder, sleeping({"TEAM": "vision"}) as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        yield child.pid
        child.kill()
        child.wait()


@pytest.fixture
def job(started: int) -> int:
    """Begin with the process far from its GPU."""
    os.sched_setaffinity(started, FAR)
    return started


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text("")
    return path


class Follower(MemoryMigrations):
    """Notes whose memory is to follow."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.wanted = list[tuple[int, CpuSet]]()

    def add(self, topology: Topology, facts: ProcessFacts, cpus: CpuSet) -> None:
        assert topology is NODES
        self.wanted.append((facts.pid, cpus))


class Look:
    """An enforcer, and what it looks at: a pid that uses GPU 0."""

    def __init__(
        self, policy: Path, pid: int, way: str = PIN, reserved: CpuSet = frozenset()
    ) -> None:
        self.hindrance: str | None = None
        self.follower = Follower()
        self.known = Known(pid, gpu=GPU)
        self.auditor = Auditor(self.known)
        self.enforcer = Enforcer(
            way,
            PolicyFile(str(policy), parse=parse, is_optional=False),
            why_not_pin=lambda: self.hindrance,
            reserved=reserved,
            migrations=self.follower,
        )

    def scan(self) -> Scan:
        return self.auditor.scan(NODES)

    def enforce(self, later: float = LATER) -> Enforced:
        """Look, so many seconds later than now."""
        scan = self.scan()
        return self.enforcer.enforce(NODES, replace(scan, boot=scan.boot + later))


def what(found: Enforced) -> str:
    (decision,) = found.decisions
    return decision.reason or decision.verdict


def test_what_is_observed_is_not_touched_and_what_was_pinned_fits(policy: Path, job: int) -> None:
    found = Look(policy, job, OBSERVE).enforce()
    assert (what(found), found.does, found.done) == ("drifted", OBSERVE, [])
    look = Look(policy, job)
    look.hindrance = "another daemon pins"
    found = look.enforce()
    assert (found.wanted, found.does, found.hindrance) == (PIN, OBSERVE, "another daemon pins")
    assert (found.done, found.unreached, mask_of(job)) == ([], 0, FAR)
    policy.write_text("observe = true")
    found = Look(policy, job).enforce()
    assert (what(found), found.does, found.done, found.unreached) == ("drifted", PIN, [], 0)
    assert mask_of(job) == FAR
    policy.write_text("")
    look.hindrance = None
    first, second = look.enforce(), look.enforce()
    assert (mask_of(job), what(second), second.done) == (NEAR, "fits", [])
    assert [it.outcome for it in first.done] == [PinOutcome(pinned=1)]
    counts = second.totals.pins["pinned"], second.totals.threads, second.records[job].pins
    assert counts == (1, 1, 1)


def test_what_is_left_alone_is_not_touched(policy: Path, job: int) -> None:
    """By the policy, which asks for the environment; reserved CPUs; and as it has just started."""
    assert what(Look(policy, job, reserved=NEAR).enforce()) == "no_plan"
    assert what(Look(policy, job).enforce(later=-0.1)) == "young"
    for text, reason in (
        ('[[rule]]\nenvironment.TEAM = "v*"\nleave = true', "policy"),
        ('[[rule]]\npod = "a"\nleave = true', "policy"),  # which may mean it
        ("mode = 1", "no_policy"),
    ):
        policy.write_text(text)
        found = Look(policy, job).enforce()
        assert what(found) == reason
    assert "mode: 1: it is not a mode" in (found.policy.error or "")
    assert mask_of(job) == FAR


def test_when_time_is_up_the_rest_is_told_and_left_to_the_next_scan(
    policy: Path, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(policy, job)
    with monkeypatch.context() as patched:
        patched.setattr(module, "PASS", -1.0)
        found = look.enforce()
    assert (found.unreached, found.done, mask_of(job)) == (1, [], FAR)
    assert look.enforce().unreached == 0
    assert mask_of(job) == NEAR


def test_its_memory_is_to_follow_the_first_pin_from_far_away_and_no_other(
    policy: Path, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(policy, job)
    (drifted,) = Look(policy, job, OBSERVE).enforce().decisions
    for cause, outcome in ("share", PinOutcome(pinned=1)), ("mask", PinOutcome(refused=1)):
        with monkeypatch.context() as patched:
            patched.setattr(pinner, "pin_process", lambda *_, outcome=outcome: outcome)
            other = Look(policy, job)
            other.enforcer._pin_one(NODES, replace(drifted, cause=cause), time.monotonic() + 1)
        assert other.follower.wanted == []
    look.enforce()
    os.sched_setaffinity(job, FAR | NEAR)
    totals = look.enforce().totals
    assert (mask_of(job), totals.resets, totals.pins["pinned"]) == (NEAR, 1, 2)
    assert look.follower.wanted == [(job, NEAR)]


def test_what_cannot_be_read_or_seen_is_noticed(
    policy: Path, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(policy, job, OBSERVE)
    assert not look.enforce().notices
    monkeypatch.setattr(identity, "environment", lambda *_: None)
    look = Look(policy, job, OBSERVE)
    look.follower.refusal = "memory was not moved"
    look.known.now = replace(look.known.now, unknown={GPU: "no NVML"})
    first, second, third = look.enforce().notices
    assert (first[:15], second[:10], third[-7:]) == ("environments of", "memory was", "no NVML")


def test_what_fails_is_told_once_and_the_last_report_stands(
    policy: Path, job: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(enforce=OBSERVE, enforce_policy=str(policy))
    enforcement = Enforcement(settings, metrics := Metrics(lambda: None))
    scan = Look(policy, job).scan()

    def document() -> bytes:
        return asyncio.run(enforcement.documents.document(Viewer(is_admin=True)))

    with pytest.raises(NotEnforcedError, match="nothing has been enforced yet"):
        document()
    enforcement.scanned(Audit(NODES, scan))
    stands = document()
    assert json.loads(stands)["jobs"][0]["id"] == POD
    assert b'affinityd_enforce_mode{mode="observe"} 1.0' in metrics.exposition("")[0]
    broken = Audit(NODES, replace(scan, processes=None))  # type: ignore[arg-type] # a bug of ours
    with caplog.at_level(logging.ERROR):
        enforcement.scanned(broken)
        enforcement.scanned(broken)
    assert document() == stands
    (record,) = caplog.records
    assert record.message == "enforcement failed; its last result stays"
