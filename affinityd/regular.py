"""Reading a file whose name somebody else chose: it may be a pipe, a device, or have no end."""

# ruff: noqa: PTH116 - pathlib costs more to import than Python to start

from __future__ import annotations

import errno
import os
import stat

PART = 1024 * 1024  #: bytes that are read at once


def read(path: str, most: int) -> bytes:
    """Return what a regular file holds, without waiting for it.

    Raises OSError: EINVAL for what is no regular file, EFBIG for one of more than `most` bytes,
    EAGAIN for one of the kernel's that has somebody wait, as /proc/kmsg.
    """
    _check(os.stat(path))  # first: to open a device may do something
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(file))
        parts, left = [], most
        while part := os.read(file, PART):
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
