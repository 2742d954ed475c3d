"""What the log says of enforcement: of each job once, of the policy and the lock every turn."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from affinityd.audit.model import Job
from affinityd.config.settings import OBSERVE, PIN
from affinityd.daemon.enforce_log import EnforceLog
from affinityd.enforce.enforcer import Enforced
from affinityd.enforce.model import Decision
from affinityd.enforce.policy.model import PolicyState
from affinityd.recent import REMEMBERED
from tests.support.enforce_reports import done, drifted, enforced, fits, left
from tests.support.scans import GPU1

FILE = "/etc/affinityd-policy.toml"


def told(
    caplog: pytest.LogCaptureFixture, *reports: Enforced, wanted: str = PIN, why: str | None = None
) -> list[str]:
    """Return the lines of these reports, one after the other, a minute apart, but the first."""
    caplog.set_level(logging.INFO)
    log = EnforceLog(wanted, why)
    for minute, one in enumerate(reports):
        scan = replace(one.scan, boot=one.scan.boot + 60 * minute)
        log.enforced(replace(one, scan=scan))
    return [f"{record.levelname}: {record.message}" for record in caplog.records][1:]


def test_what_cannot_be_seen_is_said_once_and_again_when_it_was_away_for_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blind, well = enforced(notices=("it cannot be read\n",)), enforced()
    line = "WARNING: it cannot be read"
    assert [it[: len(line)] for it in told(caplog, blind, blind, well, blind)] == [line]
    caplog.clear()
    assert len(told(caplog, blind, *[well] * 11, blind)) == 2


def pinning(*decisions: Decision) -> Enforced:
    """Return a report of having pinned these."""
    return enforced(*decisions, done=tuple(done(it, pinned=2) for it in decisions))


EPERM = "EPERM: it is another user's"
GIVEN_UP = enforced(left(1, "given_up", would="mask"), left(2, "given_up", would="mask"))
REFUSED = enforced(drifted(1), done=(done(drifted(1), refused=2, error=EPERM),))
PINNED_ONE = "INFO: slurm 7: pinned 1 process (2 threads) near nvidia GPU 0, mode node"


@pytest.mark.parametrize(
    ("reports", "lines"),
    [
        pytest.param([enforced(fits())], [], id="what fits is no news"),
        pytest.param([enforced(drifted())], [], id="what would be pinned is none either"),
        pytest.param([pinning(drifted(1))], [PINNED_ONE], id="a job that is pinned"),
        pytest.param(
            [pinning(drifted(1)), pinning(drifted(2)), pinning(drifted(1))],
            [PINNED_ONE],
            id="is news once",
        ),
        pytest.param(
            [pinning(drifted(1)), *[enforced(fits())] * 20, pinning(drifted(1))],
            [PINNED_ONE],
            id="as long as it is seen",
        ),
        pytest.param(
            [pinning(drifted(1)), *[enforced()] * (int(REMEMBERED) // 60 + 1), pinning(drifted(1))],
            [PINNED_ONE] * 2,
            id="and when it comes back after long",
        ),
        pytest.param(
            [pinning(drifted(1), drifted(2, gpu=GPU1))],
            ["INFO: slurm 7: pinned 2 processes (4 threads) near nvidia GPUs 0-1, mode node"],
            id="all of its processes in one line",
        ),
        pytest.param(
            [enforced(drifted(1), done=(done(drifted(1), pinned=1, is_gone=True),))],
            [],
            id="but those that have ended meanwhile",
        ),
        pytest.param(
            [GIVEN_UP, GIVEN_UP],
            ["WARNING: slurm 7: python (pid 1) is given up: so it is"],
            id="a process that is given up is news once a job",
        ),
        pytest.param(
            [REFUSED, REFUSED],
            [f"WARNING: slurm 7: python (pid 1): 2 threads cannot be pinned: {EPERM}"],
            id="and one that was refused",
        ),
        pytest.param([enforced(left(1, "no_job", job=None))], [], id="of no job nothing is said"),
    ],
)
def test_of_jobs_the_log_says(
    caplog: pytest.LogCaptureFixture, reports: list[Enforced], lines: list[str]
) -> None:
    assert told(caplog, *reports) == lines


NONE = PolicyState()
READ = PolicyState(FILE, 5.0, 3)
AGAIN = PolicyState(FILE, 6.0, 1)
BROKEN = PolicyState(FILE, 5.0, 3, "rule 1: it is so")
WORSE = replace(BROKEN, error="rule 2: it is so")
NEVER = PolicyState(FILE, None, 0, "there is no such file")

COUNTS = f"INFO: the policy {FILE} counts, with 3 rules"
BAD = f"WARNING: the policy {FILE} does not count as it is"
STANDS = "what was read before stands"


@pytest.mark.parametrize(
    ("states", "lines"),
    [
        pytest.param([NONE, NONE], [], id="where there is none, nothing"),
        pytest.param([READ, READ], [COUNTS], id="that one was read, once"),
        pytest.param(
            [READ, AGAIN],
            [COUNTS, f"INFO: the policy {FILE} counts, with 1 rule"],
            id="that it was changed",
        ),
        pytest.param(
            [READ, BROKEN, BROKEN, WORSE],
            [
                COUNTS,
                f"{BAD}: rule 1: it is so; {STANDS}",
                f"{BAD}: rule 2: it is so; {STANDS}",
            ],
            id="that it is broken, once for each error",
        ),
        pytest.param(
            [NEVER],
            [f"{BAD}: there is no such file; nothing is pinned until it does"],
            id="that there has never been a good one",
        ),
        pytest.param(
            [READ, BROKEN, READ],
            [
                COUNTS,
                f"{BAD}: rule 1: it is so; {STANDS}",
                COUNTS,
            ],
            id="that it was mended",
        ),
        pytest.param(
            [READ, NONE],
            [COUNTS, f"INFO: the policy {FILE} is gone: the defaults count"],
            id="that it was removed",
        ),
    ],
)
def test_of_the_policy_the_log_says(
    caplog: pytest.LogCaptureFixture, states: list[PolicyState], lines: list[str]
) -> None:
    assert told(caplog, *(enforced(policy=state) for state in states)) == lines


FREE, TAKEN = enforced(), enforced(does=OBSERVE, hindrance="another daemon pins")
OBSERVES = "WARNING: observes instead of pinning: another daemon pins"
PINS = "INFO: pins from now on: nothing keeps it from that any more"


@pytest.mark.parametrize(
    ("why", "reports", "lines"),
    [
        pytest.param(None, [FREE], [], id="that it can pin is no news"),
        pytest.param("another daemon pins", [TAKEN], [OBSERVES], id="that it cannot is, at once"),
        pytest.param(None, [FREE, TAKEN, TAKEN], [OBSERVES], id="and later, once"),
        pytest.param(None, [TAKEN, FREE, FREE], [OBSERVES, PINS], id="and that it can again"),
    ],
)
def test_of_what_it_does_the_log_says(
    caplog: pytest.LogCaptureFixture, why: str | None, reports: list[Enforced], lines: list[str]
) -> None:
    assert told(caplog, *reports, why=why) == lines


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        (PIN, "enforce pin: pins processes of GPU jobs that do not run where they are to"),
        (OBSERVE, "enforce observe: touches no process, and says at /enforce what it would pin"),
    ],
)
def test_at_the_start_the_log_says_what_is_wanted(
    caplog: pytest.LogCaptureFixture, wanted: str, line: str
) -> None:
    caplog.set_level(logging.INFO)
    EnforceLog(wanted, None)
    assert [record.message for record in caplog.records] == [line]


def test_whatever_a_job_and_a_process_are_called_the_line_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wild = left(1, "given_up", job=Job("cgroup", "/a\nb\x1b[31m"))
    (line,) = told(caplog, enforced(wild))
    assert line.isprintable()
