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
WIDE, NARROW, SMALL = Caller(FOUR, FOUR), Caller(ONE, FOUR), Caller(ONE, ONE)


def asking(
    query: bytes = b"gpus=0", accept: bytes | None = None, caller: Caller | None = None
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
        pytest.param(asking(b"gpus=1", b"text/plain", WIDE), id="another query"),
        pytest.param(asking(b"gpus=0&", b"text/plain", WIDE), id="a query that means the same"),
        pytest.param(asking(b"gpus=0", b"*/*", WIDE), id="another Accept header"),
        pytest.param(asking(b"gpus=0", None, WIDE), id="no Accept header"),
        pytest.param(asking(b"gpus=0", b"text/plain", NARROW), id="another mask"),
        pytest.param(asking(b"gpus=0", b"text/plain", SMALL), id="another cpuset"),
        pytest.param(asking(b"gpus=0", b"text/plain", None), id="an unknown caller"),
    ],
)
def test_an_answer_is_found_by_its_query_its_accept_header_and_its_caller(other: Scope) -> None:
    node, asked = Node(), asking(b"gpus=0", b"text/plain", WIDE)
    node.answers.remember(asked, planned(b"{}"))
    found = node.found(
        asking(b"gpus=0", b"text/plain", Caller(frozenset(range(4)), frozenset(range(4))))
    )
    assert found is not None
    assert found.endswith(b"{}")
    assert node.found(other) is None


def test_it_is_sent_as_it_was_and_counted_each_time() -> None:
    node, answer = Node(), planned(b"{}\n")
    node.answers.remember(asking(), answer)
    for _ in range(2):
        found = node.found(asking())
        assert found == b"content-type: application/json\r\ncontent-length: 3\r\n\r\n{}\n"
    assert node.counted == [answer, answer]


def test_where_the_node_is_not_as_it_was_nothing_is_found() -> None:
    node = Node()
    node.answers.remember(asking(), planned(b"{}"))
    for generation in (None, 2):
        node.generation = generation
        assert node.found(asking()) is None
    node.generation = 1
    assert node.found(asking()) is not None


def test_an_answer_is_not_remembered_where_the_node_has_changed_meanwhile() -> None:
    node = Node(generation=None)
    node.answers.remember(asking(), planned(b"{}"))
    node.generation = 1
    assert node.found(asking()) is None


@pytest.mark.parametrize(
    ("size", "caller"),
    [
        pytest.param(60_000, None, id="long queries"),
        pytest.param(100, Caller(frozenset(range(4000))), id="large masks"),
    ],
)
def test_what_is_remembered_stays_small(size: int, caller: Caller | None) -> None:
    node = Node()
    tracemalloc.start()
    try:
        for number in range(1000):
            query = b"%d" % number + b"x" * size
            mask = (
                None
                if caller is None
                else Caller(frozenset([*caller.mask]), frozenset([*caller.mask]))
            )
            node.answers.remember(asking(query, None, mask), planned(b"y" * 1000))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.5 * MAX_BYTES
