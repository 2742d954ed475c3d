"""What slurmctld itself says of a node: `scontrol show node`, where no slurm.conf tells.

slurm.conf is the better source: for a node that is invalid, slurmctld may show what registered.
"""

from __future__ import annotations

import re
import subprocess

from affinityd.errors import InvalidRequestError
from affinityd.slurm.config.expected import Expected, Unknown, expected
from affinityd.text import one_line

SECONDS = 5.0  #: that slurmctld may take to answer

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S+)", re.ASCII)


def show_node(name: str) -> Expected | Unknown:
    """Return what slurmctld expects of a node."""
    command = ("scontrol", "--oneliner", "show", "node", name)
    try:
        done = subprocess.run(  # noqa: S603 - the name is one word after `node`, and no option
            command, check=False, capture_output=True, timeout=SECONDS, text=True, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = "no answer" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        return Unknown(f"scontrol show node {name}: {why}")
    values = {key.lower(): value for key, value in _PAIR.findall(done.stdout)}
    if done.returncode or "nodename" not in values:
        said = one_line((done.stderr or done.stdout).strip().split("\n")[-1])
        return Unknown(f"scontrol show node {name}: {said or 'no answer'}")
    try:
        return expected(" ".join((command[0], *command[2:])), values, {})
    except InvalidRequestError as error:
        return Unknown(str(error))
