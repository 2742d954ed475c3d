"""Who is at the other end of a unix socket: what the kernel noted when it connected or listened.

Source: unix(7), SO_PEERCRED; struct ucred of kernel include/linux/socket.h.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

UCRED = struct.Struct("iII")


class Credentials(NamedTuple):
    """A process, in the numbers of our namespaces."""

    pid: int  #: 0: it is in a pid namespace that is neither ours nor below it
    uid: int
    gid: int


def credentials(connection: Any) -> Credentials:  # noqa: ANN401 - a socket, or uvloop's view of one
    """Return who is there. Raises OSError where the kernel does not say."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
    return Credentials(*UCRED.unpack(told))
