"""The judge of the other tests finds what they are to find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.faults.checker import QUERIES, Asked, Truth, answered_more, asking, right_answer
from tests.support.servers import answering, http, serving
from tests.support.tiny import tiny

RIGHT = right_answer(tiny(), QUERIES[0]).encode()
WRONG = right_answer(tiny(1, 0), QUERIES[0]).encode()


def test_a_wrong_answer_behind_right_ones_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def answer_wrong_in_the_end() -> None:
        with asking(path, Truth(tiny()), queries=QUERIES[:1]) as asked:
            for body in (RIGHT, WRONG):
                assert asked.wrong == []
                with serving(path, answering(http("200 OK", body))):
                    assert answered_more(asked, 3)
                path.unlink()

    with pytest.raises(AssertionError, match=re.escape(repr(WRONG.decode())[1:-1])):
        answer_wrong_in_the_end()


def test_an_answer_that_was_true_a_moment_ago_is_wrong_after_the_change() -> None:
    truth = Truth(tiny())
    with truth.becoming(tiny(1, 0)):
        pass
    changed = truth._spells[0][2]
    for body, began, allowed in ((RIGHT, -1, True), (RIGHT, 1, False), (WRONG, 1, True)):
        told = truth.allows(QUERIES[0], body.decode(), changed + began, changed + 2)
        assert told == allowed


@pytest.mark.parametrize(
    ("answer", "cut", "refused"),
    [
        (http("200 OK", RIGHT, "content-length: 99"), 1, {}),
        (b"HTTP/1.1 200 OK\r\nconte", 1, {}),
        (http("503 No", b"no\n", "content-length: 3"), 0, {"503": 1}),
        (b"", 0, {"closed": 1}),
    ],
)
def test_what_is_no_answer_is_counted_as_what_it_is(
    tmp_path: Path, answer: bytes, cut: int, refused: dict[str, int]
) -> None:
    path, asked = tmp_path / "s", Asked()
    with serving(path, answering(answer)):
        asked.judge(path, QUERIES[0], Truth(tiny()))
    assert (asked.cut, asked.refused, asked.answered, asked.wrong) == (cut, refused, 0, [])
