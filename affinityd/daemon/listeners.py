"""The daemon's servers: one a socket, anew when its file went, later where another listens yet.

Whoever cleans up under /run takes a socket's file away, and nobody hears of it: those who are
connected go on, and no one else comes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress

from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.api.plan_only import PlanOnly
from affinityd.daemon.http.connections import Connections
from affinityd.daemon.sockets import Listeners, TcpListener
from affinityd.daemon.state.background import pause
from affinityd.daemon.uvicorn_server import Server
from affinityd.errors import ListenError

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  #: how often the socket's file is looked for, and an address in use tried again

#: How many connections are taken in a turn of the loop. libuv takes one a socket, and before the
#: next one answers whoever has asked: the last ones of many would wait for all the others.
TAKEN_AT_ONCE = 8


class Serving:
    """Serves on all sockets until it is stopped."""

    def __init__(
        self,
        app: AnswerCache,
        plan_only: PlanOnly,
        listeners: Listeners,
        connections: Connections,
    ) -> None:
        """Take what answers everything, what answers plans alone, where, and who counts callers."""
        self._app = app
        self._plan_only = plan_only
        self._listeners = listeners
        self._connections = connections
        self._servers: list[Server] = []
        self._unix: Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._trouble = ""  # why nothing listens at the path

    async def run(self) -> None:
        """Serve; returns when all has ended that was under way. Raises what a server raises."""
        self._begin_on_unix()
        for listener in self._listeners.tcp:
            self._begin_on_tcp(self._app, listener)
        for listener in self._listeners.plan:
            self._begin_on_tcp(self._plan_only, listener)
        self._tasks.add(asyncio.ensure_future(self._look_after()))
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self._tasks -= done
            for task in done:
                task.result()

    def stop(self) -> None:
        """Answer what is being asked and end; told twice, end at once."""
        self._stopping.set()
        for server in self._servers:
            server.stop()

    def _begin(self, app: AnswerCache | PlanOnly, listener: socket.socket) -> None:
        server = Server(app, self._connections, app.remembered)
        self._servers.append(server)
        self._tasks.add(asyncio.ensure_future(server.serve([listener, *_more(listener)])))

    def _begin_on_unix(self) -> None:
        self._begin(self._app, self._listeners.unix.socket)
        self._unix = self._servers[-1]

    def _begin_on_tcp(self, app: AnswerCache | PlanOnly, listener: TcpListener) -> None:
        if listener.socket:
            self._begin(app, listener.socket)
        else:
            self._tasks.add(asyncio.ensure_future(self._begin_when_free(app, listener)))

    async def _begin_when_free(self, app: AnswerCache | PlanOnly, listener: TcpListener) -> None:
        trouble = ""
        while not (listener.socket or self._stopping.is_set()):
            trouble = self._try(app, listener, trouble)
            await pause(self._stopping, CHECK_SECONDS)

    def _try(self, app: AnswerCache | PlanOnly, listener: TcpListener, told: str) -> str:
        """Serve an address, unless another process listens there; return what is told of that."""
        try:
            listener.listen()
        except ListenError as error:
            if str(error) != told:
                log.warning("%s; it is tried again, and all else is served", error)
            return str(error)
        log.info("%s: %s is listened on now", listener.setting, listener)
        self._begin_on_tcp(app, listener)
        return ""

    async def _look_after(self) -> None:
        """Once a second, for all servers: end who is late, and stay reachable."""
        while not self._stopping.is_set():
            await pause(self._stopping, CHECK_SECONDS)
            self._connections.sweep(asyncio.get_running_loop().time())
            if not self._stopping.is_set() and not self._listeners.unix.is_reachable():
                self._renew()

    def _renew(self) -> None:
        """Listen on the path anew; those who are connected are answered what they have asked."""
        path = self._listeners.unix.path
        if self._unix is not None:
            self._servers.remove(self._unix)  # whose stop in the end would be its second
            self._unix.stop()
            self._unix = None
        try:
            self._listeners.renew()
        except ListenError as error:
            if str(error) != self._trouble:
                log.warning("%s is not this daemon's any more: %s", path, error)
            self._trouble = str(error)
        else:
            self._trouble = ""
            self._begin_on_unix()
            log.warning("%s was gone; it is listened on anew", path)


def _more(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield the same socket again and again, as far as there are files for it."""
    with suppress(OSError):
        for _ in range(TAKEN_AT_ONCE - 1):
            yield listener.dup()
