"""Documents in JSON: a dataclass is written field by field, and each field is checked when read.

No library, because: the base package has no dependency. msgspec is 1 MB of compiled code that takes
4.4 starts of Python to import, pydantic 11 MB and 14.6; this takes 4.2, of which `json` and
`dataclasses` are 3.3. If the base package ever needs a compiled library, msgspec would be used.

A document is described once, by a dataclass whose fields are those of the JSON object, in order. A
document may come from another release: a field that is not known is ignored; a field that may be
None, or has a default, may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timezone
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.text import quote, whole_number

T = TypeVar("T")

#: How many characters of a wrong value an error shows.
SHOWN = 40

#: The largest number that describes a machine: bytes of 2**64 KiB of memory.
MAX_JSON_NUMBER = 2**74 - 1

_LEFT_OUT = "left out"
_CPULIST = "cpulist"
#: A text that lists CPUs: `0-3,8`.
CpuList = Annotated[str, _CPULIST]


#: JSON's own types, with the words that errors use for them.
_PLAIN: dict[Any, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class OneOf:
    """Annotates a text that is one of these words: OpenAPI lists them, and readers refuse others.

    typing.Literal would repeat the words that constants and tables (such as that of the modes)
    already hold, and every variable on a word's way to a document would need that type.
    """

    words: tuple[str, ...]

    def __get_pydantic_json_schema__(
        self, core: object, handler: Callable[[object], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the JSON schema, for pydantic."""
        return {**handler(core), "enum": list(self.words)}


def left_out() -> Any:  # noqa: ANN401 - as dataclasses.field
    """Return a field that the document leaves out where it is None."""
    return field(default=None, metadata={_LEFT_OUT: True})


def dumps(document: object, **layout: Any) -> str:  # noqa: ANN401 - as json.dumps takes it
    """Return a document as JSON, on one line unless `layout` says otherwise.

    Other threads may run between two objects of a document, however long it is.
    """
    return json.dumps(document, default=_jsonable, check_circular=False, **layout)


def _jsonable(value: Any) -> object:  # noqa: ANN401 - as json.JSONEncoder.default
    return _writer(value.__class__)(value)


@cache
def _writer(kind: type) -> Callable[[Any], object]:
    """Return the function that writes a document, or a set of CPUs, as JSON."""
    if kind is frozenset:
        return format_list
    absent = {field.name for field in fields(kind) if _LEFT_OUT in field.metadata}
    if not absent:
        return vars

    def write(value: object) -> dict[str, object]:
        content = dict(vars(value))
        for name in absent:
            if content[name] is None:
                del content[name]
        return content

    return write


def loads(kind: type[T], text: str | bytes, where: str) -> T:
    """Read a document, which errors call `where`. Raises ValueError, one line."""
    return decode(kind, parsed(text, where), where)


def parsed(text: str | bytes, where: str) -> object:
    """Return the value of a JSON text. Raises ValueError, one line."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise _not(where, text[:SHOWN], f"JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None


def decode(kind: type[T], value: object, where: str) -> T:
    """Return a value as a dataclass, or as another type that a field may have.

    Raises ValueError, one line with the path and the value: `where.gpus[0].index is 'x', not …`.
    """
    try:
        return cast("T", _read(kind, value, where))
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None


def _read(kind: Any, value: Any, place: str) -> Any:  # noqa: ANN401 - a type, a value of JSON
    if kind.__class__ is type:
        return _plain(kind, value, place) if kind in _PLAIN else _object(kind, value, place)
    origin, arguments = _apart(kind)
    if origin is Annotated:
        return _annotated(*arguments, value=value, place=place)
    if origin in (Union, UnionType):
        (other,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else _read(other, value, place)
    if origin in (tuple, Sequence):
        items = enumerate(_plain(list, value, place))
        return tuple(_read(arguments[0], item, f"{place}[{number}]") for number, item in items)
    if origin is Mapping:
        name_kind, item_kind = arguments
        items_by_name: dict[str | int, object] = {}
        for name, item in _plain(dict, value, place).items():
            key = _number(name, place) if name_kind is int else name
            items_by_name[key] = _read(item_kind, item, f"{place}[{quote(name)}]")
        return items_by_name
    return _cpus(value, place)  # the kind left is CpuSet


@cache
def _apart(kind: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401 - a type
    return get_origin(kind), get_args(kind)


def _plain(kind: type, value: Any, place: str) -> Any:  # noqa: ANN401 - by its exact type
    is_kind = type(value) is kind or (kind is float and type(value) is int)
    if not is_kind:
        raise _not(place, value, _PLAIN[kind])
    if kind in (int, float) and not 0 <= value <= MAX_JSON_NUMBER:
        raise _not(place, value, f"a number from 0 to {MAX_JSON_NUMBER}")
    return value


def _annotated(kind: Any, *notes: Any, value: Any, place: str) -> Any:  # noqa: ANN401 - as above
    if _CPULIST in notes:
        _cpus(value, place)
        return value
    for note in notes:
        if isinstance(note, OneOf) and value not in note.words:
            raise _not(place, value, f"one of {', '.join(note.words)}")
    return _read(kind, value, place)


def _cpus(value: object, place: str) -> CpuSet:
    text = _plain(str, value, place)
    try:
        return parse_list(text)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _number(name: str, place: str) -> int:
    number = whole_number(name, MAX_JSON_NUMBER)
    if number is None:
        raise ValueError(f"{place}: {quote(name)} is not a number")
    return number


def _object(kind: type, value: Any, place: str) -> object:  # noqa: ANN401 - as above
    values = _plain(dict, value, place)
    read = {}
    for name, (hint, is_needed) in _fields(kind).items():
        if name in values:
            read[name] = _read(hint, values[name], f"{place}.{name}")
        elif is_needed and NoneType in get_args(hint):
            read[name] = None
        elif is_needed:
            raise ValueError(f"{place} has no {name!r}")
    return kind(**read)


@cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (hints[field.name], field.default is field.default_factory is MISSING)
        for field in fields(kind)
    }


def _not(place: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{place} is {repr(value)[:SHOWN]}, not {expected}")


def rfc3339(seconds: float) -> str:
    """Return a moment, given in seconds since the epoch, as RFC 3339 text with milliseconds."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
