"""A bug reaches a client as one line, never as a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from affinityd.daemon.api.app import create_app
from affinityd.daemon.api.peers import Callers
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.plan_service import Answer, PlanService
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.unit.daemon.state.test_topology_watcher import StandIn


class Broken(PlanService):
    """A service with a bug."""

    def answer(self, *_: object, **__: object) -> Answer:
        raise RuntimeError("a bug: it is so")


@pytest.mark.parametrize("accept", [b"*/*", b"text/plain"])
async def test_a_bug_is_a_500_of_one_line(accept: bytes) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:  # noqa: ANN401 - as ASGI has it
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    service = Broken(Node(machine("dgx-h100")))
    watcher = TopologyWatcher(service, StandIn(), reserved=frozenset(), on_read=lambda: None)
    metrics = Metrics(lambda: service.known)
    app = create_app(service, watcher, metrics, Callers(), {})
    scope = {"type": "http", "method": "GET", "path": "/plan", "query_string": b"gpus=0"}
    with pytest.raises(RuntimeError, match="a bug"):
        await app({**scope, "headers": [(b"accept", accept)]}, receive, send)
    start, body = sent
    text = body["body"].decode()
    assert (start["status"], text.count("\n"), "it is so" in text) == (500, 1, False)
    title = text.partition(":")[0] if accept == b"text/plain" else json.loads(text)["title"]
    assert title == "Internal error"
