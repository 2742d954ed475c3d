"""The cgroups of a process: the CPUs and the CPU time that they allow.

Since 1.33 kubelet sets no limit for exclusive CPUs (DisableCPUQuotaWithExclusiveCPUs). The weight
of a container with such CPUs stands for as many CPUs as its cpuset has, and counts as its limit.

Sources: cgroups(7), cpuset(7), kernel Documentation/admin-guide/cgroup-v1/cpusets.rst and
cgroup-v2.rst, scheduler/sched-bwc.rst; proc(5) for mountinfo; Kubernetes
pkg/kubelet/cm/helpers_linux.go, MilliCPUToShares; opencontainers/cgroups utils.go,
ConvertCPUSharesToCgroupV2Value, whose weights are larger since runc 1.3.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from affinityd.cpuset import CpuSet, parse_list
from affinityd.linux.files import content, listed, text
from affinityd.text import whole_number

#: Where each version of cgroups has the cpuset: the file system, the controller's name in a line of
#: /proc/PID/cgroup ("" for v2: one line for all), and the files in the order in which they are
#: tried. A controller is in one version alone: where v1 has the cpuset, v2 has no files for it.
VERSIONS = (
    ("cgroup", "cpuset", ("cpuset.effective_cpus", "cpuset.cpus")),
    ("cgroup2", "", ("cpuset.cpus.effective",)),
)

MOST_LEVELS = 64  #: how many levels below a mount are read: any user may create thousands
SLICE_SUFFIX = ".slice"  #: ends the names of systemd's slices: a-b.slice is in a.slice
MOST_SHARES = 262144
MOST_TIME = 10**12 - 1  #: microseconds; more than any kernel writes here


class Mount(NamedTuple):
    """A line of mountinfo."""

    root: str  #: the folder of the file system that is mounted; for cgroups, of a hierarchy
    point: str
    kind: str  #: file system type: proc, cgroup2
    options: tuple[str, ...]  #: options of the mount, then of the file system: controllers of v1


def parse_mounts(text: str) -> list[Mount]:
    """Return the well-formed lines; of two at one mount point the later one hides the earlier."""
    mounts = []
    for line in text.split("\n"):  # ID PARENT MAJ:MIN ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS
        here, _, there = line.partition(" - ")
        try:
            _, _, _, root, point, of_mount, *_ = here.split(" ")
            kind, _, of_file_system = there.split(" ", 2)
            options = (*of_mount.split(","), *of_file_system.split(","))
            mounts.append(Mount(_unescaped(root), _unescaped(point), kind, options))
        except ValueError:
            continue
    return mounts


def _unescaped(text: str) -> str:
    r"""Undo the kernel's escapes: \040 is a blank, \134 a backslash."""
    first, *escaped = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in escaped)


class Cgroups:
    """The cgroups of a process, and the folders of these cgroups and of their parents."""

    def __init__(self, membership: str, root: str = "/") -> None:
        """Take the text of a /proc/PID/cgroup; `root` has the machine's files."""
        self._membership = membership
        self._base = root.rstrip("/")
        mounts = content(f"{self._base}/proc/self/mountinfo") or b""
        self._mounts = parse_mounts(os.fsdecode(mounts))

    @classmethod
    def of(cls, pid: int, root: str = "/") -> Cgroups:
        """Return the cgroups of a process; an ended process has none."""
        membership = content(f"{root.rstrip('/')}/proc/{pid}/cgroup") or b""
        return cls(os.fsdecode(membership), root)

    @property
    def cpuset(self) -> CpuSet | None:
        """The CPUs that the process may use; None if it has ended, or no mount shows its cgroup."""
        # A cgroup with an empty list has the CPUs of its parent.
        for file in self.cpuset_files():
            if cpus := cpus_listed_in(file):
                return cpus
        return None

    def cpuset_files(self) -> Iterator[str]:
        """Yield files; the cpuset is in the first that exists and is not empty."""
        for file_system, controller, files in VERSIONS:
            for folder in self.folders(file_system, controller):
                yield from (f"{folder}/{file}" for file in files)

    @property
    def confining(self) -> str | None:
        """The folder that sets the process's CPUs: its cgroup's or a parent's; None: unknown."""
        for file_system, controller, _ in VERSIONS:
            for folder in self.folders(file_system, controller):
                if cpus_listed_in(f"{folder}/cpuset.cpus"):
                    return folder
        return None

    def cpu_limit(self) -> int | None:
        """Return the least CPU limit of the cgroup and its parents, in CPUs, rounded up."""
        folders = [*self.folders("cgroup", "cpu"), *self.folders("cgroup2", "")]
        limits = [limit for folder in folders if (limit := _limit(folder))]
        if limits or not folders:
            return min(limits, default=None)
        return _exclusive(folders[0], len(self.cpuset or ()))

    def container_limit(self) -> int | None:
        """Return the CPU limit of the container, from the topmost folder; None: no limit."""
        for file_system, controller in (("cgroup", "cpu"), ("cgroup2", "")):
            for highest in [*self.folders(file_system, controller)][-1:]:
                limit = _limit(highest) or _exclusive(highest, len(self.cpuset or ()))
                if limit:
                    return limit
        return None

    def folders(self, file_system: str, controller: str) -> Iterator[str]:
        """Yield the folders of the cgroup in a hierarchy, then of its parents."""
        path = None
        for controllers, cgroup in hierarchies(self._membership):
            if controller in controllers:
                path = cgroup
                break
        if path is not None:
            is_outside = "/../" in f"{path}/"  # the path is beside or above this cgroup namespace
            for root, point in self.hierarchies(file_system, controller):
                if is_outside:
                    below = _from_above(path, root, point)
                else:
                    below = _below(path, root)
                if below is not None:
                    yield from _upwards(point, below)

    def hierarchies(self, file_system: str, controller: str) -> Iterator[tuple[str, str]]:
        """Yield the mounts of a hierarchy: the mounted folder, and the mount point."""
        for mount in self._mounts:
            if mount.kind == file_system and (not controller or controller in mount.options):
                yield mount.root, self._base + mount.point.rstrip("/")


