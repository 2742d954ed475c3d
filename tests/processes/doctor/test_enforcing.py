"""The check of a daemon that pins from outside: what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.describe import everything
from affinityd.doctor.daemon_probe import probe
from affinityd.doctor.facts import DaemonFacts, NodeFacts
from affinityd.enforce.describe import render
from affinityd.enforce.document import EnforceDocument
from affinityd.enforce.enforcer import Enforced
from affinityd.enforce.policy.model import PolicyState
from affinityd.json_codec import loads
from tests.support.doctor_facts import Expected, check, facts_of, n_a, well
from tests.support.enforce_reports import drifted, enforced
from tests.support.servers import Behaviour, answering, http, serving


def facts(root: Path, found: Enforced) -> NodeFacts:
    """Return what is to be judged where a daemon says this."""
    report = loads(EnforceDocument, render(found, everything), "enforce")
    return replace(facts_of(root), daemon=DaemonFacts("/s", listens=True, enforcement=report))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(enforced(drifted()), [well("the daemon pins")], id="pins"),
        pytest.param(
            enforced(wanted="observe", does="observe"),
            [well("the daemon observes what it would pin")],
            id="is to observe, and does",
        ),
        pytest.param(
            enforced(does="observe", hindrance="CAP_SYS_NICE is missing"),
            [
                Expected(
                    "warn", "to pin, and can only observe: CAP_SYS_NICE is missing", "enforce.conf"
                )
            ],
            id="is to pin, and may not",
        ),
        pytest.param(
            enforced(policy=PolicyState("/p.toml", error="rule 1: unknown 'mod'")),
            [Expected("warn", "/p.toml has an error: rule 1: unknown 'mod'", "--check")],
            id="its policy is broken",
        ),
        pytest.param(
            enforced(notices=("no environment can be read", "NVML says nothing")),
            [
                Expected("warn", it, "affinityd enforce")
                for it in ("no environment can be read", "NVML says nothing")
            ],
            id="it is blind in two ways",
        ),
    ],
)
def test_what_keeps_it_from_pinning_is_found(
    tmp_path: Path, found: Enforced, expected: list[Expected]
) -> None:
    check("enforce", facts(tmp_path, found), *expected)


def test_a_machine_that_is_replayed_has_no_daemon(tmp_path: Path) -> None:
    check("enforce", facts_of(tmp_path), n_a("the machine is replayed"))


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (answering(http("200 OK", b"ready\n")), "enforce is 'ready\\n', not JSON"),
        (answering(http("404 Not Found", b"no")), "answered 404: 'no'"),
        (answering(b"220 mail\r\n"), "no daemon answers"),
    ],
    ids=["another document", "an older daemon", "another server"],
)
def test_what_says_nothing_of_it_is_not_judged(tmp_path: Path, behave: Behaviour, why: str) -> None:
    with serving(tmp_path / "s", behave) as path:
        daemon = probe(str(path))
    check("enforce", replace(facts_of(tmp_path / "node"), daemon=daemon), n_a(why))
