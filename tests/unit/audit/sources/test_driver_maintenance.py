from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from affinityd.audit.sources.driver_maintenance import WORKERS, DriverMaintenance
from tests.support.children import program
from tests.support.daemons import eventually
from tests.support.machines.sysfs_tree import put

BECOMING = """
import os, sys
print("ready", flush=True)
input()
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def maintenance(tmp_path: Path) -> DriverMaintenance:
    """Return one for a machine without processes."""
    return DriverMaintenance(str(tmp_path / "sys"), str(tmp_path / "hold"), "/none")


def among(proc: Path) -> DriverMaintenance:
    """Return one for a machine with these processes."""
    return DriverMaintenance(str(proc), str(proc / "hold"), str(proc))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program that is taken for one that changes drivers, here and in no other test."""
    path = tmp_path / f"works{os.getpid()}"
    shutil.copy("/bin/sleep", path)
    monkeypatch.setitem(WORKERS, path.name.encode(), re.compile(b"").search)
    return path


def test_on_a_quiet_machine_nvml_may_be_asked(maintenance: DriverMaintenance) -> None:
    assert maintenance.reason() is None


def test_who_works_on_the_driver_keeps_nvml_from_being_asked(
    worker: Path, maintenance: DriverMaintenance
) -> None:
    looking = DriverMaintenance(sys=maintenance._sys, hold=maintenance._hold)
    assert looking.reason() is None
    with subprocess.Popen([worker, "1000"]) as child:
        try:
            comm = Path(f"/proc/{child.pid}/comm")
            eventually(lambda: comm.read_text() == f"{worker.name}\n", "it runs")
            told = f"{worker.name} (pid {child.pid}) works on NVIDIA's driver: until it ends"
            assert [
                looking.reason(),
                looking.reason(),
                looking.reason(),
            ] == [told] * 3
        finally:
            child.kill()
    assert looking.reason() is None


def test_who_becomes_such_a_program_after_it_was_first_seen_is_one(
    worker: Path, maintenance: DriverMaintenance
) -> None:
    looking = DriverMaintenance(sys=maintenance._sys, hold=maintenance._hold)
    with program(BECOMING, os.fspath(worker), "1000") as child:
        assert looking.reason() is None
        assert child.stdin is not None
        print(file=child.stdin, flush=True)
        comm = Path(f"/proc/{child.pid}/comm")
        eventually(lambda: comm.read_text() == f"{worker.name}\n", "it has become the other")
        assert f"(pid {child.pid})" in (looking.reason() or "")


@pytest.mark.parametrize(
    ("comm", "words"),
    [
        pytest.param(
            "nvidia-mig-part",
            ["nvidia-mig-parted", "apply"],
            id="NVIDIA's MIG Partition Editor",
        ),
        pytest.param("nvidia-installe", ["./nvidia-installer"], id="NVIDIA's .run file"),
        pytest.param("nvidia-uninstal", ["nvidia-uninstall"], id="its other name"),
        pytest.param("modprobe", ["modprobe", "-r", "nvidia_uvm"], id="a module goes"),
        pytest.param("rmmod", ["rmmod", "nvidia"], id="the module goes"),
        pytest.param("insmod", ["insmod", "/lib/modules/6.1/nvidia.ko"], id="the module comes"),
        pytest.param("driver-manager", ["driver-manager", "uninstall_driver"], id="GPU Operator"),
        pytest.param("nvidia-smi", ["nvidia-smi", "--gpu-reset", "-i", "0"], id="a reset"),
        pytest.param("nvidia-smi", ["nvidia-smi", "-i", "0", "-r"], id="a reset, in short"),
        pytest.param("nvidia-smi", ["nvidia-smi", "-mig", "1"], id="MIG goes on"),
        pytest.param("nvidia-smi", ["nvidia-smi", "--multi-instance-gpu=0"], id="MIG goes off"),
        pytest.param("nvidia-smi", ["nvidia-smi", "mig", "-cgi", "9", "-C"], id="a GPU instance"),
        pytest.param("nvidia-smi", ["nvidia-smi", "mig", "-dci"], id="no compute instances"),
    ],
)
def test_a_command_that_changes_driver_or_gpu_is_one(
    tmp_path: Path, comm: str, words: list[str]
) -> None:
    process(tmp_path, 7, comm, words)
    reason = among(tmp_path).reason()
    assert reason == f"{comm} (pid 7) works on NVIDIA's driver: until it ends"


