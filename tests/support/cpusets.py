"""A real cpuset for tests: a cgroup of this machine's v1 hierarchy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HIERARCHY = Path("/sys/fs/cgroup/cpuset")

needs_cpuset = pytest.mark.skipif(
    not os.access(HIERARCHY, os.W_OK), reason="no cgroup v1 cpuset to write to"
)


@contextmanager
def cpuset() -> Iterator[Path]:
    """Make a cgroup with every CPU; who puts processes into it ends them before."""
    folder = HIERARCHY / f"test-{os.getpid()}"
    folder.mkdir()
    try:
        for file in ("cpuset.mems", "cpuset.cpus"):
            (folder / file).write_text((HIERARCHY / file).read_text())
        yield folder
    finally:
        folder.rmdir()
