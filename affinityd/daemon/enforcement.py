"""Enforcement by each scan, in the child, and its metrics, document and log lines.

This module imports all of enforcement: a daemon that does not enforce does not import it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client.core import Metric

from affinityd import config
from affinityd.audit.model import GpuKey, Job, Scan
from affinityd.config.settings import OBSERVE, PIN, Settings
from affinityd.cpuset import several
from affinityd.daemon.api.peers import Viewer
from affinityd.daemon.metrics import enforcement as enforcement_metrics
from affinityd.daemon.policy_document import parse
from affinityd.daemon.state.background import FailureLog
from affinityd.enforce.document import Enforced, render
from affinityd.enforce.enforcer import Enforcer, NodeLock, lacking
from affinityd.enforce.model import GIVEN_UP, PINNED, REFUSED, Decision, PinAttempt, job_name
from affinityd.enforce.policy import FILE, PolicyFile, PolicyState, site
from affinityd.grouping import Recent, grouped
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
            reserved=settings.reserved_cpus,
        )
        self._failures = FailureLog("enforcement failed; its last result stays")
        self._last: Enforced | None = None

    def enforce(self, topology: Topology, scan: Scan) -> Enforced | None:
        """Enforce by a scan; return the last result. Raises nothing: the next scan comes."""
        with self._failures.logged():
            self._last = self._enforcer.enforce(topology, scan)
            self._log.enforced(self._last)
        return self._last

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the last result."""
        if self._last is not None:
            yield from enforcement_metrics.metrics(self._last)

    def document(self, viewer: Viewer) -> bytes:
        """Return the document of the last result, of which there is one."""
        assert self._last is not None  # noqa: S101 - the daemon asks after a result
        return render(self._last, viewer.sees)


def _why_not_pin(settings: Settings) -> Callable[[], str | None]:
    if settings.enforce != PIN:
        return lambda: None
    lacks = lacking()
    return NodeLock().acquire if lacks is None else lambda: lacks


AT_START: Mapping[str, str] = {
    OBSERVE: "changes no process, and reports at /enforce what it would pin",
    PIN: "pins processes of GPU jobs that run in the wrong place",
}
NOTHING_COUNTS = "nothing is pinned until it is correct"
OLD_COUNTS = "the last good one applies"

KINDS = (PINNED, REFUSED, GIVEN_UP)  #: of news about a job


class EnforceLog:
    """Logs each finding once, and once more when it is over."""

    def __init__(self, wanted: str, hindrance: str | None) -> None:
        self._hindrance: str | None = None
        self._policy = PolicyState()
        self._told: Recent[tuple[Job | None, str], None] = Recent()  # notices, kinds of a job's
        log.info("enforce %s: %s", wanted, AT_START[wanted])
        self._note_hindrance(hindrance)

    def enforced(self, enforced: Enforced) -> None:
        """Log the news of a result."""
        self._told.begin(enforced.scan.boot)
        for level, line in _of_policy(self._policy, enforced.policy):
            log.log(level, "%s", line)
        self._policy = enforced.policy
        self._note_hindrance(enforced.hindrance)
        for notice in enforced.notices:
            if self._told.is_news((None, notice)):
                log.warning("%s", one_line(notice))
        pods = {one.job: one.pod for one in enforced.decisions if one.pod is not None}
        for seen in {one.job for one in enforced.decisions if one.job is not None}:
            for kind in KINDS:
                self._told.get((seen, kind))  # as long as the job is seen it is remembered
        for job, kind, line in _of_jobs(enforced):
            if self._told.is_news((job, kind)):
                name = job and f"{job_name(job.scheduler, job.id, pods.get(job))}: "
                level = logging.INFO if kind == PINNED else logging.WARNING
                log.log(level, "%s", one_line((name or "") + line))

    def _note_hindrance(self, hindrance: str | None) -> None:
        if hindrance not in {None, self._hindrance}:
            log.warning("observes instead of pinning: %s", hindrance)
        elif self._hindrance is not None and hindrance is None:
            log.info("pins from now on: nothing hinders it any more")
        self._hindrance = hindrance


def _of_jobs(enforced: Enforced) -> Iterator[tuple[Job | None, str, str]]:
    """Yield jobs with a kind of news and its line: pins, one refusal, processes given up."""
    living = [attempt for attempt in enforced.done if not attempt.outcome.is_gone]
    for job, attempts in grouped(living, lambda attempt: attempt.decision.job).items():
        if pinned := [attempt for attempt in attempts if attempt.outcome.pinned]:
            yield job, PINNED, _pinned(pinned)
        for attempt in attempts:
            if attempt.outcome.refused:
                threads = count(attempt.outcome.refused, "thread")
                why = f"{threads} cannot be pinned: {attempt.outcome.error}"
                yield job, REFUSED, f"{_process(attempt.decision)}: {why}"
    for decision in enforced.decisions:
        if decision.reason == GIVEN_UP:
            line = f"{_process(decision)} is no longer pinned: {decision.why}"
            yield decision.job, GIVEN_UP, line


def _of_policy(before: PolicyState, now: PolicyState) -> Iterator[tuple[int, str]]:
    if now.error is not None and now.error != before.error:
        stands = NOTHING_COUNTS if now.read is None else OLD_COUNTS
        yield (
            logging.WARNING,
            f"the policy {now.file} has an error: {now.error}; {stands}",
        )
    elif now.error is None and before.file is not None and now.file is None:
        yield logging.INFO, f"the policy {before.file} was removed: the defaults apply"
    elif now.error is None and now.file is not None and now != before:
        yield logging.INFO, f"the policy {now.file} applies, with {count(now.rules, 'rule')}"


def _pinned(done: Sequence[PinAttempt]) -> str:
    processes = "1 process" if len(done) == 1 else f"{len(done)} processes"
    threads = count(sum(attempt.outcome.pinned for attempt in done), "thread")
    near = _gpus({gpu for attempt in done for gpu in attempt.decision.process.facts.gpus})
    treatments = {attempt.decision.treatment for attempt in done}
    modes = sorted({treatment.options.mode for treatment in treatments if treatment})
    return f"pinned {processes} ({threads}) near {near}, mode {', '.join(modes)}"


def _process(decision: Decision) -> str:
    return f"{decision.process.facts.name} (pid {decision.process.facts.pid})"


def _gpus(keys: Collection[GpuKey]) -> str:
    by_vendor = grouped(keys, lambda key: key[0])
    return ", ".join(
        f"{vendor} {several('GPU', (index for _, index in by_vendor[vendor]))}"
        for vendor in sorted(by_vendor)
    )
