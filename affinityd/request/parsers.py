"""Parsers of parameters' text. They raise ValueError, one line that quotes the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.planner.modes import MODES
from affinityd.request.environment import BY_VALUE
from affinityd.text import quote, whole_number

MAX_ENTRIES = 256
MAX_NUMBER = 2**31

_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a reader of one of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{quote(text)} is not one of {', '.join(choices)}")
        return text

    return read


def mode(text: str) -> str:
    """Read a mode; `-` and `_` are the same."""
    name = text.replace("-", "_")
    return name if name in MODES else one_of(*MODES)(text)


def boolean(text: str) -> bool:
    """Read true or false."""
    if text.lower() not in _BOOLEANS:
        raise ValueError(f"{quote(text)} is neither true nor false")
    return _BOOLEANS[text.lower()]


def positive(text: str) -> int:
    """Read a whole number from 1."""
    value = whole_number(text, MAX_NUMBER)
    if not value:
        raise ValueError(f"{quote(text)} is not a whole number from 1 to {MAX_NUMBER}")
    return value


def nics(text: str) -> int:
    """Read how many NICs a rank gets: a whole number from 1, all or none."""
    words = {"all": MAX_NUMBER, "none": 0}
    number = words[text] if text in words else whole_number(text, MAX_NUMBER) or None
    if number is None:
        raise ValueError(f"{quote(text)} is neither all, none nor a whole number from 1")
    return number


@dataclass(frozen=True)
class TaskCpus:
    """A task's request: a number of CPUs, or an equal part of those that so many tasks may use."""

    cpus: int | None = None
    tasks: int | None = None


def task_cpus(text: str) -> TaskCpus:
    """Read how many CPUs a task asked for, like 4, or its part of all, like 1/8."""
    one, slash, tasks = text.partition("/")
    if not slash:
        return TaskCpus(cpus=positive(text))
    if one != "1":
        raise ValueError(f"{quote(text)} is neither a number like 4 nor a part like 1/8")
    return TaskCpus(tasks=positive(tasks))


def count(text: str) -> int:
    """Read a number of entries."""
    return _few(positive(text), "ranks")


def entries(text: str) -> tuple[str, ...]:
    """Read a comma list of names."""
    names = tuple(entry.strip() for entry in listed(text).split(","))
    if "" in names:
        raise ValueError(f"{quote(text)} has an empty entry; write it like 0,1")
    return names


def masks(text: str) -> tuple[CpuSet, ...]:
    """Read a comma list of hexadecimal masks of CPUs."""
    return tuple(parse_mask(entry) for entry in entries(text))


def gpus(text: str) -> tuple[str, ...] | None:
    """Read a list of devices; None for `all`."""
    names = entries(text)
    if names == ("all",):
        return None
    if "all" in names:
        raise ValueError(f"{quote(text)}: all stands alone, not in a list")
    return names


def ranks(text: str) -> tuple[int, ...]:
    """Read a list of rank numbers."""
    try:
        numbers = parse_list(text)
    except ValueError:
        raise ValueError(
            f"{quote(text)} is not a list of ranks; write it like 0,1 or 0-3"
        ) from None
    _few(len(numbers), "ranks")
    return tuple(sorted(numbers))


def listed(text: str) -> str:
    """Read a comma list to the letter."""
    _few(text.count(",") + 1, "entries")
    return text


def visible(text: str) -> str:
    """Read a visible-device variable's value, to the letter."""
    name, is_assignment, value = text.partition("=")
    if is_assignment and name in BY_VALUE:
        raise ValueError(f"{quote(text)} names its variable; give the value alone: {quote(value)}")
    return listed(text)


def granted(text: str) -> str:
    """Read a list of granted devices."""
    return ",".join(entries(text))


def _few(number: int, noun: str) -> int:
    if number > MAX_ENTRIES:
        raise ValueError(f"{number} {noun} are too many; the most is {MAX_ENTRIES}")
    return number
