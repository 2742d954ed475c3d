"""Files of /proc and /sys, thousands at once: what cannot be read is nothing, and no error.

Any of them may vanish, or refuse to be read, at any moment.
"""

from __future__ import annotations

# ruff: noqa: PTH208 - pathlib would double the time
import errno
import os

# ruff: noqa: PTH116 - pathlib costs more to import than Python to start
import stat

PART = 65536  #: bytes that are read at once

#: What there is too little of, where a file cannot be read that is there all the same.
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def listed(folder: str) -> list[str]:
    """Return the names in a folder; none where it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def numbered(folder: str) -> list[int]:
    """Return the names that are numbers, by ascending number: processes, threads."""
    return sorted(int(name) for name in listed(folder) if name.isascii() and name.isdigit())


def content(path: str) -> bytes | None:
    """Return a file as it is; None where it cannot be read. A file object would cost as much."""
    try:
        return _whole(path)
    except OSError:
        return None


def present(path: str) -> bytes | None:
    """Return a file of one record, which the kernel gives at once; None where there is none for us.

    Raises OSError where nobody can say: PermissionError, and where there is too little of something
    (SCARCE) to read it.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in SCARCE or isinstance(error, PermissionError):
            raise
        return None
    try:
        return os.read(file, PART)
    except OSError:
        return None
    finally:
        os.close(file)


def _whole(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        data = part = os.read(file, PART)
        while part:  # a long list comes a page at a time
            part = os.read(file, PART)
            data += part
    finally:
        os.close(file)
    return data


def beginning(path: str) -> bytes:
    """Return the first PART bytes of a file that may be a pipe, or worse; b"" for none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(file, PART)
    except OSError:
        return b""
    finally:
        os.close(file)


def lines(path: str) -> list[bytes]:
    """Return a file's lines; none where it cannot be read.

    A newline alone ends one: in the names of processes and cgroups the kernel escapes, or forbids,
    no other character that Python takes for an end.
    """
    return (content(path) or b"").split(b"\n")


def text(path: str) -> str:
    """Return a file of ASCII without blanks around it; "" where it cannot be read."""
    return (content(path) or b"").decode("ascii", errors="replace").strip()


REGULAR_PART = 1024 * 1024  #: bytes that are read at once


def read_regular(path: str, most: int) -> bytes:
    """Return what a regular file holds, without waiting for it.

    Raises OSError: EINVAL for what is no regular file, EFBIG for one of more than `most` bytes,
    EAGAIN for one of the kernel's that has somebody wait, as /proc/kmsg.
    """
    _check(os.stat(path))  # first: to open a device may do something
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(file))
        parts, left = [], most
        while part := os.read(file, REGULAR_PART):
            left -= len(part)
            if left < 0:
                raise OSError(errno.EFBIG, f"longer than {most} bytes")
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
