"""The log lines about scans and enforcement: each finding once."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest

from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import format_list, parse_list
from affinityd.daemon.enforcement import EnforceLog
from affinityd.daemon.scanning import MOST_READERS, cpus_beside
from affinityd.daemon.state import scans
from affinityd.enforce.document import Enforced
from affinityd.enforce.model import Decision
from affinityd.enforce.policy import PolicyState
from affinityd.grouping import REMEMBERED
from tests.support.enforce_reports import done, drifted, enforced, fits, left, result
from tests.support.scans import GPU0, GPU1, Audit, audit, process, scanned

REMOTE = process(1, cause="mask", placement="remote")
BOTH = audit(REMOTE, process(2, cause="allocation", placement="remote"))
FAR, NEAR, NONE = audit(REMOTE), audit(process(1)), audit()
OF_DAEMON = audit(process(1, cause="mask", is_daemon=True))
UNSEEN = audit(unknown={GPU0: "NVML is silent"})
ON_OTHER = audit(process(3, GPU1, cause="unpinned", placement="unpinned"))

first, *others = FAR.topology.gpus
gpus = (replace(first, pci_bus_id="0000:aa:00.0"), *others)
ANOTHER_GPU = Audit(replace(FAR.topology, gpus=gpus), FAR.scan)

SEE = "of its processes may run far from it ({}); see affinityd audit"
APPEARED = f"WARNING: nvidia GPU 0 (0000:10:00.0): 1 {SEE.format('mask: 1')}"
GONE = "INFO: nvidia GPU 0 (0000:10:00.0): its processes are near it again, or have ended"
TWO_FAR = f"WARNING: nvidia GPU 0 (0000:10:00.0): 2 {SEE.format('allocation: 1, mask: 1')}"
OTHER_FAR = f"WARNING: nvidia GPU 1 (0000:11:00.0): 1 {SEE.format('unpinned: 1')}"


@pytest.mark.parametrize(
    ("audits", "lines"),
    [
        ([NEAR, OF_DAEMON], []),
        ([FAR, FAR, BOTH], [APPEARED]),
        ([BOTH], [TWO_FAR]),
        ([FAR, NEAR], [APPEARED, GONE]),
        ([FAR, NONE], [APPEARED, GONE]),
        ([FAR, UNSEEN, FAR], [APPEARED]),  # what cannot be seen has not ended
        ([FAR, UNSEEN, NONE], [APPEARED, GONE]),
        ([FAR, ON_OTHER], [APPEARED, GONE, OTHER_FAR]),
        ([FAR, ANOTHER_GPU], [APPEARED, APPEARED.replace("0000:10:00.0", "0000:aa:00.0")]),
        ([audit(notices=("a",)), audit(notices=("a", "b"))], ["WARNING: a", "WARNING: b"]),
        ([audit(notices=("a",)), NONE, audit(notices=("a",))], ["WARNING: a"]),
    ],
)
def test_the_log_has_these_lines_of_scans(
    caplog: pytest.LogCaptureFixture, audits: list[Audit], lines: list[str]
) -> None:
    caplog.set_level(logging.INFO)
    scanned(*audits)
    assert [f"{record.levelname}: {record.message}" for record in caplog.records] == lines


def told(
    caplog: pytest.LogCaptureFixture, *reports: Enforced, wanted: str = PIN, why: str | None = None
) -> list[str]:
    """Return the lines of these reports, one after the other, a minute apart."""
    caplog.set_level(logging.INFO)
    log = EnforceLog(wanted, why)
    for minute, one in enumerate(reports):
        scan = replace(one.scan, boot=one.scan.boot + 60 * minute)
        log.enforced(replace(one, scan=scan))
    return [f"{record.levelname}: {record.message}" for record in caplog.records]


def pinning(*decisions: Decision) -> Enforced:
    return enforced(*decisions, done=[done(it, result(2)) for it in decisions])


FITS, ONE, TWO = enforced(fits()), pinning(drifted(1)), pinning(drifted(2))
ON_BOTH = pinning(drifted(1), drifted(2, gpu=GPU1))
ENDED = enforced(drifted(1), done=(done(drifted(1), result()),))
EPERM = "EPERM: it is another user's"
GIVEN_UP = enforced(left(1, "given_up", would="mask"), left(2, "given_up", would="mask"))
REFUSED = enforced(drifted(1), done=(done(drifted(1), result(refused=2, error=EPERM)),))
OF_NO_JOB = enforced(left(1, "no_job", job=None))
BLIND = enforced(notices=("it cannot be read\n",))
LONG = int(REMEMBERED) // 60 + 1  #: reports after which what was told is news again

PINNED_ONE, PINNED_TWO = (
    f"INFO: slurm 7: pinned python (pid {pid}) of uid 1000: 2 threads from CPUs 4-7 to 0-3 (mask)"
    for pid in (1, 2)
)
SAID_GIVEN_UP = "WARNING: slurm 7: python (pid 1) is no longer pinned: so it is"
SAID_REFUSED = f"WARNING: slurm 7: python (pid 1): 2 threads cannot be pinned: {EPERM}"
SAID_BLIND = "WARNING: it cannot be read\\n"

FREE, TAKEN = enforced(), enforced(does=OBSERVE, hindrance="another daemon pins")
OBSERVES = "WARNING: observes instead of pinning: another daemon pins"
PINS = "INFO: pins from now on: nothing hinders it any more"


@pytest.mark.parametrize(
    ("reports", "lines"),
    [
        ([FITS, enforced(drifted()), ENDED, OF_NO_JOB], []),
        ([ONE, TWO, ONE], [PINNED_ONE, PINNED_TWO, PINNED_ONE]),
        ([ON_BOTH], [PINNED_ONE, PINNED_TWO]),
        ([GIVEN_UP, GIVEN_UP], [SAID_GIVEN_UP]),
        ([GIVEN_UP, *[ONE] * LONG, GIVEN_UP], [SAID_GIVEN_UP, *[PINNED_ONE] * LONG]),
        ([REFUSED, REFUSED], [SAID_REFUSED]),
        ([BLIND, BLIND, FITS, BLIND], [SAID_BLIND]),
        ([BLIND, *[FITS] * LONG, BLIND], [SAID_BLIND] * 2),
        ([FREE, TAKEN, TAKEN], [OBSERVES]),
        ([TAKEN, FREE, FREE], [OBSERVES, PINS]),
    ],
)
def test_each_finding_is_logged_once(
    caplog: pytest.LogCaptureFixture, reports: list[Enforced], lines: list[str]
) -> None:
    assert told(caplog, *reports)[1:] == lines


FILE = "/etc/affinityd-policy.toml"
NO_POLICY, READ, AGAIN = PolicyState(), PolicyState(FILE, 5.0, 3), PolicyState(FILE, 6.0, 1)
BROKEN = PolicyState(FILE, 5.0, 3, "rule 1: so")
WORSE = replace(BROKEN, error="rule 2: so")
NEVER = PolicyState(FILE, None, 0, "there is no such file")

COUNTS = f"INFO: the policy {FILE} applies, with 3 rules"
COUNTS_AGAIN = f"INFO: the policy {FILE} applies, with 1 rule"
BAD = f"WARNING: the policy {FILE} has an error"
STANDS = "the last good one applies"
BAD_1, BAD_2 = f"{BAD}: rule 1: so; {STANDS}", f"{BAD}: rule 2: so; {STANDS}"
REMOVED = f"INFO: the policy {FILE} was removed: the defaults apply"


@pytest.mark.parametrize(
    ("states", "lines"),
    [
        ([NO_POLICY, NO_POLICY], []),
        ([READ, READ, AGAIN], [COUNTS, COUNTS_AGAIN]),
        ([READ, BROKEN, BROKEN, WORSE], [COUNTS, BAD_1, BAD_2]),
        ([NEVER], [f"{BAD}: there is no such file; nothing is pinned until it is correct"]),
        ([READ, BROKEN, READ], [COUNTS, BAD_1, COUNTS]),
        ([READ, NO_POLICY], [COUNTS, REMOVED]),
    ],
)
def test_changes_of_the_policy_are_logged(
    caplog: pytest.LogCaptureFixture, states: list[PolicyState], lines: list[str]
) -> None:
    assert told(caplog, *(enforced(policy=state) for state in states))[1:] == lines


@pytest.mark.parametrize(
    ("audit", "reserved", "may_use", "cpus"),
    [
        (NONE, "", "0-7", "0-7"),
        (NEAR, "", "0-7", "1-7"),  # a rank is pinned to CPU 0
        (NEAR, "6", "0-7", "6"),
        (NEAR, "6", "0-5", "1-5"),  # the daemon's own cpuset has no reserved CPU
        (NEAR, "", "0", "0"),  # nor any other
        (OF_DAEMON, "", "0-7", "0-7"),
        (ON_OTHER, "", "0-7", "0-7"),  # it is not pinned
    ],
)
def test_the_daemon_keeps_off_the_cpus_of_pinned_ranks(
    audit: Audit, reserved: str, may_use: str, cpus: str
) -> None:
    found = cpus_beside(audit.scan, parse_list(reserved), parse_list(may_use))
    assert format_list(found) == cpus


def test_of_a_container_s_thousand_uids_few_have_a_document_of_their_own() -> None:
    many = audit(*(process(uid, uid=uid) for uid in range(1000, 2000)))
    _, (result,) = scanned(many)
    assert sum(name.removeprefix("/audit ").isdigit() for name in result.texts) == MOST_READERS
    nothing = result.document("/audit", "own")
    assert result.document("/audit", "1000") != nothing == result.document("/audit", "1999")


def test_the_daemon_s_threads_are_moved_but_not_those_of_init_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[int] = []
    monkeypatch.setattr(scans, "thread_ids", lambda pid: [pid])
    monkeypatch.setattr(scans, "mask_of", lambda _tid: frozenset({1}))
    monkeypatch.setattr(os, "sched_setaffinity", lambda tid, _cpus: moved.append(tid))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    scans.move_to(frozenset({0}), daemon=777)
    assert moved == []
    monkeypatch.setattr(os, "getppid", lambda: 777)
    scans.move_to(frozenset({0}), daemon=777)
    assert moved == [777, os.getpid()]
