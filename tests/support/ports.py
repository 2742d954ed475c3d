"""TCP ports for tests."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that nobody listens on, at any address of this machine."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
