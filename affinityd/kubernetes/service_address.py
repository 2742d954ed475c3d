"""The address of the daemons' Service: its name is looked up, with a deadline.

The resolver has deadlines of its own, of many seconds, and Python cannot cut it short.
"""

from __future__ import annotations

import socket

from affinityd.client.forked import run_forked
from affinityd.client.http import HTTP
from affinityd.errors import DaemonError, NoDaemonError


def numeric(address: str, deadline: float) -> str:
    """Return an address by number: a socket's path as it is, http://NAME:PORT looked up.

    `deadline` is of time.monotonic. Raises DaemonError, NoDaemonError for a name that is not known.
    """
    if not address.startswith(HTTP):
        return address
    try:
        return run_forked(lambda: _looked_up(address), deadline)
    except TimeoutError:
        raise DaemonError(f"the daemon at {address} was not found in time") from None


def _looked_up(address: str) -> str:
    name, _, port = address.removeprefix(HTTP).rpartition(":")
    try:
        found = socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NoDaemonError(f"no daemon at {address}: {error}") from None
    host = str(found[0][4][0])
    return f"{HTTP}[{host}]:{port}" if ":" in host else f"{HTTP}{host}:{port}"
