"""Looks up a host's name, within a limit: the resolver has none, getaddrinfo(3)."""

from __future__ import annotations

import _socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def look_up(host: str, port: str, seconds: float) -> tuple[int, Any]:
    """Return an address as socket(2) and connect(2) have it.

    Raises TimeoutError, OSError for a name that is nobody's, UnicodeError for what can be none.
    """
    found: list[tuple[int, Any]] = []
    failed: list[Exception] = []

    def look() -> None:
        try:
            family, _, _, _, address = _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)[0]
            found.append((family, address))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=look, daemon=True)  # which holds up nobody's end
    try:
        thread.start()
    except RuntimeError as error:  # of a user who may have no more of them
        raise OSError(str(error)) from None
    thread.join(seconds)
    for trouble in failed:
        raise trouble
    if not found:
        raise TimeoutError
    return found[0]
