"""Signals that arrive while the daemon is imported.

The kernel drops a signal that pid 1, as of a container, has no handler for: pid_namespaces(7).
"""

from __future__ import annotations

import signal

#: What the daemon answers, once it can.
HELD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def hold() -> None:
    """Let signals wait, for pid 1's too are kept then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def release() -> None:
    """Take the signals that waited, and those to come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
