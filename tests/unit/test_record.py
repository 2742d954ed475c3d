"""Records: frozen dataclasses of which nothing is compiled."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from affinityd.record import Record, cached_property, replace


class Pair(Record):
    """Two values, and what follows from them."""

    one: int
    other: tuple[int, ...] = ()
    table: dict[str, int] = {}  # noqa: RUF012 - a default of the field

    @cached_property
    def total(self) -> list[int]:
        """Both."""
        return [self.one, *self.other]


class Triple(Pair):
    """A third value."""

    third: int = 3


PAIR = Pair(1, (2,))


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (Pair(1), {"one": 1, "other": (), "table": {}}),
        (Pair(other=(2,), one=1), {"one": 1, "other": (2,), "table": {}}),
        (replace(PAIR, one=5), {"one": 5, "other": (2,), "table": {}}),
        (dataclasses.replace(PAIR, one=5), {"one": 5, "other": (2,), "table": {}}),
        (Triple(1), {"one": 1, "other": (), "table": {}, "third": 3}),
    ],
)
def test_a_record_has_its_fields(made: Pair, fields: dict[str, object]) -> None:
    assert dataclasses.asdict(made) == fields
    assert (
        repr(made) == f"{type(made).__name__}({', '.join(f'{k}={v}' for k, v in fields.items())})"
    )


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), {}),
        ((1, (), {}, 4), {}),
        ((1,), {"one": 1}),
        ((1,), {"another": 1}),
        ((), {"other": (), "table": {}, "another": 1}),
    ],
)
def test_a_record_is_given_each_field_once(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="does not give each of one, other, table once"):
        Pair(*values, **named)


def test_equal_fields_of_one_class_make_records_equal() -> None:
    assert Pair(1, (2,)) == PAIR
    assert Pair(1, (3,)) != PAIR
    assert Triple(1) != Pair(1)
    assert PAIR != (1, (2,), {})


def test_a_record_of_values_that_do_not_change_is_a_key() -> None:
    class Key(Record):
        it: int

    assert {Key(1): "one"}[Key(1)] == "one"
    assert hash(Key(1)) == hash(Key(1))


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="one of a Pair cannot be set"):
        PAIR.one = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="one of a Pair cannot be deleted"):
        del PAIR.one
    assert PAIR.one == 1


def test_a_derived_value_is_found_once_and_is_in_no_copy() -> None:
    pair = Pair(1, (2,))
    assert pair.total is pair.total
    assert pair.total == [1, 2]
    assert Pair.total.__doc__ == "Both."
    for other in (copy.copy(pair), pickle.loads(pickle.dumps(PAIR)), replace(pair)):  # noqa: S301
        assert other == pair
        assert "total" not in vars(other)


def test_a_dataclass_may_add_fields_to_a_record() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Described(Pair):
        text: str  # type: ignore[misc]

    made = Described(**vars(PAIR), text="a pair")
    assert list(vars(made)) == ["one", "other", "table", "text"]
    assert [it.name for it in dataclasses.fields(Described)] == ["one", "other", "table", "text"]
