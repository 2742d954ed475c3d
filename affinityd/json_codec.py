"""Documents in JSON: a dataclass is written as its fields, and read with each of them checked.

A document is described once, by a dataclass whose fields are the JSON object's, in their order.
A document may come from another release: a field that is not known is ignored; one that may be
None, or has a default, may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.text import quote, whole_number

T = TypeVar("T")

#: Reads a value; the ValueError that it raises begins where the path to the value ends.
Reader = Callable[[Any], Any]

#: How much of a wrong value an error shows.
SHOWN = 40

#: The largest number that any machine has: 64 bits, of memory in KiB.
MAX_NUMBER = 2**74 - 1

_LEFT_OUT, _CPULIST = "left out", "cpulist"
#: A text that is CPUs: `0-3,8`.
CpuList = Annotated[str, _CPULIST]


#: JSON's own types → how errors call them.
_PLAIN: dict[Any, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
_NUMBERS = (int, float)


@dataclass(frozen=True)
class OneOf:
    """Annotates a text that is one of these words: OpenAPI lists them, no other one is read."""

    words: tuple[str, ...]

    def __get_pydantic_json_schema__(
        self, core: object, handler: Callable[[object], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the JSON schema, for pydantic."""
        return {**handler(core), "enum": list(self.words)}


def left_out() -> Any:  # noqa: ANN401 - as dataclasses.field
    """Return a field that is not in the document at all where it is None."""
    return field(default=None, metadata={_LEFT_OUT: True})


def dumps(document: object, **layout: Any) -> str:  # noqa: ANN401 - as json.dumps takes it
    """Return a document as JSON, on one line unless `layout` says otherwise.

    Between two objects of it other threads may run, however long it is.
    """
    return json.dumps(document, default=_jsonable, check_circular=False, **layout)


def _jsonable(value: Any) -> object:  # noqa: ANN401 - as json.JSONEncoder.default
    return _writer(value.__class__)(value)


@cache
def _writer(kind: type) -> Callable[[Any], object]:
    """Return the JSON form of a document, or of a set of CPUs."""
    if kind is frozenset:
        return format_list
    absent = {field.name for field in fields(kind) if _LEFT_OUT in field.metadata}
    if not absent:
        return vars
    return lambda value: {
        name: content
        for name, content in vars(value).items()
        if content is not None or name not in absent
    }


def loads(kind: type[T], text: str | bytes, where: str) -> T:
    """Read a document, which errors call `where`. Raises ValueError, one line."""
    return decode(kind, parsed(text, where), where)


def parsed(text: str | bytes, where: str) -> object:
    """Return the value of a JSON text. Raises ValueError, one line."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}{_not(text[:SHOWN], f'JSON: {error}')}") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None


def decode(kind: type[T], value: object, where: str) -> T:
    """Return a value as a dataclass, or as another type that a field may have.

    Raises ValueError, one line with the path and the value: `where.gpus[0].index is 'x', not …`.
    """
    read: Callable[[object], T] = _reader(cast("Any", kind))
    try:
        return _at(where, read, value)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - a type
    if kind in _PLAIN:
        return partial(_plain, kind)
    make = _MAKERS.get(get_origin(kind))
    return make(*get_args(kind)) if make else _object(kind)


def _plain(kind: type, value: Any) -> Any:  # noqa: ANN401 - a JSON value, by its exact type
    is_kind = type(value) is kind or (kind is float and type(value) is int)
    if not is_kind:
        raise _not(value, _PLAIN[kind])
    if kind in _NUMBERS and not 0 <= value <= MAX_NUMBER:
        raise _not(value, f"a number from 0 to {MAX_NUMBER}")
    return value


def _at(place: str, read: Callable[[Any], T], value: object) -> T:
    """Read the value at a place; a ValueError begins with the place."""
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from None


def _cpus(value: object) -> CpuSet:
    return _at(": ", parse_list, _plain(str, value))


def _cpulist(value: object) -> str:
    _cpus(value)
    return str(value)


def _annotated(kind: Any, *notes: Any) -> Reader:  # noqa: ANN401 - a type
    if _CPULIST in notes:
        return _cpulist
    words = next((note.words for note in notes if isinstance(note, OneOf)), None)
    return _reader(kind) if words is None else partial(_word, words)


def _word(words: tuple[str, ...], value: object) -> str:
    if value not in words:
        raise _not(value, f"one of {', '.join(words)}")
    return str(value)


def _optional(*kinds: Any) -> Reader:  # noqa: ANN401 - types
    (read,) = (_reader(kind) for kind in kinds if kind is not NoneType)
    return lambda value: None if value is None else read(value)


def _list(read: Reader, value: object) -> tuple[Any, ...]:
    listed = _plain(list, value)
    return tuple(_at(f"[{place}]", read, item) for place, item in enumerate(listed))


def _mapping(read_name: Callable[[str], Any], read: Reader, value: object) -> dict[Any, Any]:
    return {
        read_name(name): _at(f"[{quote(name)}]", read, item)
        for name, item in _plain(dict, value).items()
    }


def _number_of(name: str) -> int:
    number = whole_number(name, MAX_NUMBER)
    if number is None:
        raise ValueError(f": {quote(name)} is not a number")
    return number


def _object(kind: type) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    needed = {
        field.name for field in fields(kind) if field.default is field.default_factory is MISSING
    }
    empty = {name: None for name in needed if NoneType in get_args(hints[name])}

    def read_object(value: object) -> object:
        listed = _plain(dict, value)
        read: dict[str, Any] = dict(empty)
        for name, reader in readers.items():
            if name in listed:
                read[name] = _at(f".{name}", reader, listed[name])
            elif name in needed and name not in empty:
                raise ValueError(f" has no {name!r}")
        return kind(**read)

    return read_object


def _not(value: object, expected: str) -> ValueError:
    return ValueError(f" is {repr(value)[:SHOWN]}, not {expected}")


#: A type's origin → the maker of its reader, from its arguments; else it is a dataclass.
_MAKERS: dict[Any, Callable[..., Reader]] = {
    Annotated: _annotated,
    Union: _optional,
    UnionType: _optional,
    tuple: lambda item, _any_length: partial(_list, _reader(item)),
    Sequence: lambda item: partial(_list, _reader(item)),
    Mapping: lambda name, item: partial(
        _mapping, _number_of if name is int else str, _reader(item)
    ),
    frozenset: lambda _: _cpus,
}
