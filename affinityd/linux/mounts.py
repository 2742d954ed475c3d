"""The mounts that a process sees: /proc/PID/mountinfo. Source: proc(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """One line."""

    root: str  #: the folder of the file system at `point`: of a hierarchy of cgroups, one
    point: str
    kind: str  #: of file system: proc, cgroup2
    options: tuple[str, ...]  #: of the mount, then of the file system: v1's controllers


def parse_mounts(text: str) -> list[Mount]:
    """Return the lines of a mountinfo, in its order: of two at one point the later hides the other.

    Malformed lines are left out.
    """
    return [mount for line in text.split("\n") if (mount := _mount(line))]


def _mount(line: str) -> Mount | None:
    """Read `ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAG …] - TYPE SOURCE OPTIONS`."""
    here, _, there = line.partition(" - ")
    try:
        _, _, _, root, point, of_mount, *_ = here.split(" ")
        kind, _, of_file_system = there.split(" ", 2)
    except ValueError:
        return None
    options = (*of_mount.split(","), *of_file_system.split(","))
    return Mount(_unescaped(root), _unescaped(point), kind, options)


def _unescaped(text: str) -> str:
    r"""Undo the kernel's \040 for a blank, and the like."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
