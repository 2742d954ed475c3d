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
from affinityd.cpuset import CpuSet, parse_list
from affinityd.daemon.api.documents import Viewer
from affinityd.daemon.enforcement import Enforcement
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.policy_document import parse
from affinityd.daemon.state.scanner import Audit
from affinityd.enforce import enforcer as module
from affinityd.enforce import pinner
from affinityd.enforce.enforcer import Enforced, Enforcer, outcomes
from affinityd.enforce.memory_migration import MemoryMigrations
from affinityd.enforce.model import PinOutcome
from affinityd.enforce.policy import identity
from affinityd.enforce.policy.file import PolicyFile
from affinityd.errors import NotEnforcedError
from affinityd.linux.processes import mask_of
from affinityd.topology.model import Topology
from tests.support.audit_facts import GPU, POD, Known
from tests.support.children import sleeping
from tests.support.cpusets import needs_cpuset
from tests.support.job_cgroups import cgroup, pod_parts
from tests.support.tiny import BOTH, CPUS, tiny

pytestmark = [
    needs_cpuset,
    pytest.mark.skipif(os.geteuid() != 0, reason="moves processes into cgroups"),
]

NODES = tiny(0, 1)
OTHER_POD = f"{POD[:-1]}f"
NEAR, FAR = (frozenset({cpu}) for cpu in CPUS)
LATER = 60.0  #: seconds, by which a process is no longer young


@pytest.fixture(scope="module")
def job() -> Iterator[int]:
    """Run a process in a pod."""
    with cgroup(*pod_parts(POD), cpus=BOTH) as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        yield child.pid
        child.kill()
        child.wait()


@pytest.fixture(autouse=True)
def far(request: pytest.FixtureRequest) -> None:
    """Begin with the process far from its GPU."""
    if "job" in request.fixturenames:
        os.sched_setaffinity(request.getfixturevalue("job"), FAR)


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

    def __init__(self, way: str, policy: Path, pid: int, reserved: CpuSet = frozenset()) -> None:
        self.hindrance: str | None = None
        self.follower = Follower()
        self.auditor = Auditor(Known(pid, gpu=GPU))
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


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text("")
    return path


def what(found: Enforced) -> str:
    """Return what becomes of the one process."""
    (decision,) = found.decisions
    return decision.reason or decision.verdict


def test_what_has_drifted_is_pinned_and_fits_from_then_on(policy: Path, job: int) -> None:
    look = Look(PIN, policy, job)
    first, second = look.enforce(), look.enforce()
    assert mask_of(job) == NEAR
    assert (what(first), what(second)) == ("drifted", "fits")
    assert [it.outcome.pinned for it in first.done] == [1]
    assert (first.does, second.done) == (PIN, [])
    assert second.totals.pins["pinned"] == 1
    assert (second.totals.threads, second.records[job].pins) == (1, 1)


def test_who_observes_touches_nothing_and_says_what_it_would_do(policy: Path, job: int) -> None:
    found = Look(OBSERVE, policy, job).enforce()
    assert mask_of(job) == FAR
    assert (what(found), found.does, found.done) == ("drifted", OBSERVE, [])


def test_a_process_that_the_policy_has_observed_is_not_pinned(policy: Path, job: int) -> None:
    policy.write_text("observe = true")
    look = Look(PIN, policy, job)
    found = look.enforce()
    assert (what(found), mask_of(job), found.done) == ("drifted", FAR, [])
    assert (found.does, found.unreached) == (PIN, 0)
    policy.write_text("")
    look.enforce()  # a change counts when it is there at two looks
    look.enforce()
    assert mask_of(job) == NEAR


def test_who_is_hindered_observes_for_as_long_as_that_lasts(policy: Path, job: int) -> None:
    look = Look(PIN, policy, job)
    look.hindrance = "another daemon pins"
    report = look.enforce()
    assert (report.wanted, report.does, report.hindrance) == (PIN, OBSERVE, "another daemon pins")
    assert (mask_of(job), report.unreached) == (FAR, 0)
    look.hindrance = None
    assert look.enforce().does == PIN
    assert mask_of(job) == NEAR


def test_another_enforcer_pins_nothing_that_fits(policy: Path, job: int) -> None:
    Look(PIN, policy, job).enforce()
    found = Look(PIN, policy, job).enforce()
    assert (what(found), found.done) == ("fits", [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mode = 1", "no_policy"),
        ("leave = true", "policy"),
        ('[[rule]]\npod = "a"\nleave = true', "policy"),
        ('[[rule]]\npod = "a"\nmode = "single"', "drifted"),
    ],
    ids=["nothing while there was no good one", "what it leaves", "what it may leave", "or not"],
)
def test_the_policy_says_what_is_let_alone(policy: Path, job: int, text: str, reason: str) -> None:
    policy.write_text(text)
    found = Look(PIN, policy, job).enforce()
    assert what(found) == reason
    assert (mask_of(job) == FAR) == (reason != "drifted")


