"""What guests' scripts say of what they ran, in few words."""

from __future__ import annotations

import re
from typing import Any

Document = dict[str, Any]


def place(ended: Document) -> dict[str, str]:
    """Return where a command was, what it was told, without the prefix, and what was said.

    It printed its /proc/self/status, and its environment last.
    """
    status, _, environ = ended["stdout"].rpartition("\n")
    mask = re.findall(r"^Cpus_allowed_list:\t(.*)$", status, re.MULTILINE)
    told = dict(re.findall(r"(?:^|\0)AFFINITYD_(\w+)=([^\0]*)", environ))
    told.pop("TIMEOUT", None)  # which it was given
    return {"mask": "".join(mask), **told, "said": ended["stderr"]}


def filled(ended: Document) -> dict[str, Any]:
    """Return the memory policy of a command by numactl and by numa_maps, and its pages by node.

    It printed `numactl --show`, and last the line of its largest mapping: numa(7).
    """
    shown, _, line = ended["stdout"].rstrip("\n").rpartition("\n")
    by_numactl = dict(re.findall(r"^(policy|preferred): ?(.*?) *$", shown, re.MULTILINE))
    policy, _, pages = line.partition(" ")[2].partition(" anon=")
    found = {node: int(count) for node, count in re.findall(r" N(\d+)=(\d+)", pages)}
    said = ended["stderr"].splitlines()
    return {**by_numactl, "maps": policy, "pages": found, "said": said, "status": ended["status"]}
