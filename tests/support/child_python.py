"""Python in a child that lacks some privilege, for tests: what it prints is what is returned."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import REPOSITORY


def said(code: str, *arguments: str, within: tuple[str, ...] = ()) -> str:
    """Run Python code, by the command `within` where one is given, and return what it printed."""
    done = subprocess.run(
        [*within, sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")
