"""An address for those who may ask for plans alone. A real daemon on real sockets."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from affinityd.request.document import ProblemDocument
from tests.support.daemons import PATIENCE, Daemon, Reply, running, spawn
from tests.support.documents import exactly
from tests.support.ports import free_port

#: Two addresses of this machine: the port of the one is free to be another's on the other.
MOST_GROWN = 200  #: characters by which a scrape may differ from the one before

EVERYTHING, PLANS = "127.0.0.1", "127.0.0.2"


@dataclass(frozen=True)
class Node:
    """A daemon that answers everything on one address, and plans alone on another."""

    daemon: Daemon
    port: int

    def ask(self, target: str, method: str = "GET", *, host: str = PLANS, **headers: str) -> Reply:
        with closing(http.client.HTTPConnection(host, self.port, timeout=PATIENCE)) as connection:
            connection.request(method, target, headers=headers)
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    port = free_port()
    arguments = ("--machine", "dgx-a100", "--listen-plan", f"{PLANS}:{port}")
    folder = tmp_path_factory.mktemp("plans")
    with running(folder, *arguments, listen=f"{EVERYTHING}:{port}") as daemon:
        yield Node(daemon, port)


def test_a_plan_is_the_same_on_every_address_remembered_or_not(node: Node) -> None:
    target = "/plan?gpus=0,5&mode=exclusive"
    answers = {node.ask(target, host=host).body for host in (PLANS, EVERYTHING, PLANS)}
    assert answers == {node.daemon.get(target).body}


def test_an_answer_that_was_given_on_one_address_is_remembered_on_the_other(node: Node) -> None:
    def planned() -> str:
        lines = node.ask("/metrics", host=EVERYTHING).text.splitlines()
        return next(
            line for line in lines if line.startswith("affinityd_plan_duration_seconds_count")
        )

    node.ask("/plan?gpus=0,6&mode=exclusive", host=EVERYTHING)
    before = planned()
    node.ask("/plan?gpus=0,6&mode=exclusive")
    assert planned() == before


def test_a_refusal_is_as_elsewhere(node: Node) -> None:
    for target in ("/plan?gpus=99", "/plan?gpu=0"):
        here, there = node.ask(target), node.ask(target, host=EVERYTHING)
        assert (here.status, here.body) == (there.status, there.body)
        assert here.status in {404, 422}


ELSEWHERE = (
    *("/", "/docs", "/openapi.json", "/metrics", "/topology", "/audit", "/healthz", "/readyz"),
    *("/nowhere", "/plan/", "//plan", "/PLAN", "/plan/../metrics", "/metrics?x=/plan"),
    "/metrics%3f/plan",
)
#: GET / is answered: it says what is served.
REFUSED = [it for it in product(("GET", "POST", "DELETE"), ELSEWHERE) if it != ("GET", "/")]


@pytest.mark.parametrize(("method", "target"), REFUSED)
def test_nothing_else_is_answered_and_it_says_so(node: Node, method: str, target: str) -> None:
    reply = node.ask(target, method)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    detail = exactly(ProblemDocument, reply.body).detail
    assert detail.startswith(method)
    assert detail.endswith("is not answered at this address, but GET /plan alone")
    text = node.ask(target, method, accept="text/plain")
    assert text.text == f"Not Found: {detail}\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_another_method_on_plan_is_refused_as_elsewhere(node: Node, method: str) -> None:
    here, there = node.ask("/plan", method), node.ask("/plan", method, host=EVERYTHING)
    assert (here.status, here.headers["allow"], here.body) == (405, "GET, HEAD", there.body)


@pytest.mark.parametrize("host", [PLANS, EVERYTHING])
@pytest.mark.parametrize("target", ["/", "/plan?gpus=0&mode=single", "/plan?gpus=99", "/metrics"])
def test_head_has_the_length_and_no_body(node: Node, host: str, target: str) -> None:
    head, get = node.ask(target, "HEAD", host=host), node.ask(target, host=host)
    assert (head.status, head.body) == (get.status, b"")
    assert int(get.headers["content-length"]) == len(get.body)
    assert head.headers["content-type"] == get.headers["content-type"]
    assert abs(int(head.headers["content-length"]) - len(get.body)) <= MOST_GROWN


def test_the_first_page_says_that_plans_alone_are_answered(node: Node) -> None:
    reply = node.ask("/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert "affinityd answers plans alone at this address" in reply.text
    assert reply.text.count("GET /") == 1
    assert node.ask("/plan?gpus=0,1&mode=node").status == 200, "as its example"
    assert reply.text != node.ask("/", host=EVERYTHING).text


@pytest.mark.parametrize("target", ["/metrics", "/topology", "/healthz", "/openapi.json"])
def test_the_other_addresses_answer_everything(node: Node, target: str) -> None:
    assert node.ask(target, host=EVERYTHING).status == node.daemon.get(target).status == 200


def test_on_every_address_of_the_machine_it_is_the_listener_that_counts(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--machine", "dgx-a100", "--listen-plan", f"0.0.0.0:{port}")
    with running(tmp_path, *arguments) as daemon:
        node = Node(daemon, port)
        for host in (PLANS, EVERYTHING):
            assert node.ask("/plan?gpus=0", host=host).status == 200
            assert node.ask("/metrics", host=host, Host="localhost:9465").status == 404
        assert daemon.get("/metrics").status == 200
        (line,) = (line for line in daemon.lines if "answers on" in line)
        assert line.endswith(f"answers on {daemon.socket}, plans alone on 0.0.0.0:{port}")


@pytest.mark.parametrize(
    ("everything", "plans"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104 - all of them is what is meant
        ("127.0.0.1", "0.0.0.0"),  # noqa: S104
        ("localhost", "127.0.0.1"),
    ],
)
def test_one_address_for_both_ends_the_start(tmp_path: Path, everything: str, plans: str) -> None:
    port = free_port()
    both = f"{plans}:{port}"
    daemon = spawn(
        tmp_path, "--machine", "dgx-a100", "--listen-plan", both, listen=f"{everything}:{port}"
    )
    assert daemon.process.wait(PATIENCE) == 1
    (line,) = daemon.complaints
    told = f"listen-plan: {both} is where everything is answered; give another by --listen-plan"
    assert told in line
    assert not daemon.socket.exists()
