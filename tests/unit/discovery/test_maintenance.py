import os
import shutil
from pathlib import Path

import pytest

from affinityd.discovery.nvml.maintenance import DriverMaintenance
from tests.support.machines.sysfs_tree import put


class Machine:
    """A machine whose driver may be under maintenance; processes are in `proc`."""

    def __init__(self, root: Path) -> None:
        self.root, self.hold = root, root / "hold"
        self.sys, self.proc = root / "sys", root / "proc"
        self._maintenance = DriverMaintenance(*map(str, (self.sys, self.hold, self.proc)))

    @property
    def reason(self) -> str | None:
        return self._maintenance.reason()

    def runs(self, pid: int, command: str, uid: int = 0) -> str:
        """Write the files of a process; return the reason to expect if it works on the driver."""
        words = command.split()
        comm = words[0].rpartition("/")[2][:15]
        put(self.proc / f"{pid}/comm", comm)
        put(self.proc / f"{pid}/status", f"Uid:\t{uid}\t0\t0\t0")
        put(self.proc / f"{pid}/cmdline", "".join(f"{word}\0" for word in words))
        return f"{comm} works on NVIDIA's driver; NVML is asked again when that program has ended"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nvml_is_not_called_until_the_worker_on_the_driver_has_ended(machine: Machine) -> None:
    machine.runs(7, "sh -c")
    assert machine.reason is None
    told = machine.runs(7, "modprobe -r nvidia")  # now a worker
    assert [machine.reason for _ in range(3)] == [told] * 3
    shutil.rmtree(machine.proc / "7")
    assert machine.reason is None


def test_a_zombie_is_no_worker_on_the_driver(machine: Machine) -> None:
    machine.runs(7, "nvidia-mig-parted apply")
    (machine.proc / "7/cmdline").write_bytes(b"")
    assert machine.reason is None


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


@pytest.mark.parametrize("command", [*CHANGES, *CHANGES_NOTHING])
def test_a_command_of_root_that_changes_driver_or_gpu_is_a_worker(
    machine: Machine, command: str
) -> None:
    told = machine.runs(7, command)
    assert machine.reason == (told if command in CHANGES else None)
    machine.runs(7, command, uid=1000)  # any user may use this name
    assert machine.reason is None


@pytest.mark.timeout(30)
def test_the_command_line_of_another_users_process_is_not_read(machine: Machine) -> None:
    machine.runs(7, "nvidia-smi -r", uid=1000)
    (machine.proc / "7/cmdline").unlink()
    os.mkfifo(machine.proc / "7/cmdline")  # a reader waits, as for memory that is locked
    assert machine.reason is None


def test_nvml_is_not_called_while_the_module_is_loaded_or_unloaded(machine: Machine) -> None:
    for state, why in (("going", "NVIDIA's driver is going: it is being replaced"), ("live", None)):
        put(machine.sys / "module/nvidia/initstate", state)
        assert machine.reason == why


def test_a_hold_lasts_as_long_as_its_file_even_if_the_file_is_unreadable(machine: Machine) -> None:
    hold, unreadable = machine.hold, machine.root / "nowhere"
    for text, by in (
        ("", ""),
        ("driver-upgrade.sh\nsince 12:00\n", " by 'driver-upgrade.sh'"),
        ("\x1b[2J\n", r" by '\x1b[2J'"),
        ("x" * 9999, f" by '{'x' * 60}…'"),
    ):
        hold.write_text(text)
        os.utime(hold, (0, 0))
        assert machine.reason == f"NVML calls are on hold{by}, until {hold} is removed"
    hold.unlink()
    assert machine.reason is None
    hold.symlink_to(unreadable)
    assert machine.reason == f"NVML calls are on hold, until {hold} is removed"
    os.mkfifo(unreadable)
    assert machine.reason == f"NVML calls are on hold, until {hold} is removed"
