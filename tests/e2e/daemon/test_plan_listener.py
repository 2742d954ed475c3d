"""An address that answers only /plan. A real daemon on real sockets."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from affinityd.request.document import ProblemDocument
from tests.support.daemons import PATIENCE, Reply, free_port, refused, running
from tests.support.documents import exactly

#: Two addresses of this machine. A port in use on one may be free on the other.
EVERYTHING, PLANS = "127.0.0.1", "127.0.0.2"


def ask(port: int, target: str, method: str = "GET", host: str = PLANS, **headers: str) -> Reply:
    with closing(http.client.HTTPConnection(host, port, timeout=PATIENCE)) as connection:
        connection.request(method, target, headers=headers)
        reply = connection.getresponse()
        named = {k.lower(): v for k, v in reply.getheaders() if k.lower() != "date"}
        return Reply(reply.status, named, reply.read())


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run a daemon with one address for everything, and another for plans only."""
    port = free_port()
    arguments = ("--machine", "dgx-a100", "--listen-plan", f"{PLANS}:{port}")
    folder = tmp_path_factory.mktemp("plans")
    with running(folder, *arguments, listen=f"{EVERYTHING}:{port}"):
        yield port


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("target", ["/plan?gpus=0,5&mode=exclusive", "/plan?gpus=99"])
def test_both_addresses_answer_plans_alike(port: int, method: str, target: str) -> None:
    assert ask(port, target, method, host=EVERYTHING) == ask(port, target, method)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "target", ["/", "/metrics", "/audit", "/plan/", "/plan/../metrics", "/metrics?x=/plan"]
)
def test_the_plan_address_answers_no_other_path(port: int, method: str, target: str) -> None:
    reply = ask(port, target, method)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    detail = exactly(ProblemDocument, reply.body).detail
    assert detail.endswith("is not answered at this address; only GET /plan is")
    assert ask(port, target, method, accept="text/plain").text == f"Not Found: {detail}\n"


@pytest.mark.parametrize("everything", ["0.0.0.0", "localhost"])  # noqa: S104
def test_one_address_for_both_listeners_is_a_fatal_error(tmp_path: Path, everything: str) -> None:
    port = free_port()
    arguments = ("--machine", "mi250x", "--listen-plan", f"127.0.0.1:{port}")
    line = refused(tmp_path, *arguments, listen=f"{everything}:{port}")
    assert f"listen-plan: 127.0.0.1:{port} is the address of the whole API" in line
