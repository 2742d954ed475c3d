"""The signals of a process that may be a container's first.

The kernel drops a signal that pid 1 has no handler for, and leaves every orphan to it:
pid_namespaces(7).
"""

from __future__ import annotations

import os
import signal

#: What the daemon answers, once it can.
HELD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

#: Children of other threads are not waited for, wait(2); Python has no name for it.
_WNOTHREAD = 0x20000000


def hold() -> None:
    """Let signals wait, for pid 1's too are kept then: the daemon takes long to import."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def release() -> None:
    """Take the signals that waited, and those to come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def reap_orphans() -> None:
    """Wait for orphans whenever one ends, from now on. Call it in the main thread.

    They are the main thread's children, as are those that a thread leaves behind when it ends. What
    another thread starts is its own, and waited for there.
    """
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap())
    _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG | _WNOTHREAD)[0]:
            pass
    except ChildProcessError:  # there is none
        pass
