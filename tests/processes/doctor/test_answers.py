"""What listens at the daemon's socket may answer anything: the doctor's lines do no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.discovery import open_tree
from affinityd.doctor.daemon_probe import probe
from affinityd.doctor.facts import NodeFacts
from tests.support.doctor_facts import TWO, check
from tests.support.servers import answering, http, serving


def plan(**allowed: object) -> bytes:
    document = {"allowed": {"cpulist": "0-3", "source": "caller", "within": "0-3", **allowed}}
    return http("200 OK", json.dumps(document).encode())


def refusal(text: str) -> bytes:
    return http("409 Conflict", text.encode())


CLEARS = "\x1b[2J\n"  #: a screen, where it reaches one
ENDLESS = refusal(f"Cannot be satisfied: {CLEARS * 20_000}")
SHOWN = repr(CLEARS * 100).replace("'", "")


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("caller", plan(), "ok: CPUs 0-3"),
        ("caller", http("200 OK", b"[" * 200_000), "n/a: nested too deeply"),
        ("caller", http("200 OK", b"[]"), "n/a: plan is [], not an object"),
        ("caller", plan(within=CLEARS), "n/a: plan.allowed.within: "),
        ("caller", plan(source=["caller"]), "n/a: source is"),
        ("caller", refusal("no such GPU"), "n/a: 409: 'no such GPU'"),
        ("caller", refusal("Cannot be satisfied: too few"), "n/a: too few"),
        ("caller", http("409 Conflict", b"\xff"), "n/a: is not affinityd"),
        ("caller", ENDLESS, f"n/a: {SHOWN}"),
        ("enforce", http("200 OK", b"ready\n"), "n/a: enforce is 'ready\\n', not JSON"),
        ("enforce", http("404 Not Found", b"no"), "n/a: answered 404: 'no'"),  # an older daemon
        ("enforce", b"220 mail\r\n", "n/a: no daemon answers"),
    ],
    ids=lambda it: ascii(it[:40]) if isinstance(it, bytes) else it[:20],
)
def test_what_a_daemon_answers_is_told_in_lines_that_do_no_harm(
    *,
    name: str,
    answer: bytes,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    with serving(tmp_path / "s", answering(answer)) as path:
        daemon = probe(os.fspath(path))
        main(["doctor", "socket", "caller", "enforce", "--socket", os.fspath(path)])
    check(name, NodeFacts(TWO, open_tree("/"), daemon=daemon), expected)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(line.isprintable() and len(line) < 5000 for line in printed.out.splitlines())
