"""Answers that were given before: what they depend on, how long they are kept, and how many."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from starlette.types import Scope

from affinityd.daemon.api.answer_cache import MAX_BYTES, AnswerCache
from affinityd.daemon.peers.callers import CALLER, Callers
from affinityd.daemon.state.plan_service import Answer
from affinityd.request.resolve import Caller

FOUR, ONE = frozenset(range(4)), frozenset([2])
WIDE = Caller(FOUR, FOUR)


def asking(
    query: bytes = b"gpus=0", accept: bytes | None = b"text/plain", caller: Caller | None = WIDE
) -> Scope:
    headers = [] if accept is None else [(b"accept", accept)]
    return {"query_string": query, "headers": headers, "state": {CALLER: caller}}


def planned(body: bytes) -> Answer:
    return Answer(body, "application/json", "node", "local")


@dataclass
class Node:
    """What an answer cache asks."""

    generation: int | None = 1
    counted: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers = AnswerCache(
            Callers(), generation=lambda: self.generation, counter=self.counter
        )

    def counter(self, answer: Answer) -> Callable[[], None]:
        return lambda: self.counted.append(answer)

    def found(self, scope: Scope) -> bytes | None:
        return self.answers.find(scope["query_string"], scope)


@pytest.mark.parametrize(
    "other",
    [
        asking(b"gpus=1"),
        asking(b"gpus=0&"),
        asking(accept=b"*/*"),
        asking(accept=None),
        asking(caller=Caller(ONE, FOUR)),
        asking(caller=Caller(FOUR, ONE)),
        asking(caller=None),
    ],
    ids=str,
)
def test_an_answer_is_found_by_its_query_its_accept_header_and_its_caller(other: Scope) -> None:
    node, answer = Node(), planned(b"{}\n")
    node.answers.remember(asking(), answer)
    same = asking(caller=Caller(frozenset(range(4)), frozenset(range(4))))
    sent = b"content-type: application/json\r\ncontent-length: 3\r\n\r\n{}\n"
    assert [node.found(same), node.found(other), node.found(same)] == [sent, None, sent]
    assert node.counted == [answer, answer]


def test_where_the_node_is_not_as_it_was_nothing_is_found_and_nothing_is_remembered() -> None:
    node = Node()
    node.answers.remember(asking(), planned(b"{}"))
    for generation in (None, 2):
        node.generation = generation
        assert node.found(asking()) is None
    node.generation = None
    node.answers.remember(asking(b"gpus=1"), planned(b"{}"))
    node.generation = 1
    assert node.found(asking()) is not None
    assert node.found(asking(b"gpus=1")) is None


@pytest.mark.parametrize(("number", "size", "cpus"), [(1000, 60_000, 0), (80, 100, 4000)])
def test_what_is_remembered_stays_small(number: int, size: int, cpus: int) -> None:
    node = Node()
    tracemalloc.start()
    try:
        for place in range(number):
            query = b"%d" % place + b"x" * size
            caller = Caller(frozenset(range(cpus)), frozenset(range(cpus)))
            node.answers.remember(asking(query, None, caller), planned(b"y" * 1000))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.5 * MAX_BYTES
