"""Whose turn it is: one request a turn of the event loop, and callers one after the other.

Between two of them the loop looks who else has come: a user with a thousand requests under way
keeps nobody else waiting for more than one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from affinityd.api.refusals import Caller


class Turns:
    """Lets callers go on in turn."""

    def __init__(self) -> None:
        self._waiting: dict[Caller, deque[asyncio.Future[None]]] = {}  # the next one first
        self._is_taken = False

    async def take(self, caller: Caller) -> None:
        """Return when it is a caller's turn: at once, where nobody has had this one."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._give)
            return
        turn = loop.create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        await turn

    def _give(self) -> None:
        """Give the turn to the next caller, who then is the last."""
        self._is_taken = bool(self._waiting)
        if not self._is_taken:
            return
        caller = next(iter(self._waiting))
        theirs = self._waiting.pop(caller)
        turn = theirs.popleft()
        if theirs:
            self._waiting[caller] = theirs
        if not turn.done():  # else who waited has gone
            turn.set_result(None)
        asyncio.get_running_loop().call_soon(self._give)
