"""The policy file, which may change while the daemon runs: the last good one applies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from affinityd.enforce.policy.model import PolicyState
from affinityd.enforce.policy.policy import Policy, PolicyError
from affinityd.linux.files import read_regular

FILE = "/etc/affinityd-policy.toml"
MAX_FILE = 64 * 1024  #: bytes

_UNREAD = object()


class PolicyFile:
    """Reads the file at each look: it is small, and a new one may have the old one's time.

    A change counts when two looks in a row found the same: a file may be half written, or missing
    for a moment while an editor replaces it.
    """

    def __init__(
        self, path: str = FILE, *, parse: Callable[[str], Policy], is_optional: bool
    ) -> None:
        """Take its path, its parser, and whether it may be missing."""
        self._path = path
        self._parse = parse
        self._is_optional = is_optional
        self._policy: Policy | None = None
        self._seen: object = _UNREAD  # the file as it was at the last look; None: there was none
        self._counts: object = _UNREAD  # as it was when it was parsed
        self.state = PolicyState(file=None if is_optional else path)

    def current(self) -> Policy | None:
        """Return the policy that counts; None: none could be read yet, and nothing is pinned."""
        before, self._seen = self._seen, _UNREAD
        try:
            data = self._seen = self._content()
            if data == self._counts:
                self.state = replace(self.state, error=None)
            elif data == before or self._policy is None:
                policy = self._policy = self._parse(decoded(data or b""))
                self._counts = data
                is_read = PolicyState(self._path, time.time(), len(policy.rules))
                self.state = PolicyState() if data is None else is_read
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
            self.state = replace(self.state, file=self._path, error=why)
        except PolicyError as error:
            self.state = replace(self.state, file=self._path, error=str(error))
        return self._policy

    def _content(self) -> bytes | None:
        """Return the file's bytes; None where it is not there, and need not be. Raises OSError."""
        try:
            return read_regular(self._path, MAX_FILE)
        except FileNotFoundError:
            if self._is_optional:
                return None
            raise


def decoded(data: bytes) -> str:
    """Return a policy's text. Raises PolicyError where it is too long, or no UTF-8."""
    if len(data) > MAX_FILE:
        raise PolicyError(f"it is longer than {MAX_FILE} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"it is not UTF-8 (at line {line})") from None
