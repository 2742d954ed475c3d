"""Work off the event loop, and what waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from affinityd.daemon.state.background import SingleFlight, pause

SOON = 5.0


class Work:
    """Work that a test holds up; it counts what is done, and what is done at once."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.at_once = self.most_at_once = 0
        self.may_end = threading.Event()

    def __call__(self, question: str) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may_end.wait(SOON)
        self.at_once -= 1
        self.done.append(question)
        if question == "bad":
            raise ValueError(question)
        return f"{question}!"


def shared(story: Callable[[Work, SingleFlight[str, str]], Awaitable[None]]) -> None:
    async def run() -> None:
        work = Work()
        await story(work, SingleFlight(work))

    asyncio.run(run())


def test_equal_questions_meanwhile_get_the_same_answer() -> None:
    async def story(work: Work, ask: SingleFlight[str, str]) -> None:
        asking = [asyncio.create_task(ask("a")) for _ in range(3)]
        await asyncio.sleep(0)
        work.may_end.set()
        assert await asyncio.gather(*asking) == ["a!"] * 3
        assert work.done == ["a"]

    shared(story)


def test_a_question_afterwards_is_answered_anew() -> None:
    async def story(work: Work, ask: SingleFlight[str, str]) -> None:
        work.may_end.set()
        assert [await ask("a"), await ask("a")] == ["a!", "a!"]
        assert work.done == ["a", "a"]

    shared(story)


def test_different_questions_are_answered_one_after_the_other() -> None:
    async def story(work: Work, ask: SingleFlight[str, str]) -> None:
        asking = [asyncio.create_task(ask(question)) for question in "abc"]
        await asyncio.sleep(0.05)
        work.may_end.set()
        assert await asyncio.gather(*asking) == ["a!", "b!", "c!"]
        assert work.most_at_once == 1

    shared(story)


def test_a_caller_that_leaves_early_leaves_the_others_their_answer() -> None:
    async def story(work: Work, ask: SingleFlight[str, str]) -> None:
        leaving, staying = (asyncio.create_task(ask("a")) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        work.may_end.set()
        assert await staying == "a!"
        assert leaving.cancelled()

    shared(story)


def test_a_failure_is_raised_for_every_caller_and_is_not_remembered() -> None:
    async def story(work: Work, ask: SingleFlight[str, str]) -> None:
        asking = [asyncio.create_task(ask("bad")) for _ in range(2)]
        await asyncio.sleep(0)
        work.may_end.set()
        for one in asking:
            with pytest.raises(ValueError, match="bad"):
                await one
        with pytest.raises(ValueError, match="bad"):
            await ask("bad")
        assert work.done == ["bad", "bad"]

    shared(story)


def test_a_pause_ends_when_its_event_comes_or_its_time_is_over() -> None:
    async def run() -> None:
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        began = loop.time()
        await pause(event, 0.01)
        assert loop.time() - began >= 0.01
        loop.call_later(0.01, event.set)
        await pause(event, SOON)
        assert loop.time() - began < SOON

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(4))
def test_a_task_that_is_cancelled_just_as_the_event_comes_ends(turns: int) -> None:
    async def run() -> None:
        event = asyncio.Event()

        async def for_ever() -> None:
            while True:
                await pause(event, SOON)
                event.clear()

        task = asyncio.ensure_future(for_ever())
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=SOON)
        assert done

    asyncio.run(run())
