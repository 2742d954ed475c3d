"""What the daemon answers over HTTP, asked of a real one on a shipped machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from affinityd.request.document import PlanDocument, ProblemDocument
from tests.support.daemons import Daemon, UnixConnection, running
from tests.support.documents import exactly


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("api"), "--machine", "dgx-a100") as daemon:
        yield daemon


def test_the_halves_of_a_node_go_to_the_two_gpus_on_it(daemon: Daemon) -> None:
    query = "gpus=0,1&mode=unique_contiguous&share=requested&format=cpulist"
    assert daemon.get(f"/plan?{query}").text == "48-55,176-183\n56-63,184-191\n"


def test_an_answer_has_the_published_shape(daemon: Daemon) -> None:
    reply = daemon.get("/plan?gpus=0,0,7&cpuset=0-79&mode=socket&share=node&balanced=false")
    assert reply.headers["content-type"] == "application/json"
    answer = exactly(PlanDocument, reply.body)
    assert {warning.code for warning in answer.warnings} == {
        "shared_gpu",
        "remote_home",
        "parameter_ignored",
    }


def test_the_same_question_has_the_same_answer_remembered_or_not(daemon: Daemon) -> None:
    spellings = ("gpus=2,3&mode=exclusive", "mode=exclusive&gpus=2%2C3", "gpus=2,3&mode=exclusive")
    answers = {daemon.get(f"/plan?{query}").body for query in spellings}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("headers", "query", "media_type", "body"),
    [
        ({}, "gpus=0&mode=node", "application/json", None),
        ({"accept": "*/*"}, "gpus=0&mode=node", "application/json", None),
        ({"accept": "text/plain"}, "gpus=0&mode=node", "text/plain", "48-63,176-191\n"),
        ({"accept": "text/plain"}, "gpus=0&mode=node&format=json", "application/json", None),
        ({}, "gpus=0&mode=single&format=mask", "text/plain", f"{(1 << 48) + (1 << 176):#x}\n"),
    ],
    ids=[
        "JSON is the default",
        "curl's Accept is no preference",
        "plain text means cpulist",
        "a format that is named wins over Accept",
        "a mask is as taskset takes it",
    ],
)
def test_the_answers_form(
    daemon: Daemon, headers: dict[str, str], query: str, media_type: str, body: str | None
) -> None:
    for _ in ("planned", "remembered"):
        reply = daemon.get(f"/plan?{query}", **headers)
        assert reply.headers["content-type"].split(";")[0] == media_type
        assert body is None or reply.text == body


REFUSALS = [
    ("gpu=0", 422, "unknown parameter 'gpu'; did you mean gpus?"),
    ("gpus=0&gpus=1", 422, "gpus is given twice; give it once"),
    ("gpus=", 422, "gpus is empty; give it a value or leave it out"),
    ("mode=node&gpus", 422, "'gpus' has no value; write NAME=VALUE"),
    ("gpus=0&mode=fast", 422, "mode: 'fast' is not one of all, single"),
    ("gpus=%ff", 422, "the query string cannot be read"),
    ("cpuset=0-4294967295", 422, "cpuset: CPU number in '0-4294967295' is too large"),
    ("min_physical_cores=4&max_physical_cores=2", 422, "min_physical_cores=4 is more than"),
    ("gpus=0,1&rank=2", 422, "rank: there is no rank 2"),
    ("visible=CUDA_VISIBLE_DEVICES%3D1", 422, "give the value alone: '1'"),
    ("gpus=8", 404, "no GPU 8; visible are 0 (0000:07:00.0), 1 (0000:0f:00.0)"),
    ("visible=", 404, "no GPU is visible to the caller"),
    ("gpus=0&min_physical_cores=99", 409, "min_physical_cores=8 would do"),
    ("gpus=0&cpuset=0-15&strict=true", 409, "strict: rank 0 has CPUs away from NUMA node 3"),
    ("gpus=0&cpuset=999", 409, "no CPU is allowed"),
]


@pytest.mark.parametrize(("query", "status", "line"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_a_refusal_is_one_clear_line(daemon: Daemon, query: str, status: int, line: str) -> None:
    reply = daemon.get(f"/plan?{query}")
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    problem = exactly(ProblemDocument, reply.body)
    assert problem.status == status
    assert line in problem.detail
    text = daemon.get(f"/plan?{query}", accept="text/plain")
    assert text.status == status
    assert text.text == f"{problem.title}: {problem.detail}\n"
    assert text.text.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/plan/?gpus=0", 404),
        ("POST", "/plan", 405),
        ("DELETE", "/topology", 405),
        ("POST", "/audit", 405),
        ("DELETE", "/audit", 405),
    ],
)
def test_what_is_not_served_is_a_problem_too(
    daemon: Daemon, method: str, path: str, status: int
) -> None:
    reply = daemon.get(path, method)
    assert reply.status == status
    assert exactly(ProblemDocument, reply.body).status == status


def test_what_has_a_get_has_a_head_and_says_so(daemon: Daemon) -> None:
    assert daemon.get("/plan", "POST").headers["allow"] == "GET, HEAD"


SERVED = (
    *("/", "/plan", "/topology", "/audit", "/enforce", "/metrics", "/healthz", "/readyz"),
    "/openapi.json",
)


@pytest.mark.parametrize(
    "target",
    [*SERVED, "/plan?gpus=3&mode=single", "/plan?gpus=99", "/plan?gpu=0", "/nowhere"],
)
def test_head_is_answered_as_get_without_the_body(daemon: Daemon, target: str) -> None:
    connection = UnixConnection(daemon.socket)
    answers = []
    for method in ("HEAD", "GET", "HEAD", "GET"):  # the latter as it is remembered
        connection.request(method, target)
        response = connection.getresponse()
        headers = {k.lower(): v for k, v in response.getheaders() if k.lower() != "date"}
        answers.append((method, response.status, headers, response.read()))
    connection.close()
    is_counted = target == "/metrics"  # with numbers that grow
    for method, status, headers, body in answers:
        assert body == b"" if method == "HEAD" else len(body) == int(headers["content-length"])
        assert status == answers[1][1]
        assert is_counted or headers == answers[1][2]
        assert int(headers["content-length"]) > 0


def test_the_first_page_lists_what_is_served_a_line_each(daemon: Daemon) -> None:
    reply = daemon.get("/")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    rows = [line.split(maxsplit=2) for line in reply.text.splitlines()[2:]]
    assert {path for _, path, _ in rows} == set(SERVED)
    assert set(SERVED) - {"/openapi.json"} == daemon.get("/openapi.json").json["paths"].keys()
    for method, path, says in rows:
        assert method == "GET"
        assert says
        assert daemon.get(path).status != 404


def test_no_page_loads_anything_from_elsewhere(daemon: Daemon) -> None:
    document = daemon.get("/openapi.json").json
    assert {"/plan", "/topology", "/audit", "/metrics", "/healthz", "/readyz"} <= document[
        "paths"
    ].keys()
    for page in ("/docs", "/redoc"):
        assert daemon.get(page).status == 404


def test_the_openapi_document_names_every_parameter_with_its_default(daemon: Daemon) -> None:
    plan = daemon.get("/openapi.json").json["paths"]["/plan"]["get"]
    defaults = {row["name"]: row["schema"].get("default") for row in plan["parameters"]}
    understood = daemon.plan("")["request"]
    for name in ("mode", "scope", "multithreading", "balanced", "min_physical_cores", "strict"):
        assert defaults[name] == understood[name]
    assert {"gpus", "rank", "cpuset", "visible", "granted", "share", "format"} <= defaults.keys()


def test_the_topology_is_the_node_as_it_was_read(daemon: Daemon) -> None:
    answer = daemon.get("/topology").json
    assert answer["generation"] == 1
    assert answer["topology"]["online"] == "0-255"
    assert answer["topology"] == daemon.node_file["topology"]


def test_a_replayed_machine_has_no_processes_to_look_at(daemon: Daemon) -> None:
    reply = daemon.get("/audit")
    assert reply.status == 503
    problem = exactly(ProblemDocument, reply.body)
    assert problem.detail == "a replayed machine has no processes to look at"
    assert not [li for li in daemon.get("/metrics").text.splitlines() if "affinityd_scan" in li]


def test_plans_are_counted_by_mode_result_and_locality(daemon: Daemon) -> None:
    def count(labels: str) -> float:
        lines = daemon.get("/metrics").text.splitlines()
        name = f"affinityd_plans_total{{{labels}}} "
        return next((float(li.removeprefix(name)) for li in lines if li.startswith(name)), 0.0)

    local = 'locality="local",mode="core_complex",result="ok"'
    refused = 'locality="",mode="core_complex",result="404"'
    before = count(local), count(refused)
    for _ in range(3):
        daemon.plan("gpus=4&mode=core-complex")
        daemon.get("/plan?gpus=99&mode=core_complex")
    assert (count(local), count(refused)) == (before[0] + 3, before[1] + 3)


def test_the_time_that_planning_takes_is_measured_but_not_of_a_remembered_answer(
    daemon: Daemon,
) -> None:
    def measured() -> float:
        lines = daemon.get("/metrics").text.splitlines()
        name = "affinityd_plan_duration_seconds_count "
        return next(float(li.removeprefix(name)) for li in lines if li.startswith(name))

    before = measured()
    for _ in range(3):
        daemon.plan("gpus=5,6&mode=single-unique&max_physical_cores=7")
    assert measured() == before + 1


def observed(daemon: Daemon) -> dict[str, float]:
    """Return how many plans were not applied, by where their processes are and would be."""
    sample = r'^affinityd_observed_plans_total{after="(.*)",before="(.*)"} (\S+)$'
    rows = re.findall(sample, daemon.get("/metrics").text, re.MULTILINE)
    return {f"{before} to {after}": float(value) for after, before, value in rows}


def test_plans_that_are_not_applied_are_counted_remembered_ones_too(daemon: Daemon) -> None:
    assert observed(daemon) == {}
    for cpus in ("0-15", "0-15", "48-63", "0-15"):
        assert daemon.get(f"/plan?gpus=0&mode=node&observe={cpus}&format=shell").status == 200
    daemon.get("/plan?gpus=0&mode=node&format=shell")  # which its client applies
    assert daemon.get("/plan?gpus=9&observe=0").status == 404
    assert observed(daemon) == {"remote to local": 3, "local to local": 1}


def test_the_metrics_describe_the_node(daemon: Daemon) -> None:
    scraped = daemon.get("/metrics").text
    for line in (
        'affinityd_cpus{state="online"} 256.0',
        'affinityd_gpus{vendor="nvidia"} 8.0',
        'affinityd_gpu_numa_node{gpu="7",pci_bus_id="0000:bd:00.0",uuid="",vendor="nvidia"} 5.0',
        "affinityd_topology_generation 1.0",
    ):
        assert line in scraped.splitlines()
    assert "affinityd_build_info{version=" in scraped


def test_errors_of_many_kinds_are_json_without_a_traceback(daemon: Daemon) -> None:
    for query in ("gpus=" + ",".join("0" * 300), "visible=" + "9" * 5000, "gpus=%00", "rank=-1"):
        reply = daemon.get(f"/plan?{query}")
        assert reply.status in {404, 422}
        detail = json.loads(reply.body)["detail"]
        assert "\n" not in detail
        assert len(detail) < 1000
    assert not any("Traceback" in line for line in daemon.lines)


@pytest.mark.parametrize("query", ["uid=0", "%zz", "format=cpulist"])
def test_the_audit_takes_no_parameters(daemon: Daemon, query: str) -> None:
    refused = daemon.get(f"/audit?{query}", accept="text/plain")
    assert (refused.status, refused.text) == (
        422,
        f"Malformed request: /audit takes no parameters, and was given {query!r}\n",
    )
