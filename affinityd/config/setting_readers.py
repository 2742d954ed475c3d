"""What a setting's text means: readers, which raise InvalidRequestError with its name and value."""

from __future__ import annotations

from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:  # clients read a user's name by this
    from collections.abc import Callable
    from typing import Any

    #: Reads a text that was given by a name.
    Reader = Callable[[str, str], Any]

MAX_PORT = 65535
MAX_ID = 2**32 - 2  #: of a user or group; the last number means none, chown(2)
MAX_NAME = 253  #: characters of a DNS name, RFC 1035, and so of a node of Kubernetes


def any_text(text: str, _name: str) -> str:
    """Take it as it is."""
    return text


def one_of(*values: str) -> Reader:
    """Return a reader of one of several words."""
    is_pair = len(values) == 2  # noqa: PLR2004
    known = f"neither {' nor '.join(values)}" if is_pair else f"none of {', '.join(values)}"

    def read(text: str, name: str) -> str:
        if text not in values:
            raise InvalidRequestError(f"{name}: {quote(text)} is {known}")
        return text

    return read


def on_or_off(text: str, name: str) -> bool:
    """Read a switch."""
    return bool(one_of("on", "off")(text, name) == "on")


def whole_number(within: range, unit: str) -> Reader:
    """Return a reader of a number of a range; `unit` ends the error's line."""
    known = f"a whole number from {within[0]} to {within[-1]}{unit}"

    def read(text: str, name: str) -> int:
        if not (_is_number(text, within[-1]) and int(text) in within):
            raise InvalidRequestError(f"{name}: {quote(text)} is not {known}")
        return int(text)

    return read


def unless(word: str, reader: Reader) -> Reader:
    """Return a reader of what another one reads, and of a word that means None."""
    return lambda text, name: None if text == word else reader(text, name)


def node_name(text: str, name: str) -> str:
    """Read what a node is called."""
    if not text.isprintable() or len(text) > MAX_NAME:
        raise InvalidRequestError(
            f"{name}: {quote(text)} is no node's name; give a line of {MAX_NAME} characters at most"
        )
    return text


def host_and_port(text: str, name: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and _is_number(port, MAX_PORT)):
        raise InvalidRequestError(
            f"{name}: {quote(text)} is not HOST:PORT; write it like 127.0.0.1:9465, or none"
        )
    return host.strip("[]"), int(port)


def cpulist(text: str, name: str) -> CpuSet:
    """Read CPUs."""
    try:
        return parse_list(text)
    except ValueError as error:
        raise InvalidRequestError(f"{name}: {error}") from None


def group(text: str, name: str) -> int:
    """Read a group's name, or its number, which no group need have."""
    import grp  # noqa: PLC0415 - clients read settings too, and must start fast

    return _account(text, name, "group", lambda: grp.getgrnam(text).gr_gid)


def user(text: str, name: str) -> int:
    """Read a user's name, or its number, which no user need have."""
    import pwd  # noqa: PLC0415 - as above

    return _account(text, name, "user", lambda: pwd.getpwnam(text).pw_uid)


def _account(text: str, name: str, kind: str, look_up: Callable[[], int]) -> int:
    try:
        return int(text) if _is_number(text, MAX_ID) else look_up()
    except (KeyError, ValueError):  # the latter for what can be no name
        raise InvalidRequestError(
            f"{name}: there is no {kind} {quote(text)} here; give a {kind}'s name or number"
        ) from None


def _is_number(text: str, most: int) -> bool:
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    return is_short and int(text) <= most
