"""The daemon's servers: uvicorn's, for the whole API and for plans only."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.plan_heads import FindAnswer, PlanHeads
from affinityd.daemon.http.protocol import Protocol
from affinityd.daemon.http.refusals import MOST_IN_ALL
from affinityd.daemon.peers.callers import FILES_OF_ONE
from affinityd.daemon.sockets import BACKLOG, Listeners
from affinityd.daemon.state.background import until_multiple
from affinityd.errors import FatalError

CHECK_SECONDS = 1.0  #: how often late connections are ended, and the socket's file is looked for
REST_SECONDS = 2.0  #: that often without connections, with the watcher's checks: one wake-up
DRAIN_SECONDS = 5  #: how long requests that are under way at SIGTERM may take
SPARE_FILES = 96  #: files that the daemon needs besides connections

MOST_OPEN_CALLERS = 64  #: whose files stay open, for their next requests

#: How many connections are taken in a turn of the loop. libuv takes one a socket, and before the
#: next one answers every request: the last ones of many would wait for all the others.
TAKEN_AT_ONCE = 8


class Server(uvicorn.Server):
    """uvicorn's, with the daemon's own signals: it ends with 0, and SIGHUP is no end."""

    def __init__(self, app: ASGIApp, connections: Connections, find_answer: FindAnswer) -> None:
        """Take the app, the callers' limits, and the lookup of earlier answers."""
        self._end = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                # uvicorn calls it as it would the class.
                http=partial(  # type: ignore[arg-type]
                    Protocol,
                    connections=connections,
                    find_answer=find_answer,
                    heads=PlanHeads(),
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )

    async def main_loop(self) -> None:
        """Wait for the end.

        uvicorn's own looks for it ten times a second, and each time wakes up an idle CPU.
        `main_loop` and `on_tick` have been its hooks for subclasses since its first releases; a
        release without them would fail mypy, and the tests of the daemon's end.
        """
        await self.on_tick(0)
        await self._end.wait()

    def end(self) -> None:
        """Answer the pending requests and end; when called twice, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._end.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield


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
        """Take the app, the app for plans only, the sockets, and the servers' common part."""
        self._unix = listeners.unix
        self._connections = connections
        self._sockets = {
            Server(app, connections, find_answer): (self._unix.socket, *listeners.tcp),
            Server(plan_only, connections, find_answer): listeners.plan,
        }

    async def run(self) -> None:
        """Serve; return when every request has ended. Raises the errors of a server."""
        await asyncio.gather(
            *(
                server.serve([copy for it in sockets for copy in _copies(it)])
                for server, sockets in self._sockets.items()
            )
        )

    def stop(self) -> None:
        """Answer the pending requests and end; when called twice, end at once."""
        for server in self._sockets:
            server.end()

    async def watch(self) -> None:
        """Regularly end late connections, and set the Date of answers; never returns.

        Raises FatalError when the socket's file is deleted or replaced: no client could connect.
        """
        while self._unix.is_reachable():
            self._connections.sweep(asyncio.get_running_loop().time())
            for server in self._sockets:
                await server.on_tick(0)
            every = CHECK_SECONDS if len(self._connections) else REST_SECONDS
            await asyncio.sleep(until_multiple(every))
        raise FatalError(f"{self._unix.path} is gone, or another process's")


def _copies(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield a socket again and again, as far as there are files for it."""
    yield listener
    with suppress(OSError):
        yield from (listener.dup() for _ in range(TAKEN_AT_ONCE - 1))


def raise_file_limit() -> None:
    """Have as many files as the kernel allows, getrlimit(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # it may not be raised: the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """Return how many connections there is room for, with as many files as may be open."""
    return min(max(_room() - FILES_OF_ONE * most_open_callers(), 1), MOST_IN_ALL)


def most_open_callers() -> int:
    """Return of how many callers files may stay open besides."""
    return max(min(_room() // 8, MOST_OPEN_CALLERS), 1)


def _room() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - SPARE_FILES
