"""Records: frozen dataclasses of which nothing is compiled until it pays."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from affinityd.record import Record, cached_property, compile_records, replace


class Pair(Record):
    """Two values, and what follows from them."""

    one: int
    other: tuple[int, ...] = ()
    table: dict[str, int] = {}  # noqa: RUF012 - a default of the field

    @cached_property
    def total(self) -> list[int]:
        """Both."""
        return [self.one, *self.other]


class CompiledPair(Pair):
    """The same, as the daemon makes records."""


compile_records(CompiledPair)

each_kind = pytest.mark.parametrize("kind", [Pair, CompiledPair])


@each_kind
def test_a_record_has_its_fields(kind: type[Pair]) -> None:
    pair = kind(1, (2,))
    for made, fields in (
        (kind(1), {"one": 1, "other": (), "table": {}}),
        (kind(other=(2,), one=1), {"one": 1, "other": (2,), "table": {}}),
        (replace(pair, one=5), {"one": 5, "other": (2,), "table": {}}),
        (dataclasses.replace(pair, one=5), {"one": 5, "other": (2,), "table": {}}),
    ):
        assert dataclasses.asdict(made) == fields
        shown = ", ".join(f"{name}={value}" for name, value in fields.items())
        assert repr(made) == f"{kind.__name__}({shown})"


@each_kind
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
def test_a_record_is_given_each_field_once(
    kind: type[Pair], values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        kind(*values, **named)


def test_a_wrong_field_is_named_with_those_that_there_are() -> None:
    wrong: dict[str, Any] = {"another": 2}
    with pytest.raises(
        TypeError, match=r"^Pair\(1, another=…\) does not give each of one, other, "
    ):
        Pair(1, **wrong)


@each_kind
def test_equal_fields_of_one_class_make_records_equal(kind: type[Pair]) -> None:
    pair = kind(1, (2,))
    assert pair == kind(1, (2,))
    assert pair != kind(1, (3,))
    assert pair != (1, (2,), {})
    assert Pair(1) != CompiledPair(1)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_record_of_values_that_do_not_change_is_a_key(*, is_compiled: bool) -> None:
    class Key(Record):
        it: int

    if is_compiled:
        compile_records(Key)
    assert {Key(1): "one"}[Key(1)] == "one"


@each_kind
def test_a_record_cannot_be_changed(kind: type[Pair]) -> None:
    pair = kind(1)
    with pytest.raises(AttributeError, match=f"^one of a {kind.__name__} cannot be set"):
        pair.one = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match=f"^one of a {kind.__name__} cannot be deleted"):
        del pair.one
    assert pair.one == 1


@each_kind
def test_a_derived_value_is_found_once_and_is_in_no_copy(kind: type[Pair]) -> None:
    pair = kind(1, (2,))
    assert pair.total is pair.total
    assert pair.total == [1, 2]
    assert kind.total.__doc__ == "Both."
    for other in (copy.copy(pair), pickle.loads(pickle.dumps(pair)), replace(pair)):  # noqa: S301
        assert other == pair
        assert "total" not in vars(other)


def test_what_a_class_says_of_equality_stays() -> None:
    class Only(Record):
        it: int

        __eq__ = object.__eq__
        __hash__ = object.__hash__

    compile_records(Only)
    assert Only(1) != Only(1)


@each_kind
def test_a_dataclass_may_add_fields_to_a_record(kind: type[Pair]) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Described(kind):  # type: ignore[misc, valid-type]
        text: str

    made = Described(**vars(kind(1)), text="a pair")
    assert list(vars(made)) == ["one", "other", "table", "text"]
    assert [it.name for it in dataclasses.fields(Described)] == ["one", "other", "table", "text"]
