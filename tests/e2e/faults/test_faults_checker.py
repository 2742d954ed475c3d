"""The judge of the other tests finds what they are to find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.faults.checker import QUERIES, Asked, asking, right_answer
from tests.support.servers import answering, http, serving
from tests.support.tiny import tiny

RIGHT, WRONG = (right_answer(it, QUERIES[0]) for it in (tiny(), tiny(1, 0)))


def test_a_wrong_answer_behind_right_ones_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def answer_wrong_in_the_end() -> None:
        with asking(path, tiny(), queries=QUERIES[:1]) as asked:
            for body in (RIGHT, WRONG):
                assert asked.wrong == []
                with serving(path, answering(http("200 OK", body.encode()))):
                    asked.more(3)
                path.unlink()

    with pytest.raises(AssertionError, match=re.escape(repr(WRONG)[1:-1])):
        answer_wrong_in_the_end()


@pytest.mark.parametrize(
    ("answer", "cut", "refused"),
    [
        (http("200 OK", RIGHT.encode(), "content-length: 99"), 1, {}),
        (b"HTTP/1.1 200 OK\r\nconte", 1, {}),
        (http("503 No", b"no\n"), 0, {"503": 1}),
        (b"", 0, {"RemoteDisconnected": 1}),
    ],
)
def test_what_is_no_answer_is_counted_as_what_it_is(
    tmp_path: Path, answer: bytes, cut: int, refused: dict[str, int]
) -> None:
    path, asked = tmp_path / "s", Asked()
    with serving(path, answering(answer)):
        asked.judge(path, QUERIES[0], {RIGHT})
    assert (asked.cut, asked.refused, asked.answered, asked.wrong) == (cut, refused, 0, [])
