"""The cpuset of a process: the CPUs that its cgroup lets it use.

Sources: cgroups(7), cpuset(7), proc(5) for mountinfo, kernel
Documentation/admin-guide/cgroup-v1/cpusets.rst and cgroup-v2.rst.
"""

# ruff: noqa: PTH123, PTH207 - pathlib costs more to import than all of this to run

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape, glob

from affinityd.cpuset import CpuSet, parse_list


@dataclass(frozen=True)
class Version:
    """Where one version of cgroups keeps the cpuset, in the order in which files are tried."""

    file_system: str
    controller: str | None  #: its name in a line of /proc/PID/cgroup; v2 has one line for all
    files: tuple[str, ...]


#: A controller is in one version or the other: where v1 has the cpuset, v2 has no files of it.
VERSIONS = (
    Version("cgroup", "cpuset", ("cpuset.effective_cpus", "cpuset.cpus")),
    Version("cgroup2", None, ("cpuset.cpus.effective",)),
)

CHOSEN = "cpuset.cpus"  #: of either version: the CPUs that somebody chose for a cgroup

#: Levels below a mount that are looked at: anybody may make thousands below a cgroup of their own.
MOST_LEVELS = 64


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo: a part of a hierarchy, and where it is to be seen."""

    root: str  #: the cgroup that lies at `point`
    point: str
    file_system: str
    controllers: tuple[str, ...]


def cpuset_of(pid: int, root: str = "/") -> CpuSet | None:
    """Return the CPUs that a process's cgroup lets it use.

    None where that cannot be known: the process is gone, no hierarchy with a cpuset is mounted
    here, or its cgroup lies outside of what is mounted. `root`: where the files of the machine are.
    """
    files = cpuset_files(_membership(pid, root), root)
    # An empty list is that of a cgroup which leaves the choice to the one above it.
    return next((cpus for file in files if (cpus := _cpus(file))), None)


def cpuset_files(membership: str, root: str = "/") -> Iterator[str]:
    """Yield the files of which the first that is there, and not empty, has a process's cpuset.

    `membership` is what its /proc/PID/cgroup says.
    """
    for version, folder in _cgroups(membership, root):
        yield from (f"{folder}/{file}" for file in version.files)


def confining(pid: int, root: str = "/") -> str | None:
    """Return the folder of the cgroup whose own choice of CPUs a process has; None: not known.

    That is its own, or one above it. On v2 most have made none.
    """
    folders = (folder for _, folder in _cgroups(_membership(pid, root), root))
    return next((folder for folder in folders if _cpus(f"{folder}/{CHOSEN}")), None)


def cgroup_folders(
    pid: int, root: str, versions: Iterable[Version]
) -> Iterator[tuple[Version, str]]:
    """Yield the folders of a process's cgroup and of those above it, in hierarchies of these."""
    return _cgroups(_membership(pid, root), root, versions)


def _membership(pid: int, root: str) -> str:
    return _read(f"{root.rstrip('/')}/proc/{pid}/cgroup") or ""


def _cgroups(
    membership: str, root: str, versions: Iterable[Version] = VERSIONS
) -> Iterator[tuple[Version, str]]:
    """Yield the folders of a process's cgroup and of those above it, in which a cpuset may be."""
    base = root.rstrip("/")
    lines = (_read(f"{base}/proc/self/mountinfo") or "").split("\n")
    mounts = [mount for line in lines if (mount := _mount(line))]
    for version in versions:
        for folder in _folders(version, _path(membership, version.controller), mounts, base):
            yield version, folder


def _path(membership: str, controller: str | None) -> str | None:
    """Return the process's cgroup in one hierarchy, by its line `ID:controller,…:/path`."""
    for line in membership.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") if controller else number == "0":
            return path
    return None


def _folders(version: Version, path: str | None, mounts: list[Mount], base: str) -> Iterator[str]:
    """Yield where the cgroup and those above it are to be seen, the cgroup itself first.

    Of one that lies very deep, those alone that are above it: they have what it has, or more.
    """
    for mount in mounts:
        has_it = version.controller is None or version.controller in mount.controllers
        if path is not None and mount.file_system == version.file_system and has_it:
            point = base + mount.point
            is_outside = "/../" in f"{path}/"  # beside or above our cgroup namespace
            below = _from_above(path, mount.root, point) if is_outside else _below(path, mount.root)
            while below is not None:
                yield point + below
                below = below.rpartition("/")[0] if below else None


def _below(path: str, root: str) -> str | None:
    """Return a path as it is below a root: "" for the root itself, None for what is not in it."""
    path, root = (f"{text.rstrip('/')}/" for text in (path, root))
    return _capped(path[len(root) - 1 : -1]) if path.startswith(root) else None


def _from_above(path: str, root: str, point: str) -> str | None:
    """Return the same of a cgroup outside of our namespace, in a mount of the whole hierarchy.

    Of both the kernel says how far above our namespace's root they are, and not by which folders
    that is reached: cgroup_namespaces(7). Where several are possible it is not known.
    """
    ups, parts = root.count("/.."), path.split("/")[1:]
    shared = ups - parts.count("..")
    if root != "/.." * ups or shared < 0:
        return None
    rest = _capped("".join(f"/{part}" for part in parts if part != ".."))
    found = glob(escape(point) + "/*" * shared + escape(rest))
    return found[0][len(point) :] if len(found) == 1 else None


def _capped(path: str) -> str:
    return "/".join(path.split("/", MOST_LEVELS + 1)[: MOST_LEVELS + 1])


def _mount(line: str) -> Mount | None:
    """Read `ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAG …] - TYPE SOURCE OPTIONS`, proc(5).

    None for what is no such line.
    """
    here, _, there = line.partition(" - ")
    try:
        _, _, _, root, point, *_ = map(_unescaped, here.split(" "))
        file_system, _, options = there.split(" ", 2)
    except ValueError:
        return None
    return Mount(root, point.rstrip("/"), file_system, tuple(options.split(",")))


def _unescaped(text: str) -> str:
    r"""Undo the kernel's \040 for a blank, and the like."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _cpus(path: str) -> CpuSet | None:
    text = _read(path)
    try:
        return None if text is None else parse_list(text)
    except ValueError:
        return None


def _read(path: str) -> str | None:
    try:  # of the names of cgroups a newline alone is no part: a CR is, and must not become one
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read()
    except (OSError, ValueError):  # the latter for a NUL, which no path has
        return None
