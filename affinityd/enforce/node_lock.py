"""One daemon pins on a node: who has the lock of a file, flock(2). The others observe.

Two that pin by different settings would take a job's threads from each other for ever.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

LOCK = "/run/affinityd/enforce.lock"

#: No link leads to another file, and no child inherits the lock.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

LONGEST = 20  #: bytes that are read of what is to be a pid

TAKEN = "another daemon{pid} pins on this node: this one observes, and pins when that one has ended"
NO_LOCK = "the lock of the one daemon that pins on a node cannot be had: {path}: {why}"


class NodeLock:
    """Has the lock from when nobody else has it; the kernel frees it, however this daemon ends."""

    def __init__(self, path: str = LOCK) -> None:
        """Take where the lock is."""
        self._path = Path(path)
        self._file: int | None = None  # whose lock we have

    def hindrance(self) -> str | None:
        """Return why this daemon is not to pin; None: it is the one. To be asked before each pass.

        A file that was taken away, or replaced, is no lock between two daemons.
        """
        if self._file is not None and self._is_there(self._file):
            return None
        self.release()
        try:
            file = self._opened()
        except OSError as error:
            return NO_LOCK.format(path=self._path, why=error.strerror)
        hindrance = self._locked(file)
        if hindrance is None:
            self._file = file
        else:
            os.close(file)
        return hindrance

    def release(self) -> None:
        """Let another one pin."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        folder = self._path.parent
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)  # whatever the umask is: sockets are there, too
        file = os.open(self._path, FLAGS, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is there, and is no file; take it away")
        return file

    def _locked(self, file: int) -> str | None:
        """Lock a file, and say in it who has; return why that cannot be."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(file)
            return TAKEN.format(pid=f" (process {pid})" if pid else "")
        except OSError as error:
            return NO_LOCK.format(path=self._path, why=error.strerror)
        if not self._is_there(file):  # replaced since we have opened it, by one who pins
            return TAKEN.format(pid="")
        with suppress(OSError):  # a full file system: the lock counts, the number is for people
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        return None

    def _is_there(self, file: int) -> bool:
        """Whether a file that we opened is still what the path leads to."""
        try:
            return os.path.samestat(os.fstat(file), self._path.lstat())
        except OSError:
            return False


def _pid_in(file: int) -> int | None:
    """Return the pid that a lock's holder has written; None where there is no such thing."""
    with suppress(OSError):
        text = os.pread(file, LONGEST, 0).strip()
        if text.isdigit():
            return int(text)
    return None
