"""What is answered at once, without the app: it is what the app would have answered."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from httptools import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Scope

from tests.support.connection_scripts import DATE, Memory, Story, cut, sent, telling


def asking(target: str = "/plan?gpus=0", *fields: str, begin: str = "GET {} HTTP/1.1") -> bytes:
    return "\r\n".join((begin.format(target), *fields, "", "")).encode()


PLAN, OTHER = asking(), asking("/plan?gpus=1")
NO_BODY = asking("/plan", "content-length: 0")
HTTP_1_0 = "GET {} HTTP/1.0"

#: What is sent; and whether the app is asked.
ASKED = [
    ((PLAN,), False),
    ((asking("/plan"),), False),
    ((asking("/plan?"),), False),
    ((asking("/plan?a?b=%20+"),), False),
    ((asking("/plan", "Accept: text/plain"),), False),
    ((asking("/plan", "expect: 100-continue"),), False),
    ((NO_BODY,), False),
    ((asking("/plan", "upgrade: h2c"),), False),  # without Connection it is not meant
    ((asking("/plan", "connection: close"),), False),
    ((PLAN[:7], PLAN[7:]), False),
    ((asking("/healthz"),), True),
    ((asking("/plans"),), True),
    ((asking("/plan%3F"),), True),
    ((asking("/plan#?gpus=1"),), True),
    ((asking("/plan?gpus=0#1"),), True),
    ((asking("http://x/plan?gpus=0"),), True),
    ((asking(begin=HTTP_1_0),), True),
    ((asking("/plan", "connection: keep-alive", begin=HTTP_1_0),), True),
    ((asking(begin="HEAD {} HTTP/1.1"),), True),
    ((asking(begin="POST {} HTTP/1.1"),), True),
    ((asking("/plan", "connection: upgrade", "upgrade: h2c"),), True),
]
SEVERAL = [((PLAN, OTHER, PLAN), False), ((NO_BODY, OTHER), False)]


def sent_as_to_the_app(pieces: tuple[bytes, ...], memory: Memory) -> tuple[Story, Story]:
    """Have it answered from memory and by the app; the two are one. Return both."""
    told, of_the_app = sent(*pieces, find_answer=memory), sent(*pieces)
    for story in (told, of_the_app):  # the order of headers says nothing
        story.transport.written = b"\r\n".join(sorted(story.transport.written.split(b"\r\n")))
    assert told.transport.written == of_the_app.transport.written
    assert told.outcome == of_the_app.outcome
    totals = [it.server.server_state.total_requests for it in (told, of_the_app)]
    assert totals == [len(of_the_app.asked)] * 2
    return told, of_the_app


@pytest.mark.parametrize(("pieces", "of_the_app"), [*ASKED, *SEVERAL])
def test_what_is_answered_at_once_is_what_the_app_would_have_answered(
    pieces: tuple[bytes, ...], of_the_app: bool
) -> None:
    memory = Memory()
    told, plain = sent_as_to_the_app(pieces, memory)
    assert b"%b: %b" % DATE in told.transport.written
    answers = len(plain.asked)
    assert (len(told.asked), memory.asked) == ((answers, 0) if of_the_app else (0, answers))


@given(st.lists(st.sampled_from(ASKED), max_size=4), st.integers())
def test_whatever_is_asked_however_it_comes_the_answers_are_the_apps(
    asked: list[tuple[tuple[bytes, ...], bool]], seed: int
) -> None:
    pieces = [piece for its, _ in asked for piece in cut(b"".join(its), seed)]
    sent_as_to_the_app(tuple(pieces), Memory())


@pytest.mark.parametrize("pieces", [(PLAN + OTHER + PLAN,), (PLAN + OTHER[:9], OTHER[9:])])
def test_what_comes_in_one_piece_with_a_request_is_not_answered_and_ends_the_connection(
    pieces: tuple[bytes, ...],
) -> None:
    memory = Memory()
    assert sent(*pieces, find_answer=memory).outcome == ([200], True, {})
    assert memory.asked == 1


def test_a_request_that_came_before_is_answered_as_the_cache_has_it_now() -> None:
    """Though its bytes are known: a head that was parsed before is no answer."""
    forgets = iter([False, False, True, True, False, False])

    def find(query: bytes, scope: Scope) -> bytes | None:
        return None if next(forgets) else memory(query, scope)

    memory = Memory()
    story = sent(PLAN, PLAN, PLAN, OTHER, PLAN[:9], PLAN[9:], find_answer=find)
    assert (story.statuses, len(story.asked), memory.asked) == ([200] * 5, 1, 4)


def test_heads_that_came_before_are_answered_without_the_parser() -> None:
    async def run() -> None:
        async with telling(find_answer=Memory()) as story:
            await story.send(PLAN)
            story.protocol.parser = cast("HttpRequestParser", None)
            await story.send(PLAN, PLAN)
            assert story.outcome == ([200] * 3, False, {})

    asyncio.run(run())


def test_what_is_not_remembered_is_asked_of_the_app() -> None:
    def find(query: bytes, scope: Scope) -> bytes | None:
        return memory(query, scope) if query == b"gpus=0" else None

    memory = Memory()
    story = sent(OTHER, PLAN, OTHER, find_answer=find)
    assert (story.statuses, len(story.asked), memory.asked) == ([200] * 3, 2, 1)
