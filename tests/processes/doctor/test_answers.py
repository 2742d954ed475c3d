"""What listens at the daemon's socket may answer anything: the doctor's lines do no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.doctor.daemon_probe import probe
from affinityd.request.document import AllowedCpus
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
    ("answer", "why"),
    [
        (http("200 OK", b"[" * 200_000), "nested too deeply"),
        (http("200 OK", b"[]"), "plan is [], not an object"),
        (plan(within=CLEARS), "plan.allowed.within: "),
        (plan(source=["caller"]), "source is"),
        (refusal("no such GPU"), "409: 'no such GPU'"),
        (refusal("Cannot be satisfied: too few"), "too few"),
        (http("409 Conflict", b"\xff"), "is not affinityd"),
        (ENDLESS, SHOWN),
    ],
    ids=lambda it: ascii(it[:40]) if isinstance(it, bytes) else it[:20],
)
def test_a_malformed_plan_is_reported_in_printable_lines(
    answer: bytes,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    with serving(tmp_path / "s", answering(answer)) as path:
        assert why in str(probe(os.fspath(path)).allowed)
        main(["doctor", "daemon", "--socket", os.fspath(path)])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(line.isprintable() and len(line) < 5000 for line in printed.out.splitlines())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http("200 OK", b"ready\n"), "enforce is 'ready\\n', not JSON"),
        (http("404 Not Found", b"no"), "answered 404: 'no'"),  # an older daemon
        (b"220 mail\r\n", "no daemon answers"),
    ],
)
def test_a_malformed_report_on_enforcement_is_reported(
    tmp_path: Path, answer: bytes, why: str
) -> None:
    with serving(tmp_path / "s", answering(answer)) as path:
        assert why in str(probe(os.fspath(path)).enforcement)


def test_the_probe_reads_the_caller_s_cpus_from_a_plan(tmp_path: Path) -> None:
    with serving(tmp_path / "s", answering(plan())) as path:
        assert probe(os.fspath(path)).allowed == AllowedCpus("0-3", "caller", "0-3")
