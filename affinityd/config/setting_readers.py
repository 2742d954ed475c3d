"""Readers of settings' text. They raise ValueError, one line that quotes the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from affinityd.text import quote
from affinityd.text import whole_number as number_of

if TYPE_CHECKING:  # clients read a user's name by this
    from collections.abc import Callable
    from typing import Any

    #: Reads a text.
    Reader = Callable[[str], Any]

MAX_PORT = 65535
MAX_ID = 2**32 - 2  #: of a user or group; the last number means none, chown(2)
MAX_NAME = 253  #: characters of a DNS name, RFC 1035, and so of a node of Kubernetes


def one_of(*values: str) -> Reader:
    """Return a reader of one of several words."""
    is_pair = len(values) == 2  # noqa: PLR2004
    known = f"neither {' nor '.join(values)}" if is_pair else f"none of {', '.join(values)}"

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"{quote(text)} is {known}")
        return text

    return read


def whole_number(within: range, unit: str) -> Reader:
    """Return a reader of a number of a range; `unit` ends the error's line."""

    def read(text: str) -> int:
        if not (_is_number(text, within[-1]) and int(text) in within):
            known = f"a whole number from {within[0]} to {within[-1]}{unit}"
            raise ValueError(f"{quote(text)} is not {known}")
        return int(text)

    return read


def unless(word: str, reader: Reader) -> Reader:
    """Return a reader that also takes a word that means None."""
    return lambda text: None if text == word else reader(text)


def node_name(text: str) -> str:
    """Read the name of a node."""
    if not text.isprintable() or len(text) > MAX_NAME:
        raise ValueError(
            f"{quote(text)} is not a node's name; give a line of {MAX_NAME} characters at most"
        )
    return text


def names(text: str) -> frozenset[str]:
    """Read names, separated by commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def absolute(text: str) -> str:
    """Read an absolute path."""
    if not text.startswith("/"):
        raise ValueError(f"{quote(text)} is no absolute path, as /run/affinityd is")
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and _is_number(port, MAX_PORT)):
        raise ValueError(f"{quote(text)} is not HOST:PORT; write it like 127.0.0.1:9465, or none")
    return host.strip("[]"), int(port)


def group(text: str) -> int:
    """Read a group's name, or its number, even of no existing group."""
    import grp  # noqa: PLC0415 - clients read settings too, and must start fast

    return _account(text, "group", lambda: grp.getgrnam(text).gr_gid)


def user(text: str) -> int:
    """Read a user's name, or its number, which no user need have."""
    import pwd  # noqa: PLC0415 - as above

    return _account(text, "user", lambda: pwd.getpwnam(text).pw_uid)


def _account(text: str, kind: str, look_up: Callable[[], int]) -> int:
    try:
        return int(text) if _is_number(text, MAX_ID) else look_up()
    except (KeyError, ValueError):  # the latter if it cannot be a name
        raise ValueError(
            f"there is no {kind} {quote(text)} here; give a {kind}'s name or number"
        ) from None


def _is_number(text: str, most: int) -> bool:
    return number_of(text, most) is not None
