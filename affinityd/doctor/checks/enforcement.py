"""Whether a daemon that is to pin from outside does, and sees what it must."""

from __future__ import annotations

from affinityd.config.settings import PIN
from affinityd.doctor.checks.daemon import REPLAYED
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, not_applicable, ok, warn
from affinityd.enforce.client import EnforceReport


def enforce(facts: NodeFacts) -> CheckResults:
    """Judge what the daemon says of itself at /enforce."""
    daemon = facts.daemon
    if daemon is None:
        yield not_applicable(REPLAYED)
    elif daemon.enforcement is None:
        yield not_applicable(daemon.enforcement_error or "no daemon answers")
    else:
        does = "pins" if daemon.enforcement.does == PIN else "observes what it would pin"
        yield from list(_wrong(daemon.enforcement)) or [ok(f"the daemon {does}")]


def _wrong(report: EnforceReport) -> CheckResults:
    policy = report.policy
    if report.hindrance is not None:
        yield warn(
            f"the daemon is to pin, and observes: {report.hindrance}",
            "affinityd.service.d/enforce.conf for systemd, enforce.mode of the chart; or let it "
            "observe: AFFINITYD_ENFORCE=observe",
        )
    if policy.error is not None:
        yield warn(
            f"the policy {policy.file} does not count as it is: {policy.error}",
            "mend it: affinityd enforce --check FILE says whether it is one",
        )
    for notice in report.notices:
        yield warn(notice, "affinityd enforce says who is let alone meanwhile")
