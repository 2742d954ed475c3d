"""`affinityd fleet` and servers that are no Prometheus, or none that answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.fleet import prometheus
from tests.support.daemons import eventually
from tests.support.ports import free_port

TOKEN = "Bearer dGVzdA"  # noqa: S105 - of this test
JSON = "application/json"
VALUE = '{"status":"success","data":{"result":[{"metric":{},"value":[1,"x"]}]}}'
#: Status, body and Location of the server's only answer; the line that it makes.
ANSWERS = [
    (
        200,
        "<html>Grafana</html>",
        "",
        "is no Prometheus: its answer is '<html>Grafana</html>', not",
    ),
    (200, "[]", "", "is no Prometheus: its answer is [], not an object"),
    (200, '{"status": "success"}', "", "refused a query: ''"),
    (200, "\\xff", "", "is no Prometheus: 'utf-8' codec can't"),
    (
        200,
        '{"status":"success","data":{"result":[{"metric":{},"value":[1]}]}}',
        "",
        "value is [1], not a list of 2 items",
    ),
    (
        200,
        VALUE,
        "",
        "could not convert string to float: 'x'",
    ),
    *(
        (
            200,
            VALUE.replace("x", value),
            "",
            f"is no Prometheus: a value is '{value}', not a number from 0 to 1e+15",
        )
        for value in ("NaN", "+Inf", "-1", "1e99")
    ),
    (
        422,
        '{"status":"error","error":"too many samples"}',
        "",
        "422 Unprocessable Entity: too many",
    ),
    (401, "", "", "answered 401 Unauthorized; --header-file takes the Authorization"),
    (404, "not here", "", "answered 404 Not Found: no Prometheus has its API there"),
    (302, "", "https://login.example/", "redirected to 'https://login.example/'; if that is"),
    (503, "x" * 99, "", "answered 503 Service Unavailable"),
]


@contextmanager
def answering(status: int, body: str, place: str) -> Iterator[tuple[str, list[str | None]]]:
    """Run a server with one answer; yield its URL, and the credentials that it was given."""
    given: list[str | None] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(self.headers["Authorization"])
            data = body.encode("latin-1").decode("unicode_escape").encode("latin-1")
            self.send_response(status)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(data)))
            if place:
                self.send_header("Location", place)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/prefix", given
        finally:
            server.shutdown()
            thread.join()


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that a command says when it ends with 2."""
    try:
        status = main(["fleet", *words])
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    return err


@pytest.mark.parametrize(("answer", "words"), [(it[:3], it[3]) for it in ANSWERS])
def test_an_answer_that_is_no_result_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, answer: tuple[int, str, str], words: str
) -> None:
    headers = tmp_path / "headers"
    headers.write_text(f"\n# comment\nAuthorization: {TOKEN}\nX-Scope-OrgID: 7\n")
    with answering(*answer) as (url, given):
        line = said(capsys, "--prometheus", url, "--header-file", str(headers))
    assert words in line
    assert line.startswith(f"affinityd fleet: {url} ")
    assert given == [TOKEN]
    assert TOKEN not in line


WRONG = [
    ("--prometheus", "prometheus:9090", "is no URL like https://prometheus.example.org"),
    ("--prometheus", "file:///etc/passwd", "is no URL"),
    ("--prometheus", "http://a:b", "is no URL"),
    ("--prometheus", "http://[::1", "is no URL"),
    ("--prometheus", "http://a/\r\nX: y", "is no URL"),
    ("--prometheus", "http://a/?x=y", "is no URL"),
    ("--prometheus", "http://me:secret@a", "put the line `Authorization: Basic …` into a file"),
    ("--header-file", "/nonexistent", "No such file or directory"),
    ("--header-file", "{tmp}", "Is a directory"),
    ("--header-file", "{tmp}/bad", "line 2 is no header like"),
    ("--since", "0m", "'0m' is not a time like 30m, 12h, 7d or 4w"),
    ("--since", "999w", "is not a time like"),
    ("--since", "7", "is not a time like"),
]


@pytest.mark.parametrize(("option", "value", "words"), WRONG)
def test_wrong_usage_is_one_line_without_secrets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, value: str, words: str
) -> None:
    (tmp_path / "bad").write_text("X: y\nsecret\n")
    url = f"http://127.0.0.1:{free_port()}"
    line = said(capsys, "--prometheus", url, option, value.format(tmp=tmp_path))
    assert words in line
    assert "secret" not in line


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    line = said(capsys, "--prometheus", url)
    assert line == f"affinityd fleet: {url} cannot be asked: Connection refused\n"


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 500 No\r\n\r\n"])
def test_a_server_that_never_ends_its_answer_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(prometheus, "TIMEOUT", 1.0)
    over, before = threading.Event(), threading.active_count()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(start)
            while not over.wait(0.1):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        url = "http://{}:{}".format(*listener.getsockname())
        line = said(capsys, "--prometheus", url)
        over.set()
        thread.join()
    eventually(lambda: threading.active_count() == before, "the query has ended")
    end = "did not answer in full within 1 s; shorten --since"
    assert line == f"affinityd fleet: {url} {end}\n"
