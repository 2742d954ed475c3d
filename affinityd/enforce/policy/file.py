"""The policy's file, which may change while the daemon runs: what could be read last counts."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace

from affinityd.enforce.policy.model import NODE, PolicyState, Treatment
from affinityd.enforce.policy.policy import Policy, PolicyError, parse

FILE = "/etc/affinityd-policy.toml"
MAX_FILE = 64 * 1024  #: bytes

#: Looks in a row after which a file that need not be there is gone: an editor that renames the old
#: one before it writes the new one leaves a moment without any.
GONE = 2


class PolicyFile:
    """Reads the file at each look: it is small, and a new one may have the old one's time.

    A change counts when two looks in a row have found the same.
    """

    def __init__(self, path: str = FILE, *, is_named: bool, site: Treatment = NODE) -> None:
        """Take its path, and what counts where it says nothing.

        One that nobody named need not be there.
        """
        self._path = path
        self._site = site
        self._is_named = is_named
        self._policy: Policy | None = None
        self._seen: bytes | None = None  # the file as it was at the last look
        self._judged: bytes | None = None  # what counts
        self._missed = GONE - 1  # looks in a row that found none
        self.state = PolicyState(file=path if is_named else None)

    def current(self) -> Policy | None:
        """Return the policy that counts; None: none could be read yet, and nothing is pinned."""
        try:
            self._look()
        except FileNotFoundError:
            self._miss()
        except OSError as error:
            self._fail(f"it cannot be read: {error.strerror}")
        except PolicyError as error:
            self._fail(str(error))
        return self._policy

    def _look(self) -> None:
        before, self._seen = self._seen, None
        self._seen = _content(self._path)
        self._missed = 0
        # One that is being written is another at the next look: half a policy is none.
        is_whole = self._seen == before or self._policy is None
        if is_whole and self._seen != self._judged:
            self._judged = None  # one that is wrong is judged, and told, at each look
            self._policy = parse(_text(self._seen), self._site)
            self.state = PolicyState(self._path, time.time(), len(self._policy.rules))
            self._judged = self._seen
        elif self._seen == self._judged and self.state.error is not None:
            self.state = replace(self.state, error=None)

    def _miss(self) -> None:
        self._missed += 1
        if self._is_named:
            self._fail("there is no such file")
        elif self._missed == GONE:
            self._policy = Policy(self._site)
            self.state = PolicyState()

    def _fail(self, why: str) -> None:
        self.state = replace(self.state, file=self._path, error=why)


def _content(path: str) -> bytes:
    """Return the file's bytes. Raises OSError, or PolicyError for what is no file, or too long."""
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PolicyError("it is no regular file")
        data = file.read(MAX_FILE + 1)
    if data is None:  # one of /proc that has nothing to say now
        raise PolicyError("it is no regular file")
    if len(data) > MAX_FILE:
        raise PolicyError(f"it is longer than {MAX_FILE} bytes")
    return data


def _at_once(path: str, flags: int) -> int:
    """Open it, and wait for nobody, if it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"it is not UTF-8 (at line {line})") from None
