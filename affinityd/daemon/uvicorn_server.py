"""uvicorn, as the daemon runs it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from affinityd.daemon.http.cached_response import FindAnswer
from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.protocol import Protocol
from affinityd.daemon.http.refusals import MOST_IN_ALL, RefusalLog
from affinityd.daemon.sockets import BACKLOG

DRAIN_SECONDS = 5  #: how long requests that are under way at SIGTERM may take

SPARE_FILES = 96  #: files that the daemon needs besides connections


class Server(uvicorn.Server):
    """uvicorn's, with the daemon's own signals: it ends with 0, and SIGHUP is no end."""

    def __init__(
        self,
        app: ASGIApp,
        connections: Connections | None = None,
        find_answer: FindAnswer = lambda _query, _scope: None,
    ) -> None:
        """Take what is to be served, who counts connections, and what was answered before."""
        if connections is None:
            connections = Connections(RefusalLog(), most=most_connections())
        super().__init__(
            uvicorn.Config(
                app,
                # uvicorn calls it as it would the class.
                http=partial(  # type: ignore[arg-type]
                    Protocol, connections=connections, find_answer=find_answer
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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield

    def stop(self) -> None:
        """Answer what is being asked and end; told twice, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def raise_file_limit() -> None:
    """Have as many files as the kernel allows, getrlimit(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # not ours to raise: what there is will have to do
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """Return how many connections there is room for, with as many files as may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(soft - SPARE_FILES, 1), MOST_IN_ALL)
