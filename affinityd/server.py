"""uvicorn, as the daemon runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from affinityd.api.protocol import Protocol
from affinityd.listening import BACKLOG

DRAIN_SECONDS = 5  #: how long requests that are under way at SIGTERM may take


class Server(uvicorn.Server):
    """uvicorn's, with the daemon's own signals: it ends with 0, and SIGHUP is no end."""

    def __init__(self, app: ASGIApp) -> None:
        """Take what is to be served."""
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
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
