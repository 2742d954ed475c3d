"""Words to the service manager, sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state like `READY=1`; does nothing where no service manager listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace, unix(7)
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.sendto(state.encode(), address)
