"""A bug reaches a client as one line, never as a traceback."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.api.app import create_app
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.state.plan_service import Answer, PlanService
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.request.parameters import Request
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.unit.daemon.state.test_topology_watcher import StandIn


class Broken(PlanService):
    """A service with a bug."""

    def answer(self, request: Request, format_name: str, caller: object = None) -> Answer:
        raise RuntimeError(f"a bug: {request} {format_name} {caller}")


def ask(query: bytes, accept: bytes) -> list[dict[str, Any]]:
    """Return the ASGI messages of an answer, although the app raises."""
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        service = Broken(Node(machine("dgx-h100")))
        stand_in = StandIn()
        watcher = TopologyWatcher(service, stand_in, reserved=frozenset(), on_read=lambda: None)
        metrics = Metrics(lambda: service.known)
        answers = AnswerCache(Callers(), generation=watcher.generation, counter=metrics.counter)
        app = create_app(service, watcher, metrics, answers, {})
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/plan",
            "query_string": query,
            "headers": [(b"accept", accept)],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:  # noqa: ANN401 - as ASGI has it
            sent.append(message)

        await app(scope, receive, send)

    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(run())
    return sent


@pytest.mark.parametrize("accept", [b"*/*", b"text/plain"], ids=["as JSON", "as text"])
def test_a_bug_is_a_500_of_one_line(accept: bytes) -> None:
    start, body = ask(b"gpus=0", accept)
    assert start["status"] == 500
    text = body["body"].decode()
    assert "a bug:" not in text
    assert text.count("\n") == 1
    if accept == b"*/*":
        assert json.loads(text)["title"] == "Internal error"
