"""JsonValue: what JSON is not what was expected, said in one line that names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from affinityd.json_reader import JsonValue

READ_ITEM: Callable[[JsonValue], object] = JsonValue.number


@pytest.mark.parametrize(
    ("value", "read", "said"),
    [
        ([], lambda v: v["a"], "node is [], not an object"),
        ({}, lambda v: v["a"], "node has no 'a'"),
        ({"a": {}}, lambda v: v["a"]["b"], "node.a has no 'b'"),
        ({"a": 1}, lambda v: v["a"].text(), "node.a is 1, not a string"),
        (None, JsonValue.text, "node is None, not a string"),
        ("1", JsonValue.number, "node is '1', not a whole number"),
        (1.5, JsonValue.number, "node is 1.5, not a whole number"),
        (True, JsonValue.number, "node is True, not a whole number"),
        ({}, lambda v: v.each(READ_ITEM), "node is {}, not a list"),
        ([1, "x"], lambda v: v.each(READ_ITEM), "node[1] is 'x', not a whole number"),
        (3, lambda v: v.maybe(JsonValue.text), "node is 3, not a string"),
        ({"-1": 2}, lambda v: list(v.by_number(READ_ITEM)), "node: '-1' is not a number"),
        ({"a\nb": 2}, lambda v: list(v.by_number(READ_ITEM)), r"node: 'a\nb' is not a number"),
        (10**30, JsonValue.number, f"node is {10**30}, not a number up to {2**74 - 1}"),
        (
            {"1" * 5000: 2},
            lambda v: list(v.by_number(READ_ITEM)),
            f"node: '{'1' * 60}…' is not a number",
        ),
        ({"1": "x"}, lambda v: list(v.by_number(READ_ITEM)), "node.1 is 'x', not a whole number"),
        (
            "0-x",
            JsonValue.cpus,
            "node: '0-x' is not a CPU number or range; write it like 0-3,8,10-11",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_expected_is_named(
    value: object, read: Callable[[JsonValue], Any], said: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the next line compares it all
        read(JsonValue(value, "node"))
    assert str(caught.value) == said


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ValueError, match=r"^node is 'x{39}, not a whole number$"):
        JsonValue("x" * 1000, "node").number()


def test_what_is_expected_is_read() -> None:
    value = JsonValue(
        {"text": "a", "list": [1, 2], "map": {"3": 4}, "cpus": "0-2", "none": None}, ""
    )
    assert value["text"].text() == "a"
    assert value["list"].each(JsonValue.number) == (1, 2)
    assert dict(value["map"].by_number(JsonValue.number)) == {3: 4}
    assert value["cpus"].cpus() == {0, 1, 2}
    assert value["none"].maybe(JsonValue.text) is None
