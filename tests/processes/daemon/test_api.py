"""A real daemon's answers over HTTP, its page, its picture, and its plans as RDMA ports change."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from gzip import decompress
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.json_codec import dumps
from affinityd.request.document import PlanDocument, ProblemDocument
from tests.support.child_python import said
from tests.support.daemons import Daemon, eventually, running, with_constants
from tests.support.documents import exactly
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import nvml_report, write_tree
from tests.support.tables import table


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


@pytest.mark.parametrize(
    ("headers", "query", "media_type", "body"),
    [
        ({}, "", "application/json", None),
        ({"accept": "*/*"}, "", "application/json", None),  # as curl sends it
        ({"accept": "text/plain"}, "", "text/plain", "48-63,176-191\n"),
        ({"accept": "text/plain;q=0.9, */*"}, "", "text/plain", "48-63,176-191\n"),
        ({"accept": "text/plain"}, "&format=json", "application/json", None),
        ({}, "&format=mask&cpuset=48", "text/plain", f"{1 << 48:#x}\n"),
    ],
)
def test_the_format_of_an_answer_is_as_requested(
    daemon: Daemon, headers: dict[str, str], query: str, media_type: str, body: str | None
) -> None:
    for _ in ("planned", "remembered"):
        reply = daemon.get(f"/plan?gpus=0&mode=node{query}", **headers)
        assert reply.headers["content-type"].split(";")[0] == media_type
        assert body is None or reply.text == body


MANY = ["/plan?visible=" + "9" * 5000, "404", "no GPU is visible to the caller"]


def test_a_machine_with_recorded_processes_is_served_as_a_demo(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100-busy", listen="127.0.0.1:0") as daemon:
        eventually(lambda: daemon.get("/audit").status == 200, "the first scan has ended")
        (port,) = re.findall(r"127\.0\.0\.1:(\d+)", daemon.log.read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/audit") as reply:
            audit = json.load(reply)
        assert (audit["demo"], audit["sees"]) == ("dgx-a100-busy", "all")
        assert len(audit["processes"]) == 10
        packed = daemon.get("/audit", **{"accept-encoding": "gzip"})
        assert json.loads(decompress(packed.body)).keys() == audit.keys()
        build = 'affinityd_build_info{demo="dgx-a100-busy",'
        assert build in daemon.get("/metrics").text


@pytest.mark.parametrize(("target", "code", "line"), [*table("refusals.tsv"), MANY])
def test_a_refusal_is_one_clear_line(daemon: Daemon, target: str, code: str, line: str) -> None:
    reply, status = daemon.get(target), int(code)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    problem = exactly(ProblemDocument, reply.body)
    assert problem.status == status
    assert line in problem.detail
    text = daemon.get(target, accept="text/plain")
    assert (text.status, text.text) == (status, f"{problem.title}: {problem.detail}\n")
    assert problem.detail.isprintable()
    assert len(problem.detail) < 1000


def test_plans_of_jobs_are_counted_apart_from_those_of_people(daemon: Daemon) -> None:
    def counted() -> list[float]:
        rows = re.findall(r"\naffinityd_plans_total\{(.*)\} (.*)", daemon.get("/metrics").text)
        clients = ('client="job"', 'client="other"')
        return [sum(float(it) for labels, it in rows if client in labels) for client in clients]

    jobs, people = counted()
    for target in ("", "&format=cpulist", "&format=shell"):
        for gpu in (0, 99):
            daemon.get(f"/plan?gpus={gpu}{target}")
    assert counted() == [jobs + 2, people + 4]


def test_another_method_is_refused_with_a_list_of_allowed_methods(daemon: Daemon) -> None:
    for method, path in (("POST", "/plan"), ("DELETE", "/audit")):
        reply = daemon.get(path, method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert exactly(ProblemDocument, reply.body).status == 405


SERVED = (
    *("/", "/plan", "/topology", "/topology.svg", "/audit", "/metrics"),
    *("/healthz", "/readyz", "/openapi.json"),
)


@pytest.mark.parametrize("target", [*SERVED, "/plan?gpus=99"])
def test_head_is_answered_like_get_without_the_body(daemon: Daemon, target: str) -> None:
    get, head = (daemon.get(target, method) for method in ("GET", "HEAD"))
    assert (head.status, head.body, head.headers.keys()) == (get.status, b"", get.headers.keys())


def test_an_answer_is_compressed_on_request(daemon: Daemon) -> None:
    plain, packed = daemon.get("/topology"), daemon.get("/topology", **{"accept-encoding": "gzip"})
    codings = [it.headers.get("content-encoding") for it in (plain, packed)]
    assert codings == [None, "gzip"]
    assert decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 4


def test_the_first_page_lists_one_path_on_each_line(daemon: Daemon) -> None:
    reply = daemon.get("/")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    rows = [line.split(maxsplit=2) for line in reply.text.splitlines()[2:]]
    assert [(method, bool(says)) for method, _, says in rows] == [("GET", True)] * len(rows)
    assert {path for _, path, _ in rows} == set(SERVED)
    assert set(SERVED) - {"/openapi.json"} == daemon.get("/openapi.json").json["paths"].keys()
    assert 404 not in {daemon.get(path).status for path in SERVED}
    assert daemon.get("/", accept=BROWSER).text.startswith("<!DOCTYPE html>")


def test_a_daemon_imports_no_module_that_scans() -> None:
    code = "import sys, affinityd.cli.commands.serve, affinityd.daemon.main; print(*sys.modules)"
    assert not {f"affinityd.audit.{name}" for name in ("auditor", "gather", "sources")} & {
        *said(code).split()
    }


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
PARTS = ("/page.js", "/picture.js", "/audit.js", "/page.css", "/picture.css")


@pytest.mark.parametrize("path", ["/", *PARTS, "/topology.svg"])
def test_pages_may_load_only_the_daemon_s_files_and_other_sites_may_not_read_pages(
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
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert not any(it.startswith("access-control") or it == "set-cookie" for it in reply.headers)
    assert daemon.get(path, "POST").status == 405


def test_the_picture_over_http_equals_the_picture_that_commands_write(
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


A100 = machine("dgx-a100")


def named(daemon: Daemon) -> list[str]:
    (rank,) = json.loads(daemon.get("/plan?gpus=0&nics=all").text)["ranks"]
    return [nic["name"] for nic in rank["nics"]]


def test_a_port_that_goes_down_and_a_new_device_change_the_next_plan(tmp_path: Path) -> None:
    first, second, *others = A100.nics
    tree = write_tree(replace(A100, nics=(first, *others)), tmp_path / "node")
    (tree / "nvml.json").write_text(dumps(nvml_report(A100)))
    sooner = with_constants(daemon__state__topology_watcher__DRIVER_CHECK_SECONDS=0.1)
    with running(tmp_path, "--root", str(tree), before=sooner) as daemon:
        assert named(daemon) == ["mlx5_0"]
        state = tree / "sys/class/infiniband/mlx5_0/ports/1/state"
        state.write_text("1: DOWN\n")
        eventually(lambda: "mlx5_0" not in named(daemon), "the port is not named")
        write_tree(replace(A100, nics=(second,)), tree)
        eventually(lambda: named(daemon) == ["mlx5_1"], "the new port is named")
        state.write_text("4: ACTIVE\n")
        eventually(lambda: named(daemon) == ["mlx5_0", "mlx5_1"], "the first port is named again")
        generation = json.loads(daemon.get("/topology").text)["generation"]
        assert generation >= 4  # more if a look falls between two files that are written here
        kept = daemon.socket.parent / "node.json"  # written after the new plans
        eventually(lambda: json.loads(kept.read_text())["generation"] == generation, "it is kept")
