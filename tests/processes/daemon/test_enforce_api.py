"""A daemon that does not enforce: what it answers at /enforce, and what is said of it elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.doctor.daemon_probe import probe
from affinityd.enforce.model import CAUSES, DRIFTED, FITS, LEFT, PIN_OUTCOMES, REASONS
from tests.support.daemons import Daemon, running
from tests.support.doctor_facts import check, facts_of, n_a
from tests.support.paths import REPOSITORY

HOW = "this daemon does not enforce: start it with --enforce observe or pin"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("run"), "--machine", "dgx-a100") as daemon:
        yield daemon


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/enforce", 503, f"Not enforced: {HOW}, and without AFFINITYD=off\n"),
        (
            *("/enforce?mode=node", 422),
            "Malformed request: /enforce takes no parameters, and was given 'mode=node'\n",
        ),
    ],
)
def test_it_refuses_and_takes_no_parameters(
    daemon: Daemon, target: str, status: int, text: str
) -> None:
    reply = daemon.get(target, accept="text/plain")
    assert (reply.status, reply.text) == (status, text)


def test_the_command_and_the_doctor_say_how_it_would(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["enforce", "--socket", str(daemon.socket)]) == 2
    assert capsys.readouterr().err == f"affinityd enforce: {HOW}, and without AFFINITYD=off\n"
    found = replace(facts_of(tmp_path / "node"), daemon=probe(str(daemon.socket)))
    check("enforce", found, n_a(HOW.removesuffix(" or pin")))


def test_the_answers_description_names_every_cause_reason_and_outcome(daemon: Daemon) -> None:
    described = daemon.get("/openapi.json").json["components"]["schemas"]
    verdicts = described["VerdictsDocument"]["properties"]
    assert verdicts["drifted"]["propertyNames"]["enum"] == [*CAUSES]
    assert verdicts["left"]["propertyNames"]["enum"] == [*REASONS]
    totals = described["TotalsDocument"]["properties"]
    assert totals["pins"]["propertyNames"]["enum"] == [*PIN_OUTCOMES]


def test_every_word_of_it_is_explained() -> None:
    page = REPOSITORY / "docs/api.md"
    section = page.read_text().partition("## GET /enforce")[2]
    words = (*CAUSES, *REASONS, *PIN_OUTCOMES, FITS, DRIFTED, LEFT)
    assert [word for word in words if f"`{word}`" not in section] == []


#: What OpenAPI needs of enforcement: the document, and its words.
DESCRIPTION = {
    *("affinityd.enforce", "affinityd.enforce.document", "affinityd.enforce.model"),
    *("affinityd.enforce.policy", "affinityd.enforce.policy.model"),
}


def test_it_imports_nothing_that_enforces() -> None:
    code = "import sys, affinityd.cli.commands.serve, affinityd.daemon.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "affinityd.daemon.main" in done.stdout.split()
    ours = {name for name in done.stdout.split() if name.startswith("affinityd.enforce")}
    assert ours == DESCRIPTION
