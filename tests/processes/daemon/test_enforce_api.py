"""What `GET /enforce` answers, and to whom; who sees what is /audit's to test."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from affinityd.daemon.api.documents import Documents, Viewer
from affinityd.enforce.describe import render
from affinityd.enforce.model import CAUSES, DRIFTED, FITS, LEFT, PIN_OUTCOMES, REASONS
from affinityd.errors import NotEnforcedError
from tests.support.daemons import running
from tests.support.enforce_reports import enforced, fits
from tests.support.paths import REPOSITORY


def test_a_user_sees_his_own_processes_and_nobody_else_any() -> None:
    documents = Documents(render, NotEnforcedError, "")
    documents.update(enforced(fits(1, uid=7), fits(2, uid=8)))

    def pids(viewer: Viewer) -> list[int] | None:
        told = json.loads(asyncio.run(documents.document(viewer)))
        return (
            None
            if "jobs" not in told
            else [it["pid"] for job in told["jobs"] for it in job["processes"]]
        )

    assert pids(Viewer(is_admin=True)) == [1, 2]
    assert pids(Viewer(uid=7)) == [1]
    assert pids(Viewer(uid=9)) == []
    assert pids(Viewer()) is None


def test_over_http_it_is_refused_where_nothing_is_enforced_and_takes_no_parameters(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        reply = daemon.get("/enforce", accept="text/plain")
        assert (reply.status, reply.text) == (
            503,
            (
                "Not enforced: this daemon does not enforce: start it with --enforce observe or "
                "pin, and without AFFINITYD=off\n"
            ),
        )
        reply = daemon.get("/enforce?mode=node", accept="text/plain")
        assert (reply.status, reply.text) == (
            422,
            "Malformed request: /enforce takes no parameters, and was given 'mode=node'\n",
        )


def test_its_description_names_every_cause_reason_and_outcome(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        described = daemon.get("/openapi.json").json["components"]["schemas"]
    verdicts = described["VerdictsDocument"]["properties"]
    assert verdicts["drifted"]["propertyNames"]["enum"] == [*CAUSES]
    assert verdicts["left"]["propertyNames"]["enum"] == [*REASONS]
    totals = described["TotalsDocument"]["properties"]
    assert totals["pins"]["propertyNames"]["enum"] == [*PIN_OUTCOMES]


@pytest.mark.parametrize("words", [CAUSES, REASONS, PIN_OUTCOMES, (FITS, DRIFTED, LEFT)])
def test_every_word_of_it_is_explained(words: Iterable[str]) -> None:
    page = REPOSITORY / "docs/api.md"
    section = page.read_text().partition("## GET /enforce")[2]
    assert [word for word in words if f"`{word}`" not in section] == []


#: What OpenAPI needs of enforcement: the document, and its words.
DESCRIPTION = {
    *("affinityd.enforce", "affinityd.enforce.document", "affinityd.enforce.model"),
    *("affinityd.enforce.policy", "affinityd.enforce.policy.model"),
}


def test_a_daemon_that_does_not_enforce_imports_nothing_that_does() -> None:
    code = "import sys, affinityd.cli.commands.serve, affinityd.daemon.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "affinityd.daemon.main" in done.stdout.split()
    ours = {name for name in done.stdout.split() if name.startswith("affinityd.enforce")}
    assert ours == DESCRIPTION
