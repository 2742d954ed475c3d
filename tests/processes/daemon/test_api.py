"""What the daemon answers over HTTP, asked of a real one on a shipped machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from affinityd.cli import main
from affinityd.doctor.daemon_probe import probe
from affinityd.enforce.model import CAUSES, DRIFTED, FITS, LEFT, PIN_OUTCOMES, REASONS
from affinityd.request.document import PlanDocument, ProblemDocument
from tests.support.child_python import said
from tests.support.daemons import Daemon, UnixConnection, running
from tests.support.documents import exactly
from tests.support.paths import REPOSITORY

HOW = "this daemon does not enforce: start it with --enforce observe or pin"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("api")
    with running(folder, "--machine", "dgx-a100", "--reserved-cpus", "0") as daemon:
        yield daemon
        assert not any("Traceback" in line for line in daemon.lines)


def test_an_answer_has_the_published_shape(daemon: Daemon) -> None:
    reply = daemon.get("/plan?gpus=0,0,7&cpuset=0-79&mode=socket&share=node&balanced=false")
    assert reply.headers["content-type"] == "application/json"
    codes = {warning.code for warning in exactly(PlanDocument, reply.body).warnings}
    assert codes == {"shared_gpu", "remote_home", "parameter_ignored"}


def test_the_same_question_has_the_same_answer_remembered_or_not(daemon: Daemon) -> None:
    spellings = ("gpus=2,3&mode=exclusive", "mode=exclusive&gpus=2%2C3", "gpus=2,3&mode=exclusive")
    assert len({daemon.get(f"/plan?{query}").body for query in spellings}) == 1


@pytest.mark.parametrize(
    ("headers", "query", "media_type", "body"),
    [
        ({}, "", "application/json", None),
        ({"accept": "*/*"}, "", "application/json", None),  # curl's
        ({"accept": "text/plain"}, "", "text/plain", "48-63,176-191\n"),
        ({"accept": "text/plain"}, "&format=json", "application/json", None),
        ({}, "&format=mask&cpuset=48", "text/plain", f"{1 << 48:#x}\n"),
    ],
)
def test_the_answers_form(
    daemon: Daemon, headers: dict[str, str], query: str, media_type: str, body: str | None
) -> None:
    for _ in ("planned", "remembered"):
        reply = daemon.get(f"/plan?gpus=0&mode=node{query}", **headers)
        assert reply.headers["content-type"].split(";")[0] == media_type
        assert body is None or reply.text == body


@pytest.mark.parametrize(
    ("target", "status", "line"),
    [
        ("/plan?gpu=0", 422, "'gpu' is no parameter; did you mean gpus?"),
        ("/plan?mode=node&gpus", 422, "'gpus' has no value; write NAME=VALUE"),
        ("/plan?gpus=%ff", 422, "the query string cannot be read"),
        ("/plan?visible=" + "9" * 5000, 404, "no GPU is visible to the caller"),
        ("/plan?gpus=8", 404, "no GPU 8; visible are 0 (0000:07:00.0), 1 (0000:0f:00.0)"),
        ("/plan?gpus=0&min_physical_cores=99", 409, "min_physical_cores=16 would work"),
        ("/audit", 503, "a replayed machine has no processes to scan"),
        ("/audit?%zz", 422, "/audit takes no parameters, and was given '%zz'"),
        ("/enforce", 503, f"{HOW}, and without AFFINITYD=off"),
        ("/enforce?mode=node", 422, "/enforce takes no parameters, and was given 'mode=node'"),
        ("/nowhere", 404, "GET '/nowhere' is not answered here; see /openapi.json"),
        ("/plan/?gpus=0", 404, "GET '/plan/' is not answered here; see /openapi.json"),
    ],
)
def test_a_refusal_is_one_clear_line(daemon: Daemon, target: str, status: int, line: str) -> None:
    reply = daemon.get(target)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    problem = exactly(ProblemDocument, reply.body)
    assert problem.status == status
    assert line in problem.detail
    text = daemon.get(target, accept="text/plain")
    assert (text.status, text.text) == (status, f"{problem.title}: {problem.detail}\n")
    assert problem.detail.isprintable()
    assert len(problem.detail) < 1000


def test_another_method_is_refused_and_told_which_there_are(daemon: Daemon) -> None:
    for method, path in (("POST", "/plan"), ("DELETE", "/audit")):
        reply = daemon.get(path, method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert exactly(ProblemDocument, reply.body).status == 405


SERVED = (
    *(
        "/",
        "/plan",
        "/topology",
        "/topology.svg",
        "/audit",
        "/enforce",
        "/metrics",
        "/healthz",
        "/readyz",
    ),
    "/openapi.json",
)


@pytest.mark.parametrize("target", [*SERVED, "/plan?gpus=3&mode=single", "/plan?gpus=99"])
def test_head_is_answered_as_get_without_the_body(daemon: Daemon, target: str) -> None:
    connection = UnixConnection(daemon.socket)
    answers = []
    for method in ("HEAD", "GET", "HEAD", "GET"):  # the latter as it is remembered
        connection.request(method, target)
        response = connection.getresponse()
        headers = {k.lower(): v for k, v in response.getheaders() if k.lower() != "date"}
        body = response.read()
        length = int(headers["content-length"])
        assert body == b"" if method == "HEAD" else len(body) == length > 0
        if target == "/metrics":  # with numbers that grow
            del headers["content-length"]
        answers.append((response.status, headers))
    connection.close()
    assert answers == answers[:1] * 4


def test_the_first_page_lists_what_is_served_a_line_each(daemon: Daemon) -> None:
    reply = daemon.get("/")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    rows = [line.split(maxsplit=2) for line in reply.text.splitlines()[2:]]
    assert [(method, bool(says)) for method, _, says in rows] == [("GET", True)] * len(rows)
    assert {path for _, path, _ in rows} == set(SERVED)
    assert set(SERVED) - {"/openapi.json"} == daemon.get("/openapi.json").json["paths"].keys()
    assert 404 not in {daemon.get(path).status for path in SERVED if path != "/enforce"}


def test_the_openapi_document_names_every_parameter_with_its_default(daemon: Daemon) -> None:
    plan = daemon.get("/openapi.json").json["paths"]["/plan"]["get"]
    defaults = {row["name"]: row["schema"].get("default") for row in plan["parameters"]}
    understood = daemon.plan("")["request"]
    for name in ("mode", "scope", "multithreading", "balanced", "min_physical_cores", "strict"):
        assert defaults[name] == understood[name]
    assert {"gpus", "rank", "cpuset", "visible", "granted", "share", "format"} <= defaults.keys()


def test_the_page_explains_every_word_of_enforcement() -> None:
    page = REPOSITORY / "docs/api.md"
    section = page.read_text().partition("## GET /enforce")[2]
    words = (*CAUSES, *REASONS, *PIN_OUTCOMES, FITS, DRIFTED, LEFT)
    assert [word for word in words if f"`{word}`" not in section] == []


def test_the_command_and_the_doctor_say_that_it_does_not_enforce(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["enforce", "--socket", str(daemon.socket)]) == 2
    assert capsys.readouterr().err == f"affinityd enforce: {HOW}, and without AFFINITYD=off\n"
    assert HOW.removesuffix(" or pin") in str(probe(str(daemon.socket)).enforcement)


def test_a_daemon_imports_nothing_that_scans_or_enforces_or_describes_answers() -> None:
    """Its start takes no longer for that, and its memory holds none of it."""
    code = "import sys, affinityd.cli.commands.serve, affinityd.daemon.main; print(*sys.modules)"
    others = ("affinityd.audit", "affinityd.enforce")
    assert [name for name in said(code).split() if name.startswith(others)] == []
