"""The holders of GPUs' device files, where a driver names no processes: Ascend's, and others'.

Source: proc_pid_fd(5).
"""

# ruff: noqa: PTH115, PTH116, PTH208 - thousands of files are looked at; pathlib is slower

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence

from affinityd.audit.model import GpuKey, Holding
from affinityd.audit.sources.found import SourceResult
from affinityd.audit.sources.gpu_files import GpuDeviceFiles, device_files
from affinityd.linux.files import listed
from affinityd.topology.model import Gpu

#: A process that held none is looked at again after so many scans, and then after so many, always.
INTERVALS = (4, 16)

#: Seconds that a scan may take; a process that was not reached is looked at in the next.
LIMIT = 2.0

#: The first process of every pid namespace: where it is not seen, others are hidden, too.
INIT = "1"

ROOT_ONLY = "the open files of other users' processes cannot be read; ask as root (CAP_SYS_PTRACE)"
TOO_MANY = f"not all processes' open files were looked at within {LIMIT:g} s; the next scan goes on"
NO_FILE = "no device file is known to be its; is its driver loaded?"


class DeviceFileScanner:
    """Looks through the open files of all processes, at those that held none ever less often."""

    def __init__(
        self,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with every process unseen."""
        self._proc, self._sys, self._dev, self._clock = proc, sys, dev, clock
        self._scan = 0
        self._files = GpuDeviceFiles({}, frozenset())
        #: pid → the scan at which it is looked at again, and how often it held none so far
        self._next_looks: dict[str, tuple[int, int]] = {}
        self._refused: set[str] = set()

    def found(self, gpus: Sequence[Gpu]) -> SourceResult:
        """Return the holders of the GPUs' files, as far as they can be seen.

        A pid that another process has got since the last scan is taken to be the one that was.
        """
        if not gpus:
            return SourceResult()
        files = device_files(gpus, self._sys, self._dev)
        if files != self._files:
            self._files, self._next_looks = files, {}
        self._scan += 1
        there = {name for name in listed(self._proc) if name.isdigit()}
        self._refused &= there
        held, skipped = self._look(self._due(there))
        unseen = self._refused or INIT not in there  # hidepid= of proc(5)
        unknown = {gpu.key: TOO_MANY for gpu in gpus if skipped}
        unknown |= {gpu.key: ROOT_ONLY for gpu in gpus if unseen}
        unknown |= {gpu.key: NO_FILE for gpu in gpus if gpu.key not in files.gpu_of.values()}
        return SourceResult(tuple(held), unknown, skipped)

    def _due(self, there: set[str]) -> list[str]:
        """Return the processes to look at, new ones last, behind the longest waiting."""
        for pid in self._next_looks.keys() - there:
            del self._next_looks[pid]
        new = there - self._next_looks.keys()
        due = [pid for pid, (scan, _) in self._next_looks.items() if scan <= self._scan]
        return [*sorted(due, key=lambda pid: self._next_looks[pid][0], reverse=True), *new]

    def _look(self, pids: list[str]) -> tuple[list[Holding], int]:
        """Return the holders, and how many processes were not reached."""
        end = self._clock() + LIMIT
        held: list[Holding] = []
        while pids and self._clock() < end:
            pid = pids.pop()
            keys = self._keys(pid)
            held += [Holding(int(pid), key) for key in keys]
            _, in_vain = self._next_looks.get(pid, (0, 0))
            wait = 1 if keys else _wait(in_vain, int(pid))
            self._next_looks[pid] = self._scan + wait, 0 if keys else in_vain + 1
        return held, len(pids)

    def _keys(self, pid: str) -> set[GpuKey]:
        """Return the GPUs whose files a process holds."""
        folder = f"{self._proc}/{pid}/fd/"
        try:
            names = os.listdir(folder)
        except PermissionError:
            self._refused.add(pid)
            return set()
        except OSError:  # it has ended
            return set()
        self._refused.discard(pid)
        targets = ((_target(folder + name), name) for name in names)
        may_be = [name for target, name in targets if self._files.is_one(target)]
        return {key for name in may_be if (key := self._key(folder + name)) is not None}

    def _key(self, link: str) -> GpuKey | None:
        """Return the GPU that an open file is of; device numbers are the same in containers."""
        try:
            found = os.stat(link)
        except OSError:  # it was closed
            return None
        return self._files.gpu_of.get(found.st_rdev) if stat.S_ISCHR(found.st_mode) else None


def _wait(in_vain: int, pid: int) -> int:
    """Return after how many scans to look again; not all that began together come together."""
    interval = INTERVALS[min(in_vain, len(INTERVALS) - 1)]
    return interval + (pid % interval if in_vain < len(INTERVALS) else 0)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # it was closed
        return ""
