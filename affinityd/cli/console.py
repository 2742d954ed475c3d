"""What a command says on the side: one line on stderr, so that its answer can be piped."""

from __future__ import annotations

import sys

from affinityd.errors import one_line


def say(text: str) -> None:
    """Print a line on stderr; nowhere, where that is closed (print would take stdout)."""
    if sys.stderr is not None:
        print(one_line(text), file=sys.stderr)
