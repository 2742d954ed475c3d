"""Work off the event loop, and what waits for it."""

from __future__ import annotations

import asyncio
import threading

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


async def test_equal_questions_share_an_answer_and_others_come_one_after_the_other() -> None:
    work = Work()
    ask: SingleFlight[str, str] = SingleFlight(work)
    asking = [asyncio.create_task(ask(question)) for question in ("a", "a", "bad", "c", "bad")]
    await asyncio.sleep(0)
    asking[0].cancel()  # a caller that leaves early leaves the others their answer
    await asyncio.sleep(0.05)
    work.may_end.set()
    _, *answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(it) for it in answers] == ["a!", "bad", "c!", "bad"]
    assert asking[0].cancelled()
    assert (work.done, work.most_at_once) == (["a", "bad", "c"], 1)
    assert await ask("a") == "a!"
    with pytest.raises(ValueError, match="bad"):
        await ask("bad")
    assert work.done == ["a", "bad", "c", "a", "bad"]


async def test_a_pause_ends_when_its_event_comes_or_its_time_is_over() -> None:
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    began = loop.time()
    await pause(event, 0.01)
    assert loop.time() - began >= 0.01
    loop.call_later(0.01, event.set)
    await asyncio.wait_for(pause(event, 10 * SOON), SOON)


@pytest.mark.parametrize("turns", range(4))
async def test_a_task_that_is_cancelled_just_as_the_event_comes_ends(turns: int) -> None:
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
