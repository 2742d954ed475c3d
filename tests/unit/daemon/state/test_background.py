"""Work off the event loop, and what waits for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from affinityd.daemon.state.background import SingleFlight

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
