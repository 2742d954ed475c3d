"""The open connections by caller: how many, for how long, and how many bytes wait there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from affinityd.daemon.http.refusals import MOST_OF_ONE, MOST_UNTAKEN, Refusal, RefusalLog
from affinityd.daemon.peers.connection import CallerKey


class LimitedConnection(Protocol):
    """A connection as far as its limits go."""

    caller: CallerKey
    transport: asyncio.Transport
    deadline: float  #: seconds of the loop's clock; until then it may be as it is

    def expire(self) -> None:
        """End it: its deadline has passed."""


@dataclass
class CallerShare:
    """One caller's connections, and the lock that its requests take in turn."""

    connections: set[LimitedConnection] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Connections:
    """The connections of a daemon. No caller has more than half of the maximum."""

    def __init__(self, refusals: RefusalLog, *, most: int) -> None:
        self.refusals = refusals
        self._most = most
        self._most_of_one = min(MOST_OF_ONE, max(most // 2, 1))
        self._shares: dict[CallerKey, CallerShare] = {}
        self._late: dict[LimitedConnection, float] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(len(share.connections) for share in self._shares.values())

    def add(self, connection: LimitedConnection) -> Refusal | None:
        """Count a new one, or return why it is refused."""
        share = self._shares.get(connection.caller, CallerShare())
        if len(share.connections) >= self._most_of_one:
            return Refusal.CALLER
        if len(self) >= self._most:
            return Refusal.FILES
        share.connections.add(connection)
        self._shares[connection.caller] = share
        return None

    def remove(self, connection: LimitedConnection) -> None:
        """Forget one that has ended; it may have been refused, or forgotten before."""
        share = self._shares.get(connection.caller, CallerShare())
        share.connections.discard(connection)
        if not share.connections:
            self._shares.pop(connection.caller, None)

    async def turn(self, connection: LimitedConnection) -> None:
        """Wait until a request of this connection's caller may go on.

        That is one in two turns of the loop. Callers do not wait for each other.
        """
        turn = self._shares[connection.caller].turn
        await turn.acquire()
        asyncio.get_running_loop().call_soon(turn.release)

    def weigh(self, connection: LimitedConnection) -> None:
        """End a connection whose client has not taken its answer, if that caller has too many."""
        share = self._shares.get(connection.caller, CallerShare())
        if sum(it.transport.get_write_buffer_size() for it in share.connections) > MOST_UNTAKEN:
            self.refusals.note(Refusal.BYTES, connection.caller)
            connection.transport.abort()

    def sweep(self, now: float) -> None:
        """End the connections that were past their deadline at the last sweep, and idle since.

        If the loop was busy for longer than that, their requests are still unread.
        """
        there = (it for share in self._shares.values() for it in share.connections)
        late = {it: it.deadline for it in there if it.deadline <= now}
        for connection, _ in late.items() & self._late.items():
            connection.expire()
        self._late = late
