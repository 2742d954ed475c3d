"""One daemon pins on a node: the one that has the lock of a file, flock(2). The others observe.

Two that pin by different settings would take a job's threads from each other for ever.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "/run/affinityd/enforce.lock"

#: No link leads to another file, and no child inherits the lock.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

TAKEN = (
    "another daemon pins on this node (fuser {path} names it): this one observes, and pins when "
    "that one has ended"
)
NO_LOCK = "the lock of the one daemon that pins on a node cannot be had: {path}: {why}"


class NodeLock:
    """The lock, once it is free; the kernel frees it, however a daemon ends."""

    def __init__(self, path: str = LOCK) -> None:
        """Take where the lock is."""
        self._path = Path(path)
        self._file: int | None = None  # locked by us

    def acquire(self) -> str | None:
        """Return why this daemon is not to pin; None: it has the lock. Call it before each pass.

        A file that was taken away, or replaced, is no lock between two daemons.
        """
        if self._file is not None and not self._is_there(self._file):
            os.close(self._file)
            self._file = None
        try:
            self._file = self._file or self._locked()
        except BlockingIOError:
            return TAKEN.format(path=self._path)
        except OSError as error:
            return NO_LOCK.format(path=self._path, why=error.strerror)
        return None

    def _locked(self) -> int:
        """Return the file, locked. Raises OSError: BlockingIOError where another daemon has it."""
        folder = self._path.parent
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)  # whatever the umask is: sockets are there, too
        file = os.open(self._path, FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_there(file):
                raise BlockingIOError  # replaced meanwhile, by one that pins
        except OSError:
            os.close(file)
            raise
        return file

    def _is_there(self, file: int) -> bool:
        """Whether a file that we opened is still what the path leads to."""
        try:
            return os.path.samestat(os.fstat(file), self._path.lstat())
        except OSError:
            return False
