"""The page over HTTP: to whom, with which headers; the picture, as commands write it, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.cli import main
from tests.support.daemons import Daemon, running

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
PARTS = ("/page.js", "/picture.js", "/audit.js", "/page.css", "/picture.css")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("page")
    with running(folder, "--machine", "dgx-a100", "--reserved-cpus", "0") as daemon:
        yield daemon


def test_a_browser_gets_the_page_and_other_clients_the_list(daemon: Daemon) -> None:
    assert daemon.get("/", accept=BROWSER).text.startswith("<!DOCTYPE html>")
    for accept in ("*/*", "text/plain", "application/json"):
        assert daemon.get("/", accept=accept).text.startswith("affinityd ")


def test_the_page_asks_only_for_parts_that_the_daemon_serves(daemon: Daemon) -> None:
    page = daemon.get("/", accept=BROWSER).text
    links = {*re.findall(r'(?:href|src)="([^"]*)"', page)} - {"data:,"}
    imports = {it for part in PARTS for it in re.findall(r'from "(.*)"', daemon.get(part).text)}
    assert {*PARTS} <= links | imports
    assert {daemon.get(link).status for link in links | imports} == {200}
    assert "style=" not in page
    assert re.findall(r"<(?:style|script(?! type=\"module\" src))|\son\w+=", page) == []


@pytest.mark.parametrize("path", ["/", *PARTS, "/topology.svg"])
def test_no_part_may_load_or_run_what_is_not_the_daemons_nor_be_read_by_other_sites(
    daemon: Daemon, path: str
) -> None:
    reply = daemon.get(path, accept=BROWSER, origin="http://site.example")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "script-src" not in policy or "script-src 'self'; " in policy
    assert {it for it in policy.split() if "unsafe" in it} <= (
        {"'unsafe-inline'"} if path == "/topology.svg" else set()
    )
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert not any(it.startswith("access-control") or it == "set-cookie" for it in reply.headers)
    assert daemon.get(path, "POST").status == 405


def test_the_picture_over_http_is_the_one_that_commands_write(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.svg"
    options = ["--machine", "dgx-a100", "--reserved-cpus", "0", "--svg", str(file)]
    assert main(["plan", "--gpus", "0,1", "--mode", "node", *options]) == 0
    assert "48-63,176-191" in capsys.readouterr().out
    reply = daemon.get("/topology.svg?gpus=0,1&mode=node")
    assert (reply.headers["content-type"], reply.text) == ("image/svg+xml", file.read_text())
    assert main(["topology", *options]) == 0
    assert file.read_text() == daemon.get("/topology.svg").text


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("gpus=99", 404, "no GPU 99"),
        ("mode=far", 422, "mode"),
        ("format=json", 422, "always SVG"),
        ("cpuset=9999", 409, "Cannot be satisfied"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_refused_as_a_plan_is(
    daemon: Daemon, query: str, status: int, says: str
) -> None:
    reply = daemon.get(f"/topology.svg?{query}")
    assert (reply.status, says in reply.text) == (status, True)


def test_a_picture_that_cannot_be_written_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["topology", "--machine", "dgx-a100", "--svg", "/nonexistent/node.svg"]) == 1
    assert capsys.readouterr().err == (
        "affinityd topology: /nonexistent/node.svg cannot be written: No such file or directory\n"
    )
