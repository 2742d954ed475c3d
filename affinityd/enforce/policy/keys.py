"""What a policy's file may say: keys, by which a rule asks who a process is, and settings. Pure.

Readers take what TOML made of a value. They raise ValueError, one line that quotes the value and
says what would be right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import translate
from reprlib import Repr
from typing import Any

from affinityd.enforce.policy.model import GRANTED, NOTHING
from affinityd.planner.modes import MODES
from affinityd.request.parsers import MAX_NUMBER
from affinityd.text import MAX_QUOTED, quote

MAX_NAMES = 1000  #: in a list
MAX_NAME = 256  #: characters
MAX_UID = 2**32 - 2  #: the last is nobody's, chown(2)

GLOB = frozenset("*?[")
NO_MATCH = "(?!)"  #: what no text matches

_SHORT = Repr()
_SHORT.maxlevel = 2  # a table may lie deeper than what Python can walk


class NamePatterns:
    """Names, and globs for names: `*`, `?`, `[abc]`, `[!abc]`, as fnmatch(3) has them."""

    def __init__(self, written: Sequence[str]) -> None:
        """Take them. Raises ValueError for a glob that is none."""
        globs = [name for name in written if GLOB & set(name)]
        self._exact = frozenset(written) - frozenset(globs)
        try:
            self._matches = re.compile("|".join(map(translate, globs)) or NO_MATCH).match
        except re.error as error:  # Python before 3.10.5: [z-a]
            raise refused(globs, f"no glob: {error}") from None

    def __contains__(self, name: str | None) -> bool:
        """Whether one of them is this name; one that is not known is none."""
        return name is not None and (name in self._exact or self._matches(name) is not None)


def shown(value: object) -> str:
    """Return a value of any kind as a message shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    try:
        text = _SHORT.repr(value)
    except ValueError:  # more digits than Python writes
        return "a huge number"
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def refused(value: object, why: str) -> ValueError:
    """Return what is to be raised for a value: what it is not, and what would be right."""
    return ValueError(f"{shown(value)} is {why}")


def suggestion(name: str, known: Collection[str]) -> str:
    """Return what somebody may have meant."""
    near = difflib.get_close_matches(name[:64], known, n=1)
    alike = [it for it in known if name and name in it] or near
    return f"did you mean {' or '.join(alike)}?" if alike else f"known are {', '.join(known)}"


def _list(value: object) -> list[object]:
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise ValueError("the list is empty, which nobody matches; take the key away")
    if len(entries) > MAX_NAMES:
        raise ValueError(f"{len(entries)} entries are too many; the most is {MAX_NAMES}")
    return entries


def _texts(value: object) -> NamePatterns:
    """Read a text, or a list of them: names and globs."""
    return NamePatterns([_text(entry) for entry in _list(value)])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise refused(value, "no text; write a name or a glob in quotes")
    if len(value) > MAX_NAME:  # a glob of many stars takes its time
        raise refused(value, f"too long; the most is {MAX_NAME} characters")
    return value


def _names(value: object) -> NamePatterns:
    if "" in _list(value):
        raise ValueError("'' is nobody's name; write a name, or a glob like '*'")
    return _texts(value)


def _paths(value: object) -> NamePatterns:
    for path in map(_text, _list(value)):
        if path[:1] not in {"/", *GLOB}:
            raise refused(path, "no path of a cgroup; begin it with / or *")
    return _texts(value)


def _uids(value: object) -> frozenset[int]:
    return frozenset(_number(entry, 0, MAX_UID, "user id") for entry in _list(value))


def _variables(value: object) -> Mapping[str, NamePatterns]:
    """Read the table of variables that a process's environment is to have."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{shown(value)} names no variable; write it like {{ TEAM = 'vision*' }}")
    return {name: _value_of(name, globs) for name, globs in value.items()}


def _value_of(name: str, globs: object) -> NamePatterns:
    if not name or "=" in name:
        raise refused(name, "no variable's name; it has characters, and no =")
    try:
        return _texts(globs)
    except ValueError as error:
        raise ValueError(f"{quote(name)}: {error}") from None


def _number(value: object, least: int, most: int, kind: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise refused(value, f"no {kind}; write a whole number from {least} to {most}")
    return value


def _cores(value: object) -> int:
    return _number(value, 1, MAX_NUMBER, "number of cores")


def _cpus(value: object) -> int | str:
    if value in (GRANTED, NOTHING):
        return str(value)
    return _number(value, 1, MAX_NUMBER, f"number of CPUs, nor {GRANTED!r} or {NOTHING!r}")


def _choice(kind: str, choices: Collection[str]) -> Callable[[object], str]:
    """Return a reader of one of these words; `-` and `_` are the same."""

    def read(value: object) -> str:
        name = value.replace("-", "_") if isinstance(value, str) else ""
        if name not in choices:
            raise refused(value, f"no {kind}; {suggestion(name, choices)}")
        return name

    return read


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise refused(value, "neither true nor false")
    return value


#: Keys that ask for one name of a process, each a field of `ProcessIdentity`.
NAMED = ("partition", "account", "user", "namespace", "pod")

KEYS: Mapping[str, Callable[[object], Any]] = {
    **dict.fromkeys(NAMED, _names),
    "uid": _uids,
    "cgroup": _paths,
    "environment": _variables,
}

#: Each a field of `Treatment`.
SETTINGS: Mapping[str, Callable[[object], Any]] = {
    "mode": _choice("mode", tuple(MODES)),
    "share": _choice("share", ("auto", "requested", "node")),
    "scope": _choice("scope", ("node", "socket")),
    "min_physical_cores": _cores,
    "cpus": _cpus,
    "observe": _yes_or_no,
    "leave": _yes_or_no,
}
