"""Open device files by a made /proc, whose links lead to devices that every machine has."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources import holders as device_files
from affinityd.audit.sources.holders import DeviceFileScanner, GpuDeviceFiles
from affinityd.topology.model import Gpu

FULL, RANDOM = "/dev/full", "/dev/random"
NUMBERS = (os.makedev(1, 7), os.makedev(1, 8))

NPUS = tuple(Gpu(index, "huawei", f"0000:c{index}:00.0", numa_node=0) for index in range(2))
FIRST, SECOND = (gpu.key for gpu in NPUS)
ACCELERATOR = Gpu(0, "8086", "0000:c1:00.0", numa_node=0)


class Machine:
    """A /proc whose processes hold files open, a /dev with the files of two NPUs, and no /sys."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self.dev = (root / name for name in ("proc", "sys", "dev"))
        self.dev.mkdir()
        for index, device in enumerate((FULL, RANDOM)):
            (self.dev / f"davinci{index}").symlink_to(device)
        self.holds(1)

    def holds(self, pid: int, *files: Path | str) -> None:
        folder = self.proc / f"{pid}/fd"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, file in enumerate(files):
            (folder / f"{number}").symlink_to(file)

    def scanner(self, step: float = 0.0) -> DeviceFileScanner:
        """Return a scanner to which so many seconds pass between two looks at the clock."""
        proc, sys, dev = map(os.fspath, (self.proc, self.sys, self.dev))
        return DeviceFileScanner(proc, sys, dev, clock=count(0.0, step).__next__)

    def files(self, *gpus: Gpu) -> GpuDeviceFiles:
        return device_files.device_files(gpus, os.fspath(self.sys), os.fspath(self.dev))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def held(scanner: DeviceFileScanner) -> list[tuple[int, int]]:
    """Return the holders, each with the index of a GPU."""
    return sorted((it.pid, it.gpu[1]) for it in scanner.found(NPUS).holdings)


def test_a_process_that_holds_a_gpus_file_by_its_number_is_found(machine: Machine) -> None:
    machine.holds(7, machine.dev / "davinci0")
    machine.holds(8, "/dev/null", FULL, RANDOM, "socket:[4711]")
    machine.holds(9, "/dev/zero", machine.dev / "davinci_manager")
    container = machine.dev.parent / "rootfs/dev/davinci1"
    container.parent.mkdir(parents=True)
    container.symlink_to(RANDOM)
    machine.holds(10, container)
    found = machine.scanner().found(NPUS)
    pairs = (7, FIRST), (8, FIRST), (8, SECOND), (10, SECOND)
    assert {*found.holdings} == {Holding(*pair) for pair in pairs}
    assert (found.unknown, found.skipped) == ({}, 0)


def test_sysfs_tells_which_file_is_whose_or_else_the_name_does(machine: Machine) -> None:
    folder = machine.sys / "dev/char"
    folder.mkdir(parents=True)
    at = "../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0"
    for number, target in (
        ("1:7", f"{at}/accel/accel0"),
        ("1:8", f"{at}/accel_control/accel_controlD0"),
        ("1:9", f"{at}/i2c-3/i2c-dev/i2c-3"),
        ("13:63", "../../devices/pci0000:c0/0000:c0:02.0/input/mice"),
    ):
        (folder / number).symlink_to(target)
    its = GpuDeviceFiles({NUMBERS[0]: ACCELERATOR.key}, frozenset({"accel0"}))
    assert machine.files(ACCELERATOR) == its
    (machine.dev / "davinci0").unlink()
    (machine.dev / "davinci0").touch()  # what is no device is no GPU's
    npus = (replace(NPUS[0], pci_bus_id="0000:c1:00.0"), replace(NPUS[1], pci_bus_id="x"))
    assert machine.files(*npus).gpu_of == {NUMBERS[0]: FIRST, NUMBERS[1]: SECOND}
    assert machine.files(NPUS[0]) == GpuDeviceFiles({}, frozenset())


def test_of_a_gpu_without_a_file_or_without_rights_nothing_is_known(machine: Machine) -> None:
    found = machine.scanner().found((*NPUS, ACCELERATOR))
    assert found == GpuHolders(unknown={ACCELERATOR.key: device_files.NO_FILE})
    shutil.rmtree(machine.proc / "1")  # as hidepid= hides it
    machine.holds(7, FULL)
    unknown = {FIRST: device_files.ROOT_ONLY, SECOND: device_files.ROOT_ONLY}
    assert machine.scanner().found(NPUS) == GpuHolders((Holding(7, FIRST),), unknown)


def test_a_scan_that_takes_too_long_is_gone_on_with_the_next_time(machine: Machine) -> None:
    """By a clock that goes on by a second at each look: one process is reached in a scan."""
    for pid in (7, 8, 9):
        machine.holds(pid, FULL)
    scanner = machine.scanner(step=1.0)
    first = scanner.found(NPUS)
    assert (first.skipped, set(first.unknown.values())) == (3, {device_files.TOO_MANY})
    assert {pid for _ in range(8) for pid, _ in held(scanner)} == {7, 8, 9}