@pytest.mark.parametrize(
    ("comm", "words"),
    [
        pytest.param("modprobe", ["modprobe", "nfs"], id="another module"),
        pytest.param("driver-manager", ["driver-manager", "preflight_check"], id="a check"),
        pytest.param("nvidia-smi", ["nvidia-smi", "dmon", "-s", "pucm"], id="a look"),
        pytest.param("nvidia-smi", ["nvidia-smi", "mig", "-lgi"], id="a list of instances"),
        pytest.param("nvidia-driver", ["/bin/bash", "nvidia-driver", "init"], id="its container"),
        pytest.param("nvidia-mig-mana", ["nvidia-mig-manager"], id="the MIG manager waits"),
        pytest.param("nvidia-persiste", ["nvidia-persistenced"], id="the persistence daemon"),
        pytest.param("dkms", ["dkms", "build", "nvidia/570"], id="a module is being built"),
        pytest.param("nvidia-modeset/", [], id="a thread of the kernel's"),
    ],
)
def test_a_command_that_changes_nothing_keeps_nobody_from_asking(
    tmp_path: Path, comm: str, words: list[str]
) -> None:
    process(tmp_path, 7, comm, words)
    assert among(tmp_path).reason() is None


@pytest.mark.parametrize(("uid", "is_one"), [(0, True), (1000, False)])
def test_a_user_who_calls_a_program_so_keeps_nobody_from_asking(
    tmp_path: Path, uid: int, is_one: bool
) -> None:
    process(tmp_path, 7, "nvidia-mig-part", ["nvidia-mig-parted"], uid)
    reason = among(tmp_path).reason()
    assert (reason is not None) == is_one


def process(proc: Path, pid: int, comm: str, words: list[str], uid: int = 0) -> None:
    """Write what is read of a process; modprobe's and its like's names are the kernel's to run."""
    put(proc / f"{pid}/comm", comm)
    put(proc / f"{pid}/status", f"Uid:\t{uid}\t0\t0\t0")
    (proc / f"{pid}/cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


@pytest.mark.parametrize("state", ["coming", "going"])
def test_a_module_that_comes_or_goes_is_not_asked(
    maintenance: DriverMaintenance, tmp_path: Path, state: str
) -> None:
    put(tmp_path / "sys/module/nvidia/initstate", state)
    assert maintenance.reason() == f"NVIDIA's driver is {state}: it is being exchanged"
    put(tmp_path / "sys/module/nvidia/initstate", "live")
    assert maintenance.reason() is None


@pytest.mark.parametrize(
    ("text", "by"),
    [
        pytest.param("", "", id="who does not say its name"),
        pytest.param("driver-upgrade.sh\nsince 12:00\n", " by 'driver-upgrade.sh'", id="a hook"),
        pytest.param("\x1b[2J\n", r" by '\x1b[2J'", id="one that would clear the screen"),
        pytest.param("x" * 9999, f" by '{'x' * 60}…'", id="one that writes too much"),
    ],
)
def test_a_hold_lasts_as_long_as_its_file(
    maintenance: DriverMaintenance, tmp_path: Path, text: str, by: str
) -> None:
    hold = tmp_path / "hold"
    hold.write_text(text)
    os.utime(hold, (0, 0))
    assert maintenance.reason() == f"NVML is held off{by}, until {hold} is removed"
    hold.unlink()
    assert maintenance.reason() is None


def test_a_hold_that_cannot_be_read_is_one(maintenance: DriverMaintenance, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    assert maintenance.reason() == f"NVML is held off, until {hold} is removed"
    hold.unlink()
    hold.symlink_to(tmp_path / "nowhere")
    assert maintenance.reason() == f"NVML is held off, until {hold} is removed"
