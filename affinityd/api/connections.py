"""How many connections there are, and whose: a limit for each caller, and room for the others."""

from __future__ import annotations

from typing import Protocol

from affinityd.api.refusals import (
    MOST_OF_ONE,
    NO_ROOM,
    REPLACED,
    TOO_MANY,
    Caller,
    Refusal,
    Register,
)


class Connection(Protocol):
    """One of them, as they are seen here."""

    caller: Caller
    deadline: float  #: seconds of the loop's clock; until then it may be as it is

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""

    def expire(self) -> None:
        """End it: its deadline has passed."""

    def end(self) -> None:
        """End it at once, with whatever is under way."""


class Connections:
    """The connections of a daemon, the oldest of each caller first."""

    def __init__(self, register: Register, *, most: int, most_of_one: int = MOST_OF_ONE) -> None:
        """Take who notes refusals, and how many there may be: in all, and of one caller."""
        self.register = register
        self._most = most
        self._most_of_one = most_of_one
        self._all = 0
        self._of: dict[Caller, dict[Connection, None]] = {}
        self._late: dict[Connection, float] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return self._all

    def add(self, connection: Connection) -> Refusal | None:
        """Count a new one, or return why it is refused. One that is idle may have to go for it."""
        theirs = self._of.get(connection.caller)
        if theirs is not None and len(theirs) >= self._most_of_one:
            return TOO_MANY
        if self._all >= self._most and not self._make_room():
            return NO_ROOM
        self._of.setdefault(connection.caller, {})[connection] = None
        self._all += 1
        return None

    def remove(self, connection: Connection) -> None:
        """Forget one that has ended; it may have been refused, or forgotten before."""
        theirs = self._of.get(connection.caller)
        if theirs is not None and connection in theirs:
            del theirs[connection]
            self._all -= 1
            if not theirs:
                del self._of[connection.caller]

    def sweep(self, now: float) -> None:
        """End those whose time was over at the last sweep, and that have done nothing since.

        Where the loop was kept busy for longer than that, what they sent lies there unread.
        """
        connections = [it for theirs in self._of.values() for it in theirs]
        late = {it: it.deadline for it in connections if it.deadline <= now}
        before, self._late = self._late, late
        for connection, deadline in late.items():
            if before.get(connection) == deadline:
                connection.expire()

    def _make_room(self) -> bool:
        """End the oldest idle connection of whoever has most; return whether there was one."""
        for theirs in sorted(self._of.values(), key=len, reverse=True):
            idle = next((it for it in theirs if it.is_idle), None)
            if idle is not None:
                self.remove(idle)
                self.register.note(REPLACED, idle.caller)
                idle.end()
                return True
        return False
