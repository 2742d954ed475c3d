"""How many connections there are, and whose: a limit for each caller, and room for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Protocol

from affinityd.daemon.http.refusals import (
    MOST_HELD,
    MOST_OF_ONE,
    NO_ROOM,
    OVERWEIGHT,
    REPLACED,
    TOO_MANY,
    Refusal,
    RefusalLog,
)
from affinityd.daemon.peers.caller_key import CallerKey


class Connection(Protocol):
    """One of them, as they are seen here."""

    caller: CallerKey
    deadline: float  #: seconds of the loop's clock; until then it may be as it is
    held: int  #: bytes of it that lie here, as was last noted

    @property
    def holds(self) -> int:
        """Bytes of it that lie here: not all of a request, or of an answer that is not taken."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""

    @property
    def is_stuck(self) -> bool:
        """Whether an answer lies here that is not taken."""

    def expire(self) -> None:
        """End it: its deadline has passed."""

    def end(self) -> None:
        """End it at once, with whatever is under way."""


class Connections:
    """The connections of a daemon, the oldest of each caller first.

    Of all that there may be, users have three quarters at most, and so has the network.
    """

    def __init__(
        self,
        register: RefusalLog,
        *,
        most: int,
        most_of_one: int = MOST_OF_ONE,
        most_held: int = MOST_HELD,
    ) -> None:
        """Take who notes refusals, and how many there may be: in all, of one caller, and bytes."""
        self.register = register
        self._most = most
        self._most_of_one = most_of_one
        self._most_held = most_held
        self._held = 0
        self._of_kind: Counter[type] = Counter()  # of a caller: int is a uid, str an address
        self._of: dict[CallerKey, dict[Connection, None]] = {}
        self._late: dict[Connection, float] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return self._of_kind.total()

    def add(self, connection: Connection) -> Refusal | None:
        """Count a new one, or return why it is refused. One that is idle may have to go for it."""
        caller, kind = connection.caller, type(connection.caller)
        theirs = self._of.get(caller, {})
        is_shared = kind is str  # by all users of a machine
        if len(theirs) >= self._most_of_one and not (is_shared and self._has_ended_one(theirs)):
            return TOO_MANY
        is_crowded = self._of_kind[kind] >= max(self._most * 3 // 4, 1)
        is_full = is_crowded or len(self) >= self._most
        if is_full and not self._make_room(caller, kind if is_crowded else object):
            return NO_ROOM
        self._of.setdefault(caller, {})[connection] = None
        self._of_kind[kind] += 1
        return None

    def remove(self, connection: Connection) -> None:
        """Forget one that has ended; it may have been refused, or forgotten before."""
        theirs = self._of.get(connection.caller)
        if theirs is not None and connection in theirs:
            del theirs[connection]
            self._of_kind[type(connection.caller)] -= 1
            self._held -= connection.held
            connection.held = 0
            if not theirs:
                del self._of[connection.caller]

    def weigh(self, connection: Connection) -> None:
        """Note what a connection holds; of whoever holds most, the heaviest end if it is too much.

        What was noted of others may have been taken since: before any is ended they are asked anew.
        """
        if connection in self._of.get(connection.caller, ()):
            self._note(connection)
        if self._held > self._most_held:
            self._weigh_all()

    def sweep(self, now: float) -> None:
        """End those whose time was over at the last sweep, and that have done nothing since.

        Where the loop was kept busy for longer than that, what they sent lies there unread.
        """
        self._weigh_all()
        late = {it: it.deadline for it in self._everybody() if it.deadline <= now}
        before, self._late = self._late, late
        for connection, deadline in late.items():
            if before.get(connection) == deadline:
                connection.expire()

    def _weigh_all(self) -> None:
        for connection in self._everybody():
            self._note(connection)
        if self._held > self._most_held:
            heaviest = max(self._of.values(), key=lambda theirs: sum(it.held for it in theirs))
            for theirs in sorted(heaviest, key=lambda it: -it.held):
                if self._held > self._most_held // 2 and theirs.held:
                    self._end(theirs, OVERWEIGHT)

    def _make_room(self, newcomer: CallerKey, kind: type) -> bool:
        """End a connection of whoever has most, and no fewer than the newcomer has.

        Return whether there was one that could end.
        """
        fewest = len(self._of.get(newcomer, ()))
        callers = (theirs for caller, theirs in self._of.items() if isinstance(caller, kind))
        return any(
            self._has_ended_one(theirs)
            for theirs in sorted(callers, key=len, reverse=True)
            if len(theirs) >= fewest
        )

    def _has_ended_one(self, theirs: Iterable[Connection]) -> bool:
        """End the oldest idle one of these or else, one whose answer is not taken, if any is so."""
        idle = (it for it in theirs if it.is_idle)
        stuck = (it for it in theirs if it.is_stuck)
        for connection in chain(idle, stuck):
            self._end(connection, REPLACED)
            return True
        return False

    def _end(self, connection: Connection, why: Refusal) -> None:
        self.remove(connection)
        self.register.note(why, connection.caller)
        connection.end()

    def _note(self, connection: Connection) -> None:
        holds = connection.holds
        self._held += holds - connection.held
        connection.held = holds

    def _everybody(self) -> list[Connection]:
        return [it for theirs in self._of.values() for it in theirs]
