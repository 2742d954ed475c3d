"""Who holds the device files of GPUs whose driver tells of no processes: Ascend's, and others'.

Which GPU a file is of, its place in sysfs tells: /sys/dev/char/MAJ:MIN, kernel
Documentation/ABI/testing/sysfs-dev. Ascend's driver gives its files no place (it calls
device_create without a parent): they go by their names, /dev/davinciN being the N-th NPU, which is
taken to be the N-th in PCI bus order.
"""

# ruff: noqa: PTH115, PTH116, PTH208 - thousands of files are looked at; pathlib is slower

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.found import Found
from affinityd.audit.model import GpuKey, Holding
from affinityd.topology import Gpu

#: A process that held none is looked at again after so many scans, and then after so many, always.
INTERVALS = (4, 16)

#: Seconds that a scan may take; who was not reached is looked at in the next.
LIMIT = 2.0

#: Files of a GPU's that are opened to look after it, not to compute: /dev/accel/accel_controlD0,
#: /dev/hl_controlD0, /dev/i2c-3, /dev/ptp0.
_is_control = re.compile(r"(?:accel_control|hl_control|i2c-|ptp)").match

#: Vendor → what its device files are called, before a number, where sysfs does not tell their GPU.
NAMES = {"huawei": "davinci"}

#: Where every device's file is, unless somebody moves it; and what most processes have open there.
DEV = "/dev/"
COMMON = ("/dev/null", "/dev/pts/", "/dev/shm/", "/dev/tty", "/dev/urandom")  # noqa: S108 - names

#: Sees the files of all who are to be seen: the first process of every pid namespace.
INIT = "1"

ROOT_ONLY = "the open files of other users' processes cannot be read; ask as root (CAP_SYS_PTRACE)"
NO_FILE = "no device file is known to be its; is its driver loaded?"


@dataclass(frozen=True)
class Files:
    """The device files of GPUs."""

    gpu_of: Mapping[int, GpuKey]  #: st_rdev → GPU
    names: frozenset[str]  #: what they are called in /dev

    def is_one(self, target: str) -> bool:
        """Whether an open file, by its path, may be one of them.

        What is elsewhere by another name is not looked at: it may lie on a file server that does
        not answer, and stat(2) would wait for it.
        """
        return target.rpartition("/")[2] in self.names or (
            target.startswith(DEV) and not target.startswith(COMMON)
        )


class DeviceFiles:
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
        self._files = Files({}, frozenset())
        #: pid → the scan at which it is looked at again, and how often it held none so far
        self._turns: dict[str, tuple[int, int]] = {}
        self._refused: set[str] = set()

    def found(self, gpus: Sequence[Gpu]) -> Found:
        """Return who holds the GPUs' files, as far as that can be seen.

        A pid that another process has got since the last scan is taken to be the one that was.
        """
        if not gpus:
            return Found()
        files = device_files(gpus, self._sys, self._dev)
        if files != self._files:
            self._files, self._turns = files, {}
        self._scan += 1
        listed = {name for name in _list(self._proc) if name.isdigit()}
        self._refused &= listed
        held, skipped = self._look(self._whose_turn(listed))
        unseen = self._refused or INIT not in listed  # hidepid= of proc(5)
        unknown = {gpu.key: ROOT_ONLY for gpu in gpus if unseen}
        unknown |= {gpu.key: NO_FILE for gpu in gpus if gpu.key not in files.gpu_of.values()}
        return Found(tuple(held), unknown, skipped)

    def _whose_turn(self, listed: set[str]) -> list[str]:
        """Return whom to look at, the new ones last, who waits longest before; forget the ended."""
        for pid in self._turns.keys() - listed:
            del self._turns[pid]
        new = listed - self._turns.keys()
        due = [pid for pid, (scan, _) in self._turns.items() if scan <= self._scan]
        return [*sorted(due, key=lambda pid: self._turns[pid][0], reverse=True), *new]

    def _look(self, pids: list[str]) -> tuple[list[Holding], int]:
        """Return who holds which GPU, and how many were not reached."""
        end = self._clock() + LIMIT
        held: list[Holding] = []
        while pids and self._clock() < end:
            pid = pids.pop()
            keys = self._keys(pid)
            held += [Holding(int(pid), key) for key in keys]
            _, in_vain = self._turns.get(pid, (0, 0))
            wait = 1 if keys else _wait(in_vain, int(pid))
            self._turns[pid] = self._scan + wait, 0 if keys else in_vain + 1
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


def device_files(gpus: Sequence[Gpu], sys: str = "/sys", dev: str = "/dev") -> Files:
    """Return the GPUs' device files: by sysfs, and of those that have no place there, by name."""
    by_place = list(_by_place(gpus, sys))
    placed = {key for _, _, key in by_place}
    by_name = _by_name([gpu for gpu in gpus if gpu.key not in placed], dev)
    all_files = [*by_place, *by_name]
    return Files(
        {number: key for number, _, key in all_files}, frozenset(name for _, name, _ in all_files)
    )


def _by_place(gpus: Sequence[Gpu], sys: str) -> Iterator[tuple[int, str, GpuKey]]:
    """Yield device number, name and GPU, by links like ../../devices/pci…/0000:c1:00.0/…/accel0."""
    at = {gpu.pci_bus_id: gpu.key for gpu in gpus}
    folder = f"{sys}/dev/char"
    for entry in _list(folder):
        try:
            *place, name = os.readlink(f"{folder}/{entry}").split("/")
        except OSError:
            continue
        key = next((at[part] for part in reversed(place) if part in at), None)
        major, _, minor = entry.partition(":")
        if key is not None and not _is_control(name):
            yield os.makedev(int(major), int(minor)), name, key


def _by_name(gpus: Sequence[Gpu], dev: str) -> Iterator[tuple[int, str, GpuKey]]:
    for gpu in gpus:
        name = f"{NAMES.get(gpu.vendor)}{gpu.index}"
        try:
            found = os.stat(f"{dev}/{name}")
        except OSError:
            continue
        if stat.S_ISCHR(found.st_mode):
            yield found.st_rdev, name, gpu.key


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # it was closed
        return ""


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
