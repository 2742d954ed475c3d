"""Enforcement by each scan, in the child, and its metrics, document and log lines.

This module imports all of enforcement: a daemon that does not enforce does not import it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric

from affinityd import config
from affinityd.audit.model import Job, Scan
from affinityd.config.settings import OBSERVE, PIN, Settings
from affinityd.cpuset import format_list
from affinityd.daemon.metrics import enforcement as enforcement_metrics
from affinityd.daemon.policy_document import parse, policy_news
from affinityd.daemon.state.background import FailureLog
from affinityd.enforce import journal
from affinityd.enforce.document import Enforced
from affinityd.enforce.enforcer import Enforcer, NodeLock, lacking
from affinityd.enforce.model import GIVEN_UP, REFUSED, Decision, PinAttempt, job_name
from affinityd.enforce.policy import FILE, PolicyFile, PolicyState, site
from affinityd.grouping import Recent
from affinityd.text import count, one_line
from affinityd.topology.model import Topology

log = logging.getLogger(__name__)


class Enforcement:
    """Enforces by one scan after the other, and keeps the result of the last."""

    def __init__(self, settings: Settings) -> None:
        why_not_pin = _why_not_pin(settings)
        self._log = EnforceLog(settings.enforce, why_not_pin())
        self._enforcer = Enforcer(
            settings.enforce,
            PolicyFile(
                settings.enforce_policy or FILE,
                parse=partial(parse, site=site(config.variables())),
                is_optional=not settings.enforce_policy,
            ),
            why_not_pin=why_not_pin,
            note=self._note,
            reserved=settings.reserved_cpus,
        )
        self._journal = Path(settings.socket).with_name(journal.FILE)
        self._unjournaled = FailureLog(
            f"pins cannot be noted in {self._journal}, and so not be undone", expected=(OSError,)
        )
        self._failures = FailureLog("enforcement failed; its last result stays")
        self._last: Enforced | None = None

    def enforce(self, topology: Topology, scan: Scan) -> Enforced | None:
        """Enforce by a scan; return the last result. Raises nothing: the next scan comes."""
        with self._failures.logged():
            self._last = self._enforcer.enforce(topology, scan)
            self._log.enforced(self._last)
        return self._last

    def _note(self, attempt: PinAttempt) -> None:
        facts, job = attempt.decision.process.facts, attempt.decision.job
        with self._unjournaled.logged():
            journal.append(
                self._journal,
                journal.JournaledPin(
                    time=time.time(),
                    pid=facts.pid,
                    start=facts.start,
                    name=facts.name,
                    uid=facts.uid,
                    job=None if job is None else job.id,
                    reason=attempt.decision.cause or "",
                    cpus=attempt.target.cpus,
                    threads=attempt.result.replaced[facts.pid],
                ),
            )

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the last result."""
        if self._last is not None:
            yield from enforcement_metrics.metrics(self._last)


def _why_not_pin(settings: Settings) -> Callable[[], str | None]:
    if settings.enforce != PIN:
        return lambda: None
    lacks = lacking()
    return NodeLock().acquire if lacks is None else lambda: lacks


AT_START: Mapping[str, str] = {
    OBSERVE: "changes no process, and reports at /enforce what it would pin",
    PIN: "pins processes of GPU jobs that run in the wrong place",
}


class EnforceLog:
    """Logs each pin; other findings once, and once more when they are over."""

    def __init__(self, wanted: str, hindrance: str | None) -> None:
        self._hindrance: str | None = None
        self._policy = PolicyState()
        self._told: Recent[tuple[Job | None, str], None] = Recent()  # notices, kinds of a job's
        log.info("enforce %s: %s", wanted, AT_START[wanted])
        self._note_hindrance(hindrance)

    def enforced(self, enforced: Enforced) -> None:
        """Log the news of a result."""
        self._told.begin(enforced.scan.boot)
        for level, line in policy_news(self._policy, enforced.policy):
            log.log(level, "%s", line)
        self._policy = enforced.policy
        self._note_hindrance(enforced.hindrance)
        for notice in enforced.notices:
            if self._told.is_news((None, notice)):
                log.warning("%s", one_line(notice))
        for seen in {it.job for it in enforced.decisions if it.job is not None}:
            for kind in (REFUSED, GIVEN_UP):
                self._told.get((seen, kind))  # as long as the job is seen it is remembered
        self._note_pins(enforced.done)
        for decision in enforced.decisions:
            is_given_up = decision.reason == GIVEN_UP
            if is_given_up and self._told.is_news((decision.job, GIVEN_UP)):
                why = f"is no longer pinned: {decision.why}"
                log.warning("%s", _line(decision, f"{_process(decision)} {why}"))

    def _note_pins(self, attempts: Iterable[PinAttempt]) -> None:
        for attempt in attempts:
            decision, refused = attempt.decision, attempt.refused
            if attempt.pinned:
                log.info("%s", _line(decision, f"pinned {_pinned(attempt)}"))
            if refused and self._told.is_news((decision.job, REFUSED)):
                why = f"{count(len(refused), 'thread')} cannot be pinned: {refused[0].reason}"
                log.warning("%s", _line(decision, f"{_process(decision)}: {why}"))

    def _note_hindrance(self, hindrance: str | None) -> None:
        if hindrance not in {None, self._hindrance}:
            log.warning("observes instead of pinning: %s", hindrance)
        elif self._hindrance is not None and hindrance is None:
            log.info("pins from now on: nothing hinders it any more")
        self._hindrance = hindrance


def _pinned(attempt: PinAttempt) -> str:
    decision = attempt.decision
    replaced = attempt.result.replaced[decision.process.facts.pid]
    before = format_list(frozenset().union(*(thread.mask for thread in replaced)))
    cpus = format_list(attempt.target.cpus)
    moved = f"{count(len(attempt.pinned), 'thread')} from CPUs {before} to {cpus}"
    uid = decision.process.facts.uid
    return f"{_process(decision)} of uid {uid}: {moved} ({decision.cause})"


def _process(decision: Decision) -> str:
    return f"{decision.process.facts.name} (pid {decision.process.facts.pid})"


def _line(decision: Decision, text: str) -> str:
    job = decision.job
    return one_line(f"{job_name(job.scheduler, job.id, decision.pod)}: {text}" if job else text)
