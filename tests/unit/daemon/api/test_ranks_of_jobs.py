"""A job of which one rank has been answered: the others' requests need neither app nor plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Scope

from affinityd.daemon.api import app as app_module
from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.api.app import create_app
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.peers.callers import CALLER, Callers
from affinityd.daemon.state import plan_service
from affinityd.daemon.state.plan_service import Answer, PlanService
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.request import formats
from affinityd.request.parameters import FORMATS
from affinityd.request.resolve import Caller
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.unit.daemon.state.test_topology_watcher import StandIn

RANKS = 128
JOB = "gpus=" + ",".join(str(rank % 8) for rank in range(RANKS)) + "&mode=node"
FEW, FEWER = frozenset(range(48, 64)), frozenset(range(48, 52))
OF_FEW = Caller(FEW, FEW)


def asking(query: str, caller: Caller | None = OF_FEW, accept: str = "*/*") -> Scope:
    return {
        "type": "http",
        "method": "GET",
        "path": "/plan",
        "query_string": query.encode(),
        "headers": [(b"accept", accept.encode())],
        "state": {CALLER: caller},
    }


@dataclass
class Daemon:
    """The app and its answers, without connections."""

    generation: int | None = 1
    counted: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        service = PlanService(Node(machine("dgx-a100")))
        watcher = TopologyWatcher(service, StandIn(), reserved=frozenset(), on_read=lambda: None)
        watcher._seen_online = watcher._machine.online()  # as after a reading
        self.answers = AnswerCache(
            Callers(),
            generation=lambda: self.generation,
            counter=lambda answer: lambda: self.counted.append(answer),
        )
        metrics = Metrics(lambda: service.known)
        self.app = create_app(service, watcher, metrics, self.answers, {})

    async def body(self, scope: Scope) -> bytes:
        """Return the app's answer."""
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:  # noqa: ANN401 - as ASGI has it
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        await self.app(scope, receive, send)
        return b"".join(it.get("body", b"") for it in sent)

    def found(self, scope: Scope) -> bytes | None:
        """Return the body of an answer without the app."""
        answer = self.answers.find(scope["query_string"], scope)
        return None if answer is None else answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("format_name", FORMATS)
async def test_each_rank_gets_what_the_app_would_have_answered(format_name: str) -> None:
    daemon, alone = Daemon(), Daemon()
    queries = [f"{JOB}&format={format_name}&rank={rank}" for rank in (0, 1, 5, 77, RANKS - 1)]
    bodies = [await alone.body(asking(query)) for query in queries]
    assert [daemon.found(asking(query)) for query in queries] == [None] * len(queries)
    assert await daemon.body(asking(queries[2])) == bodies[2]
    for _ in range(2):
        assert [daemon.found(asking(query)) for query in queries] == bodies
    assert len(daemon.counted) == 2 * len(queries)
    assert {(it.mode, it.media_type) for it in daemon.counted} == {
        ("node", plan_service.MEDIA_TYPES.get(format_name, "text/plain; charset=utf-8"))
    }


async def test_for_all_ranks_a_query_is_parsed_once_and_their_part_of_the_json_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: dict[str, int] = {}

    def count(module: Any, name: str) -> None:  # noqa: ANN401 - a module
        original = getattr(module, name)

        def counted(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as it has them
            counts[name] = counts.get(name, 0) + 1
            return original(*arguments, **named)

        monkeypatch.setattr(module, name, counted)

    count(app_module, "parse_query")
    count(plan_service, "plan")
    count(plan_service, "json_begin")
    count(plan_service, "json_after")
    count(formats, "render")
    daemon = Daemon()
    await daemon.body(asking(f"{JOB}&rank=0"))
    counts.pop("json_begin")  # of the first rank's own answer
    for rank in range(1, RANKS):
        assert daemon.found(asking(f"{JOB}&rank={rank}")) is not None
    assert counts == {"parse_query": 1, "plan": 1, "json_begin": 1, "json_after": RANKS}


@pytest.mark.parametrize(
    "other",
    [
        asking(f"{JOB}&rank={RANKS}"),
        asking(f"{JOB}&rank=00"),
        asking(f"{JOB}&rank=0-1"),
        asking(f"{JOB}&rank="),
        asking(f"{JOB}&rank=1&rank=2"),
        asking(f"{JOB}&rank=99999999999"),
        asking(JOB),
        asking(f"{JOB}&xrank=1"),
        asking(f"{JOB},0&rank=1"),
        asking(f"rank=1&{JOB}"),
        asking(f"{JOB}&rank=1", accept="text/plain"),
        asking(f"{JOB}&rank=1", Caller(FEWER, FEW)),
        asking(f"{JOB}&rank=1", Caller(FEW, FEWER)),
        asking(f"{JOB}&rank=1", None),
    ],
    ids=str,
)
async def test_only_another_rank_of_the_same_job_and_caller_is_answered_from_it(
    other: Scope,
) -> None:
    daemon = Daemon()
    await daemon.body(asking(f"{JOB}&rank=0"))
    assert daemon.found(other) is None
    assert daemon.found(asking(f"{JOB}&rank=1")) is not None


async def test_where_the_node_is_not_as_it_was_no_rank_is_answered_from_its_job() -> None:
    daemon = Daemon()
    await daemon.body(asking(f"{JOB}&rank=0"))
    for generation in (None, 2):
        daemon.generation = generation
        assert daemon.found(asking(f"{JOB}&rank=1")) is None


@pytest.mark.parametrize(
    "job",
    [
        "ranks=4&gpus=0,1&mode=node",
        "gpus=0,1&env=LOCAL_RANK%3D1",
        "gpus=0,1&%65nv=LOCAL_RANK%3D1",
        "gpus=0,1&mode=exclusive&cpuset=48",
    ],
)
async def test_where_more_than_the_number_may_depend_on_the_rank_each_asks_the_app(
    job: str,
) -> None:
    daemon = Daemon()
    await daemon.body(asking(f"{job}&rank=0"))
    assert daemon.found(asking(f"{job}&rank=1")) is None
