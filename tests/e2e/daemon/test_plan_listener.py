"""An address for those who may ask for plans alone. A real daemon on real sockets."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from affinityd.request.document import ProblemDocument
from tests.support.daemons import PATIENCE, Daemon, Reply, refused, running
from tests.support.documents import exactly
from tests.support.ports import free_port

#: Two addresses of this machine: the port of the one is free to be another's on the other.
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
            named = {k.lower(): v for k, v in reply.getheaders() if k.lower() != "date"}
            return Reply(reply.status, named, reply.read())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    port = free_port()
    arguments = ("--machine", "dgx-a100", "--listen-plan", f"{PLANS}:{port}")
    folder = tmp_path_factory.mktemp("plans")
    with running(folder, *arguments, listen=f"{EVERYTHING}:{port}") as daemon:
        yield Node(daemon, port)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("target", ["/plan?gpus=0,5&mode=exclusive", "/plan?gpus=99"])
def test_plan_is_answered_as_elsewhere(node: Node, method: str, target: str) -> None:
    answers = [node.ask(target, method, host=host) for host in (EVERYTHING, PLANS)]
    assert answers[0] == answers[1]
    if method == "GET":
        assert answers[0].body == node.daemon.get(target).body


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "target",
    [
        *("/openapi.json", "/metrics", "/audit", "/plan/", "//plan", "/PLAN", "/plan/../metrics"),
        *("/metrics?x=/plan", "/metrics%3f/plan"),
    ],
)
def test_nothing_else_is_answered_and_it_says_so(node: Node, method: str, target: str) -> None:
    reply = node.ask(target, method)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    detail = exactly(ProblemDocument, reply.body).detail
    assert detail.startswith(method)
    assert detail.endswith("is not answered at this address; only GET /plan is")
    assert node.ask(target, method, accept="text/plain").text == f"Not Found: {detail}\n"


def test_the_first_page_says_that_plans_alone_are_answered(node: Node) -> None:
    reply = node.ask("/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert "affinityd answers only plans at this address" in reply.text
    assert "GET /plan " in reply.text
    assert (node.ask("/", "HEAD").headers, node.ask("/", "HEAD").body) == (reply.headers, b"")
    assert node.ask("/", "POST").status == 404
    assert node.ask("/", host=EVERYTHING).body == node.daemon.get("/").body != reply.body


def test_on_every_address_of_the_machine_it_is_the_listener_that_counts(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, "--machine", "mi250x", "--listen-plan", f"0.0.0.0:{port}") as daemon:
        node = Node(daemon, port)
        for host in (PLANS, EVERYTHING):
            assert node.ask("/plan?gpus=0", host=host).status == 200
            assert node.ask("/metrics", host=host, Host="localhost:9465").status == 404
        assert daemon.get("/metrics").status == 200
        (line,) = daemon.says("answers on")
        assert line.endswith(f"answers on {daemon.socket}, only plans on 0.0.0.0:{port}")


@pytest.mark.parametrize(
    ("everything", "plans"),
    [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("localhost", "127.0.0.1")],  # noqa: S104
)
def test_one_address_for_both_ends_the_start(tmp_path: Path, everything: str, plans: str) -> None:
    port = free_port()
    arguments = ("--machine", "mi250x", "--listen-plan", f"{plans}:{port}")
    both = f"listen-plan: {plans}:{port} is the address of the whole API"
    line = refused(tmp_path, *arguments, listen=f"{everything}:{port}")
    assert f"{both}; give another by --listen-plan" in line
