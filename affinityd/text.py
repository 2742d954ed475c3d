"""How values and objects are written in messages."""

from __future__ import annotations

from collections.abc import Callable

#: How many characters of a wrong value a message shows.
MAX_QUOTED = 60

MAX_COUNTER = 2**64 - 1  #: the largest number that the kernel writes


def quote(text: str) -> str:
    """Return a value as messages show it: on one line, and not too long."""
    if len(text) > MAX_QUOTED:
        text = f"{text[:MAX_QUOTED]}…"
    return repr(text)


def one_line(text: str) -> str:
    """Return a text on one line, without characters that a terminal acts on."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable(text: str) -> str:
    """Return a name that is safe to show: unprintable characters become `?`."""
    if text.isprintable():  # nearly every text is printable: skip the slow loop
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def whole_number(text: str | None, most: int) -> int | None:
    """Return the number in a text of digits; None for other texts, and for numbers above `most`."""
    if not text or not text.isascii() or not text.isdigit() or len(text) > len(str(most)):
        return None
    number = int(text)
    if number > most:
        return None
    return number


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a reader of a text that must be one of these words; it raises ValueError."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{quote(text)} is not one of {', '.join(choices)}")
        return text

    return read


def node_name(number: int | None) -> str:
    """Return a NUMA node's name for people."""
    if number is None:
        return "the CPUs of no NUMA node"
    return f"node {number}"


def count(number: int, noun: str) -> str:
    """Return `1 core`, `2 cores`."""
    if number != 1:
        noun = f"{noun}s"
    return f"{number} {noun}"


def amount(size: float) -> str:
    """Return an amount of memory: `212 GiB`, `1.5 GiB`, `12 MiB`."""
    gib = size / 2**30
    if gib < 1:
        return f"{size / 2**20:.0f} MiB"
    if gib < 10:  # noqa: PLR2004
        return f"{gib:.1f} GiB"
    return f"{gib:.0f} GiB"
