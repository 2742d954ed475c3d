"""A daemon whose socket is not where its log is: its folder may go, or be full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.daemons import Daemon, eventually, spawn


@contextmanager
def listening_at(
    path: Path,
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Run a daemon with its log in a folder, and its socket at a path, until it can plan."""
    settings = {**(env or {}), "AFFINITYD_SOCKET": str(path)}
    daemon = spawn(folder, *arguments, env=settings, before=before)
    daemon.socket = path
    try:
        eventually(lambda: plans(daemon), "the daemon is ready")
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


def plans(daemon: Daemon) -> bool:
    """Whether it answers with a plan."""
    with suppress(OSError):
        return daemon.get("/plan").status == 200
    return False


def says(daemon: Daemon, words: str) -> list[str]:
    """Return the lines of its log that have these words."""
    return [line for line in daemon.lines if words in line]
