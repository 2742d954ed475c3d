"""The daemons that a client trusts: those of root and of the users in AFFINITYD_DAEMON_UID.

Any user of a node may run a server. So a client asks the kernel for the server's uid, unix(7)
SO_PEERCRED, and looks at each folder on the way: a user that may write to one can put
another socket there. In a user namespace, user_namespaces(7), the node's users have one number, the
overflow uid, which counts as root's; and the folders above may belong to the user that made the
container.
"""

# ruff: noqa: PTH109, PTH115, PTH118, PTH120 - pathlib costs more to import than Python

from __future__ import annotations

import _socket
import errno
import os
import stat
from collections.abc import Mapping

from affinityd.config import file as conffile
from affinityd.errors import InvalidRequestError, UntrustedError
from affinityd.linux.files import text
from affinityd.linux.peercred import credentials, overflow_uid

ROOT = 0
VARIABLE = f"{conffile.PREFIX}DAEMON_UID"
MAX_LINKS = 40  #: on one path, path_resolution(7)
UID_MAP = "/proc/self/uid_map"
IDENTITY_MAP = ["0", "0", "4294967295"]  #: the map of the first user namespace


def check_daemon(address: str, connection: _socket.socket) -> None:
    """Raise UntrustedError where another user listens on a unix socket, or could.

    Raises OSError if that cannot be read, InvalidRequestError for AFFINITYD_DAEMON_UID.
    """
    uid = credentials(connection).uid
    if not _is_trusted(uid):
        raise UntrustedError(
            f"the daemon at {address} is not trusted: uid {uid} listens there, which is "
            f"neither root nor in {VARIABLE}"
        )
    check_path(address)


def check_path(path: str) -> None:
    """Raise UntrustedError if another user could have put the file at a path there.

    Follows links as the kernel does. Raises OSError if a part of it cannot be read,
    InvalidRequestError for AFFINITYD_DAEMON_UID.
    """
    here, links = "/", 0
    ahead = _parts(os.path.join(os.getcwd(), path))
    _check_part(path, here, is_above=len(ahead) > 1)
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = os.path.dirname(here)
            continue
        part = os.path.join(here, name)
        mode = _check_part(path, part, is_above=len(ahead) > 1)
        if not stat.S_ISLNK(mode):
            here = part
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(part)
        ahead += _parts(target)
        here = "/" if target.startswith("/") else here


def _parts(path: str) -> list[str]:
    """Return the names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _check_part(path: str, part: str, *, is_above: bool) -> int:
    """Return the mode of a part of a path; `is_above`: it is above the folder that counts.

    Where a folder is sticky others may add to it, but not remove its files. Raises
    UntrustedError where the part is another's, or others may write to it.
    """
    status = os.lstat(part)
    uid, mode = status.st_uid, status.st_mode
    is_own = is_above and uid == os.geteuid()
    if not (_is_trusted(uid) or (is_own and _overflow_uid() is not None)):
        raise UntrustedError(
            f"{path} is not trusted: {part} belongs to uid {uid}, which is neither root nor "
            f"in {VARIABLE}"
        )
    is_open = mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if is_open and not (stat.S_ISLNK(mode) or stat.S_ISSOCK(mode) or is_sticky):
        raise UntrustedError(
            f"{path} is not trusted: other users may write to {part}; chmod go-w {part} "
            "prevents that"
        )
    return mode


def _is_trusted(uid: int) -> bool:
    return uid == ROOT or uid in trusted_uids(conffile.variables()) or uid == _overflow_uid()


def trusted_uids(variables: Mapping[str, str]) -> frozenset[int]:
    """Return the uids that variables name: users' names or numbers, separated by commas.

    Raises InvalidRequestError.
    """
    words = [word.strip() for word in variables.get(VARIABLE, "").split(",") if word.strip()]
    if not words:
        return frozenset()
    from affinityd.config.setting_readers import user  # noqa: PLC0415 - hardly any site names one

    try:
        return frozenset(map(user, words))
    except ValueError as error:
        raise InvalidRequestError(f"{VARIABLE}: {error}") from None


def _overflow_uid() -> int | None:
    """Return the uid that stands for all unmapped uids here; None if every uid is mapped."""
    uids = text(UID_MAP).split()  # none without /proc
    return overflow_uid() if uids and uids != IDENTITY_MAP else None
