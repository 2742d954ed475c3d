from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from affinityd.audit.sources.driver_maintenance import DriverMaintenance
from tests.support.machines.sysfs_tree import put


@pytest.fixture
def maintenance(tmp_path: Path) -> DriverMaintenance:
    """Return one for a machine whose processes are in `proc`."""
    return DriverMaintenance(*(str(tmp_path / name) for name in ("sys", "hold", "proc")))


def process(root: Path, pid: int, command: str, uid: int = 0) -> str:
    """Write what is read of a process, and return what is said of one that works on the driver."""
    words = command.split()
    comm = words[0].rpartition("/")[2][:15]
    put(root / f"proc/{pid}/comm", comm)
    put(root / f"proc/{pid}/status", f"Uid:\t{uid}\t0\t0\t0")
    put(root / f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in words))
    return f"{comm} (pid {pid}) works on NVIDIA's driver: until it ends"


def test_a_program_that_works_on_the_driver_keeps_nvml_from_being_asked_until_it_ends(
    maintenance: DriverMaintenance, tmp_path: Path
) -> None:
    process(tmp_path, 7, "sh -c")
    assert maintenance.reason() is None
    told = process(tmp_path, 7, "modprobe -r nvidia")  # it has become one
    assert [maintenance.reason() for _ in range(3)] == [told] * 3
    shutil.rmtree(tmp_path / "proc/7")
    assert maintenance.reason() is None


CHANGES = (
    *("nvidia-mig-parted apply", "./nvidia-installer", "nvidia-uninstall"),
    *("modprobe -r nvidia_uvm", "rmmod nvidia", "insmod /lib/modules/6.1/nvidia.ko"),
    *("driver-manager uninstall_driver", "nvidia-smi --gpu-reset -i 0", "nvidia-smi -i 0 -r"),
    *("nvidia-smi -mig 1", "nvidia-smi --multi-instance-gpu=0", "nvidia-smi mig -cgi 9 -C"),
    "nvidia-smi mig -dci",
)
CHANGES_NOTHING = (
    *("modprobe nfs", "driver-manager preflight_check", "dkms build nvidia/570"),
    *("nvidia-smi dmon -s pucm", "nvidia-smi mig -lgi", "nvidia-driver init"),
    *("nvidia-mig-manager", "nvidia-persistenced"),
)


@pytest.mark.parametrize("command", CHANGES)
def test_a_command_of_roots_that_changes_driver_or_gpu_is_one(
    maintenance: DriverMaintenance, tmp_path: Path, command: str
) -> None:
    told = process(tmp_path, 7, command)
    assert maintenance.reason() == told
    process(tmp_path, 7, command, uid=1000)  # any user may call a program so
    assert maintenance.reason() is None


@pytest.mark.parametrize("command", CHANGES_NOTHING)
def test_a_command_that_changes_nothing_keeps_nvml_from_nothing(
    maintenance: DriverMaintenance, tmp_path: Path, command: str
) -> None:
    process(tmp_path, 7, command)
    assert maintenance.reason() is None


def test_a_module_that_comes_or_goes_is_not_asked(
    maintenance: DriverMaintenance, tmp_path: Path
) -> None:
    for state, why in (("going", "NVIDIA's driver is going: it is being replaced"), ("live", None)):
        put(tmp_path / "sys/module/nvidia/initstate", state)
        assert maintenance.reason() == why


def test_a_hold_lasts_as_long_as_its_file_and_one_that_cannot_be_read_is_one(
    maintenance: DriverMaintenance, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    for text, by in (
        ("", ""),
        ("driver-upgrade.sh\nsince 12:00\n", " by 'driver-upgrade.sh'"),
        ("\x1b[2J\n", r" by '\x1b[2J'"),
        ("x" * 9999, f" by '{'x' * 60}…'"),
    ):
        hold.write_text(text)
        os.utime(hold, (0, 0))
        assert maintenance.reason() == f"NVML is not asked{by}, until {hold} is removed"
    hold.unlink()
    assert maintenance.reason() is None
    hold.symlink_to(tmp_path / "nowhere")
    assert maintenance.reason() == f"NVML is not asked, until {hold} is removed"
    os.mkfifo(tmp_path / "nowhere")
    assert maintenance.reason() == f"NVML is not asked, until {hold} is removed"
