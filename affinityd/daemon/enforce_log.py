"""What enforcement does that is news, as log lines: of a job each kind once, whatever it runs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from affinityd.audit.model import GpuKey, Job
from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import several
from affinityd.enforce.enforcer import Enforced
from affinityd.enforce.model import GIVEN_UP, PinAttempt
from affinityd.enforce.policy.model import PolicyState
from affinityd.recent import Recent
from affinityd.text import count, one_line

log = logging.getLogger(__name__)

AT_START: Mapping[str, str] = {
    OBSERVE: "touches no process, and says at /enforce what it would pin",
    PIN: "pins processes of GPU jobs that do not run where they are to",
}
NOTHING_COUNTS = "nothing is pinned until it does"
OLD_COUNTS = "what was read before stands"

News = tuple[int, str]  #: a level of logging, and a line


class EnforceLog:
    """Says once what has come, and once that it is gone."""

    def __init__(self, wanted: str, hindrance: str | None) -> None:
        """Say what is wanted, and why nothing can be pinned, if so."""
        self._hindrance: str | None = None
        self._policy = PolicyState()
        self._noticed: Recent[str, None] = Recent()
        self._told: Recent[Job, frozenset[str]] = Recent()  # what was said of a job
        log.info("enforce %s: %s", wanted, AT_START[wanted])
        self._note_hindrance(hindrance)

    def enforced(self, enforced: Enforced) -> None:
        """Tell of a new report."""
        for remembered in (self._noticed, self._told):
            remembered.begin(enforced.scan.boot)
        for level, line in _of_policy(self._policy, enforced.policy):
            log.log(level, "%s", line)
        self._policy = enforced.policy
        self._note_hindrance(enforced.hindrance)
        for notice in enforced.notices:
            if notice not in self._noticed:
                log.warning("%s", one_line(notice))
            self._noticed[notice] = None
        for job in {it.job for it in enforced.decisions if it.job is not None}:
            self._told.get(job)  # as long as it is seen it is remembered
        for job, kind, (level, line) in (*_of_pins(enforced.done), *_of_given_up(enforced)):
            told = self._told.get(job) or frozenset()
            if kind not in told:
                log.log(level, "%s %s: %s", job.scheduler, one_line(job.id), line)
            self._told[job] = told | {kind}

    def _note_hindrance(self, hindrance: str | None) -> None:
        if hindrance not in {None, self._hindrance}:
            log.warning("observes instead of pinning: %s", hindrance)
        elif self._hindrance is not None and hindrance is None:
            log.info("pins from now on: nothing keeps it from that any more")
        self._hindrance = hindrance


def _of_policy(before: PolicyState, now: PolicyState) -> Iterator[News]:
    if now.error is not None and now.error != before.error:
        stands = NOTHING_COUNTS if now.read is None else OLD_COUNTS
        yield (
            logging.WARNING,
            f"the policy {now.file} does not count as it is: {now.error}; {stands}",
        )
    elif now.error is None and before.file is not None and now.file is None:
        yield logging.INFO, f"the policy {before.file} is gone: the defaults count"
    elif now.error is None and now.file is not None and now != before:
        yield logging.INFO, f"the policy {now.file} counts, with {count(now.rules, 'rule')}"


def _of_pins(done: Collection[PinAttempt]) -> Iterator[tuple[Job, str, News]]:
    """Yield for each job what came of its processes: how many were pinned, and one refusal."""
    of_jobs: defaultdict[Job, list[PinAttempt]] = defaultdict(list)
    for it in done:
        if it.decision.job is not None and not it.outcome.is_gone:
            of_jobs[it.decision.job].append(it)
    for job, its in of_jobs.items():
        if pinned := [it for it in its if it.outcome.pinned]:
            yield job, "pinned", (logging.INFO, _pinned(pinned))
        for it in [it for it in its if it.outcome.refused][:1]:
            facts, threads = it.decision.process.facts, count(it.outcome.refused, "thread")
            line = f"{_process(facts.name, facts.pid)}: {threads} cannot be pinned: "
            yield job, "refused", (logging.WARNING, line + (it.outcome.error or "nobody says why"))


def _pinned(done: Sequence[PinAttempt]) -> str:
    processes = "1 process" if len(done) == 1 else f"{len(done)} processes"
    threads = count(sum(it.outcome.pinned for it in done), "thread")
    near = _gpus({gpu for it in done for gpu in it.decision.process.facts.gpus})
    modes = sorted({it.decision.treatment.options.mode for it in done if it.decision.treatment})
    return f"pinned {processes} ({threads}) near {near}, mode {', '.join(modes)}"


def _of_given_up(enforced: Enforced) -> Iterator[tuple[Job, str, News]]:
    for decision in enforced.decisions:
        if decision.reason == GIVEN_UP and decision.job is not None:
            facts = decision.process.facts
            line = (
                f"{_process(facts.name, facts.pid)} is given up: {decision.why or decision.reason}"
            )
            yield decision.job, GIVEN_UP, (logging.WARNING, line)


def _process(name: str, pid: int) -> str:
    return f"{one_line(name)} (pid {pid})"


def _gpus(keys: Collection[GpuKey]) -> str:
    """Return GPUs as people name them, like `nvidia GPUs 0-3`."""
    of_vendors: defaultdict[str, set[int]] = defaultdict(set)
    for vendor, index in keys:
        of_vendors[vendor].add(index)
    return ", ".join(
        f"{vendor} {several('GPU', indices)}" for vendor, indices in sorted(of_vendors.items())
    )
