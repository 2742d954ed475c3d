"""The daemon's servers: one a socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress

from starlette.types import ASGIApp

from affinityd.daemon.http.cached_response import FindAnswer
from affinityd.daemon.http.connections import Connections
from affinityd.daemon.sockets import Listeners, TcpListener, UnixListener
from affinityd.daemon.state.background import pause
from affinityd.daemon.uvicorn_server import Server
from affinityd.errors import FatalError, ListenError

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  #: how often late connections are ended, and the socket's file is looked for
RETRY_SECONDS = 5.0  #: how often a TCP address is tried again where another process listens

#: How many connections are taken in a turn of the loop. libuv takes one a socket, and before the
#: next one answers whoever has asked: the last ones of many would wait for all the others.
TAKEN_AT_ONCE = 8


class Servers:
    """Serves on all sockets until it is stopped."""

    def __init__(
        self,
        app: ASGIApp,
        plan_only: ASGIApp,
        listeners: Listeners,
        connections: Connections,
        find_answer: FindAnswer,
    ) -> None:
        """Take what answers everything, what answers plans alone, where, and what they share.

        That is what counts connections, and what finds answers that were given before.
        """
        self._app = app
        self._plan_only = plan_only
        self._listeners = listeners
        self._connections = connections
        self._find_answer = find_answer
        self._servers: list[Server] = []
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve; returns when all has ended that was under way. Raises what a server raises."""
        sockets = self._listeners
        await asyncio.gather(
            self._serve(self._app, sockets.unix),
            *(self._serve(self._app, listener) for listener in sockets.tcp),
            *(self._serve(self._plan_only, listener) for listener in sockets.plan),
        )

    def stop(self) -> None:
        """Answer what is being asked and end; told twice, end at once."""
        self._stopping.set()
        for server in self._servers:
            server.stop()

    async def watch(self) -> None:
        """Once a second end late connections; never returns.

        Raises FatalError when the socket's file is gone, or another's: those who are connected go
        on, and no one else comes.
        """
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._connections.sweep(asyncio.get_running_loop().time())
            unix = self._listeners.unix
            if not unix.is_reachable():
                raise FatalError(f"{unix.path} is gone, or another process's")

    async def _serve(self, app: ASGIApp, listener: UnixListener | TcpListener) -> None:
        if isinstance(listener, TcpListener):
            await self._wait_until_free(listener)
        if listener.socket is not None and not self._stopping.is_set():
            server = Server(app, self._connections, self._find_answer)
            self._servers.append(server)
            await server.serve([listener.socket, *_more(listener.socket)])

    async def _wait_until_free(self, listener: TcpListener) -> None:
        """Listen on an address once no other process does."""
        while listener.socket is None:
            await pause(self._stopping, RETRY_SECONDS)
            if self._stopping.is_set():
                return
            with suppress(ListenError, OSError):  # files may be lacking, for now
                if listener.listen():
                    log.info("%s: %s is listened on now", listener.setting, listener)


def _more(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield the same socket again and again, as far as there are files for it."""
    with suppress(OSError):
        for _ in range(TAKEN_AT_ONCE - 1):
            yield listener.dup()
