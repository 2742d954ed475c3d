"""Whose turn it is: one request a turn of the event loop, and callers one after the other.

Between two of them the loop looks who else has come: a user with a thousand requests under way
keeps nobody else waiting for more than one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from affinityd.daemon.peers.caller_key import CallerKey


class Asker(Protocol):
    """A connection with a request that waits for its turn."""

    turn: asyncio.Future[None] | None  #: what it waits for, or waited; done, too, when it goes
    has_gone: bool  #: nobody is left who would take an answer

    @property
    def whose(self) -> CallerKey:
        """Whom it counts as."""


class Turns:
    """Lets callers go on in turn."""

    def __init__(self) -> None:
        self._waiting: dict[CallerKey, deque[asyncio.Future[None]]] = {}  # the next one first
        self._is_taken = False

    async def take(self, asker: Asker) -> None:
        """Return when it is an asker's turn: at once, where nobody has had this one.

        Returns as soon as the asker has gone, too.
        """
        if asker.has_gone:
            return
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._give)
            return
        turn = asker.turn = loop.create_future()
        self._waiting.setdefault(asker.whose, deque()).append(turn)
        await turn

    def _give(self) -> None:
        """Give the turn to the next caller, who then is the last."""
        turn = self._next()
        self._is_taken = turn is not None
        if turn is not None:
            turn.set_result(None)
            asyncio.get_running_loop().call_soon(self._give)

    def _next(self) -> asyncio.Future[None] | None:
        """Return who has waited longest of the next caller's; those who have gone are dropped."""
        while self._waiting:
            caller = next(iter(self._waiting))
            theirs = self._waiting.pop(caller)
            while theirs:
                turn = theirs.popleft()
                if not turn.done():
                    self._waiting |= {caller: theirs} if theirs else {}
                    return turn
        return None
