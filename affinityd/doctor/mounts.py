"""What a process sees mounted: /proc/PID/mounts. Source: proc(5), fstab(5)."""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.discovery.tree import Tree

FIELDS = 4  #: of a line: device, point, kind, options; two zeros follow


@dataclass(frozen=True)
class Mount:
    """One line."""

    point: str
    kind: str  #: of file system: proc, cgroup2
    options: tuple[str, ...]


def mounts(tree: Tree, pid: str) -> list[Mount] | None:
    """Return what a process, or `self`, sees mounted; None where nobody says.

    Of two mounts at one point the later hides the earlier.
    """
    text = tree.read(f"proc/{pid}/mounts")
    if text is None:
        return None
    lines = (line.split(" ") for line in text.split("\n"))
    found = (
        Mount(fields[1], fields[2], tuple(fields[3].split(",")))
        for fields in lines
        if len(fields) >= FIELDS
    )
    return list({it.point: it for it in found}.values())
