"""What is answered at once, without the app: it is what the app would have answered."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Scope

from affinityd.daemon.http.refusals import ANSWER_SECONDS, IDLE_SECONDS
from tests.support.connection_scripts import DATE, END, Memory, Story, cut, tell


def asking(target: str = "/plan?gpus=0", *fields: str, begin: str = "GET {} HTTP/1.1") -> bytes:
    return "\r\n".join((begin.format(target), *fields, "", "")).encode()


PLAN, OTHER = asking(), asking("/plan?gpus=1")
CLOSING = asking("/plan", "connection: close")
UPGRADE = ("connection: upgrade", "upgrade: h2c")


@dataclass(frozen=True)
class Asked:
    """What is sent, and of how many requests the app is asked."""

    pieces: tuple[bytes, ...]
    of_the_app: int


ALONE = [
    pytest.param(Asked((PLAN,), 0), id="a plan"),
    pytest.param(Asked((asking("/plan"),), 0), id="the default plan"),
    pytest.param(Asked((asking("/plan?"),), 0), id="an empty query"),
    pytest.param(Asked((asking("/plan?a?b=%20+"),), 0), id="an odd query"),
    pytest.param(Asked((asking("/plan", "Accept: text/plain"),), 0), id="an Accept header"),
    pytest.param(Asked((asking("/plan", "expect: 100-continue"),), 0), id="Expect, and no body"),
    pytest.param(Asked((asking("/plan", "content-length: 0"),), 0), id="a body of no bytes"),
    pytest.param(Asked((asking("/plan", UPGRADE[1]),), 0), id="Upgrade that is not meant"),
    pytest.param(Asked((CLOSING,), 0), id="Connection: close"),
    pytest.param(Asked((PLAN[:7], PLAN[7:]), 0), id="in pieces"),
    pytest.param(Asked((asking("/healthz"),), 1), id="another path"),
    pytest.param(Asked((asking("/plans"),), 1), id="a longer path"),
    pytest.param(Asked((asking("/plan%3F"),), 1), id="an escape"),
    pytest.param(Asked((asking("/plan#?gpus=1"),), 1), id="a fragment and no query"),
    pytest.param(Asked((asking("/plan?gpus=0#1"),), 1), id="a fragment behind a query"),
    pytest.param(Asked((asking("http://x/plan?gpus=0"),), 1), id="an absolute target"),
    pytest.param(Asked((asking(begin="GET {} HTTP/1.0"),), 1), id="HTTP/1.0"),
    pytest.param(
        Asked((asking("/plan", "connection: keep-alive", begin="GET {} HTTP/1.0"),), 1),
        id="HTTP/1.0 that would stay",
    ),
    pytest.param(Asked((asking(begin="HEAD {} HTTP/1.1"),), 1), id="HEAD"),
    pytest.param(Asked((asking(begin="POST {} HTTP/1.1"),), 1), id="POST"),
    pytest.param(Asked((asking("/plan", *UPGRADE),), 1), id="Upgrade"),
]
SEVERAL = [
    pytest.param(Asked((PLAN, OTHER, PLAN), 0), id="one after the other"),
    pytest.param(Asked((asking("/plan", "content-length: 0"), OTHER), 0), id="after no body"),
]


def lines(story: Story) -> list[bytes]:
    """Return what was answered; the order of headers says nothing."""
    return sorted(story.transport.written.split(b"\r\n"))


@pytest.mark.parametrize("asked", [*ALONE, *SEVERAL])
def test_what_is_answered_at_once_is_what_the_app_would_have_answered(asked: Asked) -> None:
    memory = Memory()
    told = tell(lambda story: story.send(*asked.pieces), find_answer=memory)
    of_the_app = tell(lambda story: story.send(*asked.pieces))
    assert lines(told) == lines(of_the_app)
    assert told.transport.closed == of_the_app.transport.closed
    assert told.statuses == [200] * len(of_the_app.asked)
    assert told.total == of_the_app.total == len(of_the_app.asked)
    assert len(told.asked) == asked.of_the_app
    assert memory.asked == len(of_the_app.asked) - asked.of_the_app
    assert b"%b: %b\r\n" % DATE in told.transport.written


@given(st.lists(st.sampled_from([it.values[0] for it in ALONE]), max_size=4), st.integers())
def test_whatever_is_asked_however_it_comes_the_answers_are_the_apps(
    asked: list[Asked], seed: int
) -> None:
    pieces = [piece for it in asked for piece in cut(b"".join(it.pieces), seed)]
    told = tell(lambda story: story.send(*pieces), find_answer=Memory())
    of_the_app = tell(lambda story: story.send(*pieces))
    assert lines(told) == lines(of_the_app)
    assert told.transport.closed == of_the_app.transport.closed
    assert told.total == of_the_app.total


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((PLAN + OTHER,), id="two in one piece"),
        pytest.param((PLAN + OTHER + PLAN,), id="three in one piece"),
        pytest.param((PLAN + OTHER[:9], OTHER[9:]), id="one, and another begun"),
        pytest.param((CLOSING + PLAN,), id="behind the last"),
    ],
)
def test_what_comes_in_one_piece_with_a_request_is_not_answered_and_ends_the_connection(
    pieces: tuple[bytes, ...],
) -> None:
    memory = Memory()
    story = tell(lambda story: story.send(*pieces), find_answer=memory)
    assert (story.statuses, story.transport.closed) == ([200], True)
    assert memory.asked == 1
    assert story.reasons == {}


def test_what_is_not_remembered_is_asked_of_the_app() -> None:
    def find(query: bytes, scope: Scope) -> bytes | None:
        return memory(query, scope) if query == b"gpus=0" else None

    memory = Memory()
    story = tell(lambda story: story.send(OTHER, PLAN, OTHER), find_answer=find)
    assert story.statuses == [200] * 3
    assert len(story.asked) == 2
    assert memory.asked == 1


@pytest.mark.parametrize(
    "is_remembered", [True, False], ids=["it is remembered", "the app is asked"]
)
def test_after_an_answer_nothing_of_its_request_is_kept(*, is_remembered: bool) -> None:
    async def ask(story: Story) -> None:
        await story.send(asking("/plan", "accept: text/plain"))
        assert (story.protocol.url, story.protocol.headers) == (b"", [])
        assert story.protocol.scope is None
        assert story.protocol.cycle is None

    story = tell(ask, **{"find_answer": Memory()} if is_remembered else {})
    assert len(story.asked) == (not is_remembered)


def test_after_it_a_connection_stays_as_long_as_after_any_answer() -> None:
    async def ask(story: Story) -> None:
        await story.send(PLAN)
        story.after(IDLE_SECONDS - 0.5)
        assert not story.transport.closed
        story.after(IDLE_SECONDS + 0.1)
        assert story.transport.closed

    assert tell(ask, find_answer=Memory()).reasons == {}


def test_the_last_answer_of_a_connection_has_a_minute_to_be_taken() -> None:
    async def ask(story: Story) -> None:
        await story.send(CLOSING)
        assert story.transport.closed
        story.after(ANSWER_SECONDS - 0.5)
        assert not story.transport.aborted
        story.after(ANSWER_SECONDS + 0.1)
        assert story.transport.aborted

    assert tell(ask, find_answer=Memory()).reasons == {"answer_time": 1}


def forgetful(query: bytes, _scope: Scope) -> bytes:
    answers: dict[bytes, bytes] = {}
    return answers[query]


def test_a_bug_is_told_as_one_and_the_log_says_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = tell(lambda story: story.send(PLAN), find_answer=forgetful)
    assert story.statuses == [500]
    _, _, body = story.transport.written.partition(END)
    assert body == b"the daemon has failed; its log says how\n"
    assert story.transport.closed
    assert story.reasons == {"bug": 1}
    (record,) = (it for it in caplog.records if it.levelno >= logging.ERROR)
    assert "this is a bug" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    assert "in forgetful" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(PLAN.replace(b"0", b"\xff"), id="bytes that are no ASCII in the query"),
        pytest.param(PLAN.replace(b"?", b"/\xff?"), id="bytes that are no ASCII in the path"),
        pytest.param(asking("http://:80/plan?gpus=0"), id="a target that is no URL"),
        pytest.param(asking("http://x:99999/plan"), id="no port"),
        pytest.param(asking("/plan", "content-length: x"), id="no length"),
    ],
)
def test_what_is_no_request_is_no_bug(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    story = tell(lambda story: story.send(data), find_answer=forgetful)
    assert story.statuses == [400]
    assert story.reasons == {"malformed": 1}
    assert not [it for it in caplog.records if it.levelno >= logging.ERROR]