def mask_of(tid: int) -> CpuSet | None:
    """Return a thread's affinity mask; a pid means its main thread. None if it has ended."""
    if tid <= 0:  # to the kernel 0 means the caller
        return None
    try:
        return frozenset(os.sched_getaffinity(tid))
    except (OSError, OverflowError):  # ended, or larger than any pid
        return None


def cpuset_of(pid: int, root: str = "/") -> CpuSet | None:
    """Return the CPUs that a process's cgroup allows, as `Cgroups.cpuset`."""
    return Cgroups.of(pid, root).cpuset


def cpuset_at(path: str, root: str = "/", kind: str = "cpus") -> CpuSet | None:
    """Return the CPUs that a cgroup of the node allows; `path` may also be the name of its slice.

    `kind` "mems": return its NUMA nodes. None if no mount here shows a whole hierarchy with a
    cpuset, or no such hierarchy has this cgroup.
    """
    if path.endswith(SLICE_SUFFIX) and "/" not in path:
        parts = path.removesuffix(SLICE_SUFFIX).split("-")
        path = "".join(f"/{'-'.join(parts[: end + 1])}{SLICE_SUFFIX}" for end in range(len(parts)))
    cgroups = Cgroups("", root)
    for file_system, controller, files in VERSIONS:
        for shown, point in cgroups.hierarchies(file_system, controller):
            is_whole = not {*shown.split("/")} - {"", ".."}  # /../.. in a cgroup namespace
            is_there = is_whole and path and os.path.isdir(point + path)  # noqa: PTH112 - no pathlib
            for folder in _upwards(point, path) if is_there else ():
                for file in files:
                    if numbers := cpus_listed_in(f"{folder}/{file.replace('cpus', kind)}"):
                        return numbers
    return None


def hierarchies(membership: str) -> Iterator[tuple[list[str], str]]:
    """Yield controllers and path of each line of /proc/PID/cgroup: `ID:controller,…:/path`."""
    for line in membership.split("\n"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if path:
            yield controllers.split(","), path.removesuffix(" (deleted)")


def _upwards(point: str, below: str) -> Iterator[str]:
    """Yield a folder below a mount point, its parent and so on; the mount point is the last."""
    yield point + below
    while below:
        below = below.rpartition("/")[0]
        yield point + below


def _below(path: str, root: str) -> str | None:
    """Return a path relative to a root: "" for the root itself, None for a path outside it."""
    path = f"{path.rstrip('/')}/"
    root = f"{root.rstrip('/')}/"
    if not path.startswith(root):
        return None
    return _capped(path[len(root) - 1 : -1])


def _from_above(path: str, root: str, point: str) -> str | None:
    """Return the relative path for a cgroup outside this namespace, in a mount of all cgroups.

    The kernel tells how far above this namespace's root the cgroup and the mount are, but not the
    folders between: cgroup_namespaces(7). If several are possible, the path is unknown.
    """
    ups = root.count("/..")
    parts = path.split("/")[1:]
    shared = ups - parts.count("..")
    if root != "/.." * ups or shared < 0:
        return None
    rest = _capped("".join(f"/{part}" for part in parts if part != ".."))
    folders = [""]
    for _ in range(shared):
        above = folders
        folders = []
        for folder in above:
            folders += [f"{folder}/{name}" for name in listed(point + folder)]
    paths = [f"{folder}{rest}" for folder in folders]
    paths = [path for path in paths if os.access(f"{point}{path}", os.F_OK)]
    return paths[0] if len(paths) == 1 else None


def _capped(path: str) -> str:
    return "/".join(path.split("/", MOST_LEVELS + 1)[: MOST_LEVELS + 1])


def cpus_listed_in(path: str) -> CpuSet:
    """Return the CPUs that a file lists; none if it cannot be read."""
    try:
        return parse_list(text(path))
    except ValueError:
        return frozenset()


def _exclusive(folder: str, cpus: int) -> int | None:
    """Return the number of CPUs of a cpuset, if the cgroup's weight is that of as many CPUs.

    None for the root cgroup of a node: v1 gives it the weight of one CPU.
    """
    if not cpus or content(f"{folder}/release_agent") is not None:  # cgroups(7)
        return None
    shares = min(1024 * cpus, MOST_SHARES)
    weight = whole_number(text(f"{folder}/cpu.weight"), MOST_TIME)
    if weight is not None:
        least = 1 + (shares - 2) * 9999 // (MOST_SHARES - 2)
        return cpus if weight >= least and weight != 100 else None  # noqa: PLR2004 - the default
    weight = whole_number(text(f"{folder}/cpu.shares"), MOST_TIME)
    return cpus if weight is not None and weight >= shares else None


def _limit(folder: str) -> int | None:
    words = text(f"{folder}/cpu.max").split(" ")
    if len(words) != 2:  # noqa: PLR2004 - v1 has them in two files
        words = [text(f"{folder}/cpu.cfs_quota_us"), text(f"{folder}/cpu.cfs_period_us")]
    quota, period = (whole_number(word, MOST_TIME) for word in words)
    if quota is None or not period:  # v2's `max`, v1's -1
        return None
    return -(-quota // period) or None
