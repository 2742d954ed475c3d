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
from affinityd.audit.sources.gpu_files import GpuDeviceFiles, device_files
from affinityd.audit.sources.result import SourceResult
from affinityd.linux.files import listed, numbered
from affinityd.linux.processes import INIT
from affinityd.topology.model import Gpu

#: A process that held none is looked at again at every such scan.
EVERY = 8

#: Seconds that a scan may take; new processes and holders that were not reached come next time.
LIMIT = 2.0

ROOT_ONLY = "the open files of other users' processes cannot be read; ask as root (CAP_SYS_PTRACE)"
TOO_MANY = f"not all processes' open files were looked at within {LIMIT:g} s; the next scan goes on"
NO_FILE = "no device file is known to be its; is its driver loaded?"


class DeviceFileScanner:
    """Looks through the open files of processes: of holders and new ones at each scan."""

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
        self._known: dict[int, bool] = {}  # pid → whether it held a file when it was looked at

    def found(self, gpus: Sequence[Gpu]) -> SourceResult:
        """Return the holders of the GPUs' files, as far as they can be seen.

        A pid that another process has got since the last scan is taken to be the one that was.
        """
        if not gpus:
            return SourceResult()
        files = device_files(gpus, self._sys, self._dev)
        if files != self._files:
            self._files, self._known = files, {}
        held, skipped = self._look(self._due())
        unknown = {gpu.key: TOO_MANY for gpu in gpus if skipped}
        unknown |= {gpu.key: ROOT_ONLY for gpu in gpus if not _sees_all(self._proc)}
        unknown |= {gpu.key: NO_FILE for gpu in gpus if gpu.key not in files.gpu_of.values()}
        return SourceResult(tuple(held), unknown, skipped)

    def _due(self) -> list[int]:
        """Return the processes to look at: new ones, holders, and of the others a part."""
        self._scan += 1
        there = numbered(self._proc)
        self._known = {pid: self._known[pid] for pid in there if pid in self._known}
        holders = [pid for pid, held in self._known.items() if held]
        new = [pid for pid in there if pid not in self._known]
        turn = self._scan % EVERY
        others = [pid for pid, held in self._known.items() if not held and pid % EVERY == turn]
        return [*new, *holders, *others]

    def _look(self, pids: list[int]) -> tuple[list[Holding], int]:
        """Return the holders, and how many processes were not reached."""
        end = self._clock() + LIMIT
        held: list[Holding] = []
        for place, pid in enumerate(pids):
            if self._clock() >= end:
                return held, len(pids) - place
            keys = self._keys(pid)
            held += [Holding(pid, key) for key in keys]
            self._known[pid] = bool(keys)
        return held, 0

    def _keys(self, pid: int) -> set[GpuKey]:
        """Return the GPUs whose files a process holds; none where it has ended."""
        folder = f"{self._proc}/{pid}/fd/"
        targets = ((_target(folder + name), name) for name in listed(folder))
        may_be = [name for target, name in targets if self._files.is_one(target)]
        return {key for name in may_be if (key := self._key(folder + name)) is not None}

    def _key(self, link: str) -> GpuKey | None:
        """Return the GPU that an open file is of; device numbers are the same in containers."""
        try:
            found = os.stat(link)
        except OSError:  # it was closed
            return None
        return self._files.gpu_of.get(found.st_rdev) if stat.S_ISCHR(found.st_mode) else None


def _sees_all(proc: str) -> bool:
    """Whether other users' open files can be read, those of root's first process as well."""
    try:
        os.listdir(f"{proc}/{INIT}/fd")
    except OSError:  # without the capabilities; or hidepid= of proc(5)
        return False
    return True


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # it was closed
        return ""
