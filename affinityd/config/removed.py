"""Commands, options and variables of 0.2 that 0.3 lacks: an error or, for variables, a warning.

Release 0.4 will drop the variables from this file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from affinityd import config

MEASURING = 'examples/loader_ab.py and docs/training.md ("Does it help here?") say how to measure'
TO_PIN = (
    "the daemon changes no running process; affinityd audit names the processes that run far from "
    "their GPUs, and affinityd pin --tree PID pins one"
)
SWITCHES_REMEDY = "docs/exec.md says how to switch off each binder"
#: Words after `affinityd` → what to use instead.
REMOVED_COMMANDS: Mapping[str, str] = {
    "enforce": TO_PIN,
    "serve --enforce": TO_PIN,
    "serve --enforce-policy": TO_PIN,
    "measure": MEASURING,
    "top": "affinityd audit --watch shows the node's state, and so does the daemon's page",
    "slurm check": "affinityd slurm gres-conf --diff compares; affinityd audit names far jobs",
    "audit --measured": MEASURING,
    "exec --check": SWITCHES_REMEDY,
    "exec --own": SWITCHES_REMEDY,
    "pin --memory": "affinityd verify --resident PID prints a migratepages(8) that moves memory",
    "serve --measured": MEASURING,
}
#: Variables, also as lines of the settings file → what to do instead.
VARIABLES: Mapping[str, str] = {
    "AFFINITYD_ENFORCE": f"leave it out; {TO_PIN}",
    "AFFINITYD_ENFORCE_POLICY": f"leave it out; {TO_PIN}",
    "AFFINITYD_OWN": f"leave it out; {SWITCHES_REMEDY}",
    "AFFINITYD_MEASURED": f"leave it out; {MEASURING}",
}
#: Files that 0.2 read, or that gave it privileges → what to do instead.
REMOVED_FILES: Mapping[str, str] = {
    "/etc/affinityd-policy.toml": (
        "it is ignored; remove it: no process is pinned by rules, and one setting holds for all "
        "containers that NRI places"
    ),
    "/etc/systemd/system/affinityd.service.d/enforce.conf": (
        "it gives the daemon privileges that it does not use; remove it"
    ),
}


def refusal(command: str) -> str | None:
    """Return the error for a removed command or option; None: nothing of that name was removed."""
    instead = REMOVED_COMMANDS.get(command)
    if instead is None:
        return None
    return f"affinityd {command} is removed: {instead}"


def warnings(environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a warning for each removed variable that is set, and for each file of 0.2.

    Raises InvalidRequestError.
    """
    path = config.path(environ)
    in_file = config.read_file(path)
    for variable, instead in VARIABLES.items():
        if environ.get(variable):
            yield f"{variable} is removed, and ignored: {instead}"
        elif in_file.get(variable):
            yield f"{variable} in {path} is removed, and ignored: {instead}"
    for file, instead in REMOVED_FILES.items():
        if os.path.exists(file):  # noqa: PTH110 - pathlib raises where a folder may not be entered
            yield f"{file} is of an earlier release: {instead}"
