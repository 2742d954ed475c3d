"""Holders by open device files, for drivers that list no processes: Ascend's, and others'.

A file's place in sysfs tells its GPU: /sys/dev/char/MAJ:MIN, kernel
Documentation/ABI/testing/sysfs-dev. Ascend's files have no place there (the driver
calls device_create without a parent): they go by their names. /dev/davinciN is taken to be the
N-th NPU in PCI bus order. Open files: proc_pid_fd(5).
"""

# ruff: noqa: PTH115, PTH116, PTH208 - thousands of files are looked at; pathlib is slower

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.facts.holding import GpuHolders, GpuKey, Holding
from affinityd.linux.files import listed, numbered
from affinityd.linux.processes import INIT
from affinityd.topology.model import Gpu

#: A process that held none is looked at again at every such scan.
EVERY = 8

#: Seconds that a scan may take; new processes and holders that were not reached come next time.
LIMIT = 2.0

ROOT_ONLY = (
    "the open files of other users' processes cannot be read; run this as root (CAP_SYS_PTRACE)"
)
TOO_MANY = f"not all processes' open files were read within {LIMIT:g} s; the next scan continues"
NO_FILE = "its device file is not known; is its driver loaded?"

#: Files of a GPU's that are opened to look after it, not to compute: /dev/accel/accel_controlD0,
#: /dev/hl_controlD0, /dev/i2c-3, /dev/ptp0.
_is_control = re.compile(r"(?:accel_control|hl_control|i2c-|ptp)").match

#: Vendor → names of its device files, before a number, where sysfs does not tell their GPU.
NAMES = {"huawei": "davinci"}

#: The folder of device files, by default; and the files there that most processes have open.
DEV = "/dev/"
COMMON = ("/dev/null", "/dev/pts/", "/dev/shm/", "/dev/tty", "/dev/urandom")  # noqa: S108 - names


@dataclass(frozen=True)
class GpuDeviceFiles:
    """The device files of GPUs."""

    gpu_of: Mapping[int, GpuKey]  #: st_rdev → GPU
    names: frozenset[str]  #: their names in /dev

    def is_one(self, target: str) -> bool:
        """Whether an open file, by its path, may be one of them.

        Files elsewhere by other names are skipped: they may be on a file server that does
        not answer, and stat(2) would wait for it.
        """
        return target.rpartition("/")[2] in self.names or (
            target.startswith(DEV) and not target.startswith(COMMON)
        )


class DeviceFileScanner:
    """Looks through the open files of processes: of holders and new ones at each scan."""

    def __init__(
        self,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._sys, self._dev, self._clock = proc, sys, dev, clock
        self._scan = 0
        self._files = GpuDeviceFiles({}, frozenset())
        self._known: dict[int, bool] = {}  # pid → whether it held a file when it was looked at

    def found(self, gpus: Sequence[Gpu]) -> GpuHolders:
        """Return the holders of the GPUs' files, as far as they can be seen.

        If another process has got a pid since the last scan, it counts as the old one.
        """
        if not gpus:
            return GpuHolders()
        files = device_files(gpus, self._sys, self._dev)
        if files != self._files:
            self._files, self._known = files, {}
        held, skipped = self._look(self._due())
        unknown = {gpu.key: TOO_MANY for gpu in gpus if skipped}
        unknown |= {gpu.key: ROOT_ONLY for gpu in gpus if not _sees_all(self._proc)}
        unknown |= {gpu.key: NO_FILE for gpu in gpus if gpu.key not in files.gpu_of.values()}
        return GpuHolders(tuple(held), unknown, skipped=skipped)

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
        """Return the GPUs of a process, by its open files: containers keep device numbers."""
        folder = f"{self._proc}/{pid}/fd/"
        links = (folder + name for name in listed(folder))
        numbers = {_number(link) for link in links if self._files.is_one(_target(link))}
        return {key for number, key in self._files.gpu_of.items() if number in numbers}


def device_files(gpus: Sequence[Gpu], sys: str = "/sys", dev: str = "/dev") -> GpuDeviceFiles:
    """Return the GPUs' device files: by sysfs, and of those that have no place there, by name."""
    found = list(_by_place(gpus, sys))
    placed = {key for _, _, key in found}
    for gpu in gpus:
        name = f"{NAMES.get(gpu.vendor)}{gpu.index}"
        if gpu.key not in placed and (number := _number(f"{dev}/{name}")) is not None:
            found.append((number, name, gpu.key))
    return GpuDeviceFiles(
        {number: key for number, _, key in found}, frozenset(name for _, name, _ in found)
    )


def _by_place(gpus: Sequence[Gpu], sys: str) -> Iterator[tuple[int, str, GpuKey]]:
    """Yield device number, name and GPU, by links like ../../devices/pci…/0000:c1:00.0/…/accel0."""
    at = {gpu.pci_bus_id: gpu.key for gpu in gpus}
    folder = f"{sys}/dev/char"
    for entry in listed(folder):
        *place, name = _target(f"{folder}/{entry}").split("/")
        key = next((at[part] for part in reversed(place) if part in at), None)
        major, _, minor = entry.partition(":")
        if key is not None and not _is_control(name):
            yield os.makedev(int(major), int(minor)), name, key


def _sees_all(proc: str) -> bool:
    """Whether open files of other users, and of root's first process, can be read."""
    try:
        os.listdir(f"{proc}/{INIT}/fd")
    except OSError:  # without the capabilities; or hidepid= of proc(5)
        return False
    return True


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # it was closed, or the process has ended
        return ""


def _number(path: str) -> int | None:
    """Return the number of a character device; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:  # it was closed, or is not there
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None
