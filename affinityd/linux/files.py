"""Files of /proc and /sys, read by the thousand, and files that other programs change meanwhile.

A file of /proc or /sys may vanish, or refuse to be read, at any moment: that is no error.
`affinityd exec` imports this module without pathlib, which takes longer than a start of Python.
"""

# ruff: noqa: PTH116, PTH208 - importing pathlib takes longer than these calls

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # pathlib takes longer to import than Python to start
    from pathlib import Path

T = TypeVar("T")

READ_SIZE = 65536  #: bytes of one read(2)

#: How much of a file is read at most. execve(2) allows some megabytes; a process may declare all of
#: its memory to be its environment or command line, PR_SET_MM_MAP of prctl(2).
MOST_BYTES = 4 * 1024 * 1024

#: Errors of an existing file that cannot be read now, for lack of a resource; other errors mean
#: that the file is missing or forbidden.
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
FAILING = (*SCARCE, errno.EIO, errno.EAGAIN, errno.EPERM)

READABLE = 0o644  #: for all users, independent of the umask
EXECUTABLE = 0o755


def read(path: str, most: int) -> bytes:
    """Return a file, or its first `most` bytes; never wait for a pipe. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        parts = []
        while most > 0 and (part := os.read(file, min(READ_SIZE, most))):  # lists come in pages
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def content(path: str) -> bytes | None:
    """Return a file; None where it cannot be read."""
    try:
        return read(path, MOST_BYTES)
    except (OSError, ValueError):  # ValueError: a NUL, which no path has
        return None


def text(path: str) -> str:
    """Return a file's text without the blanks around it; "" where it cannot be read."""
    return (content(path) or b"").decode(errors="replace").strip()


def present(path: str) -> bytes | None:
    """Return a file; None if it does not exist. Raises OSError if that is unknown."""
    try:
        return read(path, MOST_BYTES)
    except OSError as error:
        if error.errno in FAILING or isinstance(error, PermissionError):
            raise
        return None


def is_there(path: str) -> bool:
    """Return whether there is a file. Raises OSError if that is unknown."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_regular(path: str, most: int) -> bytes:
    """Return the content of a regular file, without waiting for it.

    Raises OSError: EINVAL if it is no regular file, EFBIG if it has more than `most` bytes, EAGAIN
    for a file of the kernel that makes a reader wait, such as /proc/kmsg.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # before open(2), which may act on a device
        raise OSError(errno.EINVAL, "not a regular file")
    data = read(path, most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"longer than {most} bytes")
    return data


def in_time(read: Callable[[], T], seconds: float) -> T:
    """Return the result of `read`, which runs in a thread: the kernel may block a reader.

    Raises TimeoutError if it takes longer than `seconds`, and the errors of `read`. If no thread
    can be started, `read` runs in the calling thread, without a limit.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(read())
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            errors.append(error)

    reader = Thread(target=run, daemon=True)
    try:
        reader.start()
        reader.join(max(seconds, 0.0))
    except RuntimeError:
        run()
    if not results and not errors:
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]


def listed(folder: str, failing: Collection[int] = ()) -> list[str]:
    """Return the names in a folder; none if it is unreadable. Raises the errors in `failing`."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in failing:
            raise
        return []


def numbered(folder: str, prefix: str = "", failing: Collection[int] = ()) -> list[int]:
    """Return the numbers after a prefix in a folder's names, sorted. Raises OSError as `listed`."""
    names = (name[len(prefix) :] for name in listed(folder, failing) if name.startswith(prefix))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def environment_of(pid: int, root: str = "") -> Mapping[str, str] | None:
    """Return the environment with which a process was started; None if it cannot be read.

    If a name occurs twice the first value counts, as for getenv(3). No entry is left if the
    process has overwritten its environment with a title (setproctitle).
    """
    data = content(f"{root}/proc/{pid}/environ")
    if not data:  # the main thread has ended: read another thread's
        tasks = f"{root}/proc/{pid}/task"
        for tid in numbered(tasks)[1:2]:
            data = content(f"{tasks}/{tid}/environ")
    if data is None:
        return None
    whole = data if len(data) < MOST_BYTES else data[: data.rfind(b"\0")]
    entries = os.fsdecode(whole).split("\0")
    return dict(entry.partition("=")[::2] for entry in reversed(entries) if "=" in entry)


def write_whole(path: Path, data: bytes, mode: int | None = READABLE) -> None:
    """Write a file beside its place and rename it: readers see the old file or the new one.

    `mode` None: as the umask has it. Raises OSError, and leaves no temporary file.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sweep(path: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    for left in path.parent.glob(f".{path.name}.*"):
        try:
            left.unlink()
        except OSError:  # noqa: PERF203 - there are few
            continue
