"""The daemon, and the signals that arrive while it is imported.

The kernel drops a signal for which pid 1, as in a container, has no handler: pid_namespaces(7).
"""

from __future__ import annotations

import signal

#: The signals that the daemon handles once it has started.
HELD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def hold_signals() -> None:
    """Block signals: the kernel then keeps them pending, also for pid 1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def release_signals() -> None:
    """Handle the blocked signals, and later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
