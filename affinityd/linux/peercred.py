"""The process at the other end of a unix socket, as the kernel noted it: SO_PEERCRED.

Source: unix(7), SO_PEERCRED; struct ucred of kernel include/linux/socket.h. Clients import this:
neither `socket` nor `struct` nor `typing`.
"""

from __future__ import annotations

import _socket
import sys
from typing import Any

NUMBER = 4  #: bytes of each of the three, and of a group

#: kernel include/uapi/asm-generic/socket.h; Python has no name for it.
SO_PEERGROUPS = 59
MAX_GROUPS = 1024  #: bytes, the most that Python reads of a socket: 256 groups

OVERFLOW_UID = "/proc/sys/kernel/overflowuid"


class Credentials:
    """A process, in the numbers of this process's namespaces.

    `pid` is 0 if it is in a pid namespace that is neither this one nor below it.
    """

    __slots__ = ("gid", "pid", "uid")

    def __init__(self, pid: int, uid: int, gid: int) -> None:
        self.pid = pid
        self.uid = uid
        self.gid = gid


def credentials(connection: Any) -> Credentials:  # noqa: ANN401 - a socket, or uvloop's view of one
    """Return the peer. Raises OSError if the kernel does not know it."""
    told = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 3 * NUMBER)
    return Credentials(
        int.from_bytes(told[:NUMBER], sys.byteorder, signed=True),
        int.from_bytes(told[NUMBER : 2 * NUMBER], sys.byteorder),
        int.from_bytes(told[2 * NUMBER :], sys.byteorder),
    )


def groups(connection: Any, own: int) -> frozenset[int]:  # noqa: ANN401 - as above
    """Return the gids of the process there: its own and, where there is room, the others."""
    try:
        told = connection.getsockopt(_socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS)
    except OSError:  # a kernel before 4.13, or more groups than there is room for
        told = b""
    numbers = range(0, len(told), NUMBER)
    return frozenset(
        {own, *(int.from_bytes(told[it : it + NUMBER], sys.byteorder) for it in numbers)}
    )


def overflow_uid() -> int:
    """Return the uid of users that this user namespace does not know, user_namespaces(7)."""
    try:
        with open(OVERFLOW_UID, encoding="ascii") as file:  # noqa: PTH123
            return int(file.read())
    except (OSError, ValueError):
        return 65534