def test_a_policy_that_breaks_leaves_the_old_one_in_force(policy: Path, job: int) -> None:
    policy.write_text("leave = true")
    look = Look(PIN, policy, job)
    look.enforce()
    policy.write_text("leave = 1")
    look.enforce()  # a change counts when it is there at two looks
    found = look.enforce()
    assert (what(found), mask_of(job)) == ("policy", FAR)
    assert "leave" in (found.policy.error or "")
    policy.write_text("leave = false")
    assert what(look.enforce()) == "policy"
    assert (what(look.enforce()), mask_of(job)) == ("drifted", NEAR)


def test_what_has_just_started_is_let_alone(policy: Path, job: int) -> None:
    assert what(Look(PIN, policy, job).enforce(later=-0.1)) == "young"
    assert mask_of(job) == FAR


def test_a_process_in_no_job_is_not_touched(policy: Path) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        assert what(Look(PIN, policy, child.pid).enforce()) == "no_job"
        assert mask_of(child.pid) == FAR


def test_when_time_is_up_the_rest_is_told_and_left_to_the_next_scan(
    policy: Path, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(PIN, policy, job)
    with monkeypatch.context() as patched:
        patched.setattr(module, "PASS", -1.0)
        report = look.enforce()
    assert (report.unreached, report.done, mask_of(job)) == (1, [], FAR)
    assert look.enforce().unreached == 0
    assert mask_of(job) == NEAR


def test_its_memory_is_to_follow_the_first_pin_and_no_other(policy: Path, job: int) -> None:
    look = Look(PIN, policy, job)
    look.enforce()
    os.sched_setaffinity(job, FAR | NEAR)
    found = look.enforce()
    assert (mask_of(job), found.totals.resets) == (NEAR, 1)
    assert found.totals.pins["pinned"] == 2
    assert look.follower.wanted == [(job, NEAR)]


def test_no_reserved_cpu_is_given_out(policy: Path, job: int) -> None:
    assert what(Look(PIN, policy, job, reserved=NEAR).enforce()) == "no_plan"
    assert mask_of(job) == FAR


def test_a_rule_is_asked_of_the_environment(policy: Path) -> None:
    policy.write_text('[[rule]]\nenvironment = { TEAM = "vision" }\nleave = true\n')
    with cgroup(*pod_parts(OTHER_POD), cpus=BOTH) as folder, sleeping({"TEAM": "vision"}) as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        assert what(Look(PIN, policy, child.pid).enforce()) == "policy"
        child.kill()
        child.wait()


def test_no_memory_follows_who_was_near_or_was_refused(
    policy: Path, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = Look(PIN, policy, job)
    near.scan()
    (drifted,) = Look(OBSERVE, policy, job).enforce().decisions
    for decision, outcome in (
        (replace(drifted, cause="share"), PinOutcome(pinned=1)),
        (drifted, PinOutcome(refused=1, error="EPERM")),
    ):
        monkeypatch.setattr(pinner, "pin_process", lambda *_, outcome=outcome: outcome)
        near.enforcer._pin_one(NODES, decision, time.monotonic() + 1)
    assert near.follower.wanted == []
    monkeypatch.setattr(pinner, "pin_process", lambda *_: PinOutcome(pinned=1))
    near.enforcer._pin_one(NODES, drifted, time.monotonic() + 1)


def test_what_cannot_be_read_or_seen_is_noticed(
    policy: Path, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(OBSERVE, policy, job)
    assert not look.enforce().notices
    monkeypatch.setattr(identity, "environment", lambda *_: None)
    look = Look(OBSERVE, policy, job)
    look.follower.refusal = "memory was not moved"
    look.auditor._holders = Known(job, gpu=GPU)
    look.auditor._holders.now = replace(look.auditor._holders.now, unknown={GPU: "no NVML"})
    first, second, third = look.enforce().notices
    assert (first[:15], second[:10], third[-7:]) == ("the environment", "memory was", "no NVML")


ONE = parse_list("1")


@pytest.mark.parametrize(
    ("outcome", "names"),
    [
        (PinOutcome(pinned=3), ["pinned"]),
        (PinOutcome(pinned=3, refused=1, cut=ONE, is_settled=False), ["refused"]),
        (PinOutcome(pinned=3, cut=ONE), ["cut"]),
        (PinOutcome(pinned=3, is_settled=False), ["unsettled"]),
        (PinOutcome(is_settled=False), ["unsettled"]),
        (PinOutcome(), []),
        (PinOutcome(is_gone=True), []),
        (PinOutcome(is_gone=True, is_settled=False), []),
    ],
    ids=[
        "all of its threads",
        "a refusal counts before anything else",
        "then less than was asked",
        "then what is not done yet",
        "although nothing was pinned",
        "nothing to do is no pin",
        "nor a process that has ended",
        "or did so within the pin",
    ],
)
def test_a_pin_is_counted_once(outcome: PinOutcome, names: list[str]) -> None:
    assert outcomes(outcome) == names


def test_what_fails_is_told_once_and_the_last_report_stands(
    policy: Path, job: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(enforce=OBSERVE, enforce_policy=str(policy))
    enforcement = Enforcement(settings, metrics := Metrics(lambda: None))
    scan = Auditor(Known(job, gpu=GPU)).scan(NODES)

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
    assert record.message == "enforcing failed; what was found before stands"
