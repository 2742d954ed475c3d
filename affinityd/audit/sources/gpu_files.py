"""The device files of each GPU, where a driver names no processes: Ascend's, and others'.

A file's place in sysfs tells: /sys/dev/char/MAJ:MIN, kernel Documentation/ABI/testing/sysfs-dev.
Ascend's driver gives its files no place (it calls device_create without a parent): they go by their
names, /dev/davinciN being the N-th NPU, which is taken to be the N-th in PCI bus order.
"""

# ruff: noqa: PTH115, PTH116 - looked at in every scan; pathlib is slower

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.model import GpuKey
from affinityd.linux.files import listed
from affinityd.topology.model import Gpu

#: Files of a GPU's that are opened to look after it, not to compute: /dev/accel/accel_controlD0,
#: /dev/hl_controlD0, /dev/i2c-3, /dev/ptp0.
_is_control = re.compile(r"(?:accel_control|hl_control|i2c-|ptp)").match

#: Vendor → what its device files are called, before a number, where sysfs does not tell their GPU.
NAMES = {"huawei": "davinci"}

#: Where every device's file is, by default; and what most processes have open there.
DEV = "/dev/"
COMMON = ("/dev/null", "/dev/pts/", "/dev/shm/", "/dev/tty", "/dev/urandom")  # noqa: S108 - names


@dataclass(frozen=True)
class GpuDeviceFiles:
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


def device_files(gpus: Sequence[Gpu], sys: str = "/sys", dev: str = "/dev") -> GpuDeviceFiles:
    """Return the GPUs' device files: by sysfs, and of those that have no place there, by name."""
    by_place = list(_by_place(gpus, sys))
    placed = {key for _, _, key in by_place}
    by_name = _by_name([gpu for gpu in gpus if gpu.key not in placed], dev)
    all_files = [*by_place, *by_name]
    return GpuDeviceFiles(
        {number: key for number, _, key in all_files}, frozenset(name for _, name, _ in all_files)
    )


def _by_place(gpus: Sequence[Gpu], sys: str) -> Iterator[tuple[int, str, GpuKey]]:
    """Yield device number, name and GPU, by links like ../../devices/pci…/0000:c1:00.0/…/accel0."""
    at = {gpu.pci_bus_id: gpu.key for gpu in gpus}
    folder = f"{sys}/dev/char"
    for entry in listed(folder):
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
