"""The fields of a child's report in JSON: each of the kind that it should be, or a ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from affinityd.text import MAX_QUOTED, quote

T = TypeVar("T")


def parsed(text: str, read: Callable[[dict[str, Any]], T], name: str) -> T:
    """Return what `read` makes of an object in JSON.

    Raises ValueError, one line, where the text is none, or `read` finds a field that is wrong.
    """
    try:
        return read(typed(json.loads(text), dict, "it"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{quote(text)} is not {name} ({error})") from error


def field(fields: dict[str, Any], name: str, kind: type[T]) -> T | None:
    """Return a field; None where it is missing or null. Raises ValueError for another kind."""
    value = fields.get(name)
    return None if value is None else typed(value, kind, name)


def whole(value: object, name: str) -> int:
    """Return a number, 0 or larger. Raises ValueError for anything else."""
    number = typed(value, int, name)
    if number < 0:
        raise ValueError(f"{name} should be 0 or larger, not {_shown(number)}")
    return number


def typed(value: object, kind: type[T], name: str) -> T:
    """Return a value of a kind. Raises ValueError for another; true and false are no numbers."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} should be {kind.__name__}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:MAX_QUOTED]
