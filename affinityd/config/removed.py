"""What 0.2 had and 0.3 has not. Commands and options are refused, variables are warned of.

The variables go from here with 0.4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from affinityd import config

MEASURING = "examples/loader_ab.py and docs/training.md, Does it help here?, say how to measure"
#: By the words after `affinityd`: what to use instead.
COMMANDS: Mapping[str, str] = {
    "measure": MEASURING,
    "audit --measured": MEASURING,
    "serve --measured": MEASURING,
}
#: Variables, also as lines of the settings file: what to do instead.
VARIABLES: Mapping[str, str] = {
    "AFFINITYD_MEASURED": f"leave it out; {MEASURING}",
}


def refusal(command: str) -> str | None:
    """Return the line about a command, or a command and its option; None: it was never there."""
    instead = COMMANDS.get(command)
    return None if instead is None else f"affinityd {command} is removed: {instead}"


def warnings(environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a line for each removed variable that is set. Raises InvalidRequestError."""
    path = config.path(environ)
    in_file = config.read_file(path)
    for variable, instead in VARIABLES.items():
        if environ.get(variable):
            yield f"{variable} is removed, and ignored: {instead}"
        elif in_file.get(variable):
            yield f"{variable} in {path} is removed, and ignored: {instead}"
