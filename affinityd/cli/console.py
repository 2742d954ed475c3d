"""What a command says on the side: one line on stderr, so that its answer can be piped."""

from __future__ import annotations

import sys

from affinityd.errors import one_line


def say(text: str) -> None:
    """Print a line on stderr; nowhere, where that is closed (print would take stdout), or full."""
    if sys.stderr is not None:
        with_newline = f"{one_line(text)}\n"
        try:
            sys.stderr.write(with_newline)
        except OSError:  # nobody reads it: that must not be the end of what goes on beside it
            return
