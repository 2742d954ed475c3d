"""The GPUs that a process may open, by real device files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.client.process_context import granted_gpus

MAJOR = 240  #: for local use, kernel Documentation/admin-guide/devices.txt: no driver is behind it
DEVICES = Path("/sys/fs/cgroup/devices")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
needs_cgroup = pytest.mark.skipif(
    not os.access(DEVICES, os.W_OK), reason="no cgroup v1 devices to write to"
)

#: Prints what it is granted, after a line that says that it may look.
LOOK = """
import os, sys
from affinityd.client.process_context import granted_gpus
sys.stdin.readline()
{become}
print(granted_gpus("dev", "sys"))
"""
NOBODY = "os.setgroups([]), os.setgid(65534), os.setuid(65534)"


class Machine:
    """A /dev and a /sys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dev, self.sys = folder, folder / "dev", folder / "sys"
        (self.dev / "dri").mkdir(parents=True)
        folder.chmod(0o755)

    def nvidia(self, *minors: int, mode: int = 0o666) -> None:
        for minor in minors:
            self._device(f"nvidia{minor}", minor, mode)

    def render(self, minor: int, vendor: str, mode: int = 0o666) -> None:
        self._device(f"dri/renderD{minor}", minor, mode)
        device = self.sys / f"class/drm/renderD{minor}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")

    def _device(self, name: str, minor: int, mode: int) -> None:
        os.mknod(self.dev / name, stat.S_IFCHR, os.makedev(MAJOR, minor))
        (self.dev / name).chmod(mode)

    @property
    def granted(self) -> str | None:
        return granted_gpus(str(self.dev), str(self.sys))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def seen(machine: Machine, become: str = "", group: Path | None = None) -> str:
    """Return what another process is granted, in a cgroup, or as another user."""
    with subprocess.Popen(
        [sys.executable, "-c", LOOK.format(become=become)],
        cwd=machine.folder,  # others may not go through the folders above it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as child:
        if group is not None:
            (group / "cgroup.procs").write_text(str(child.pid))
        return child.communicate("look\n", timeout=15)[0].strip()


@contextmanager
def device_cgroup(*denied: int) -> Iterator[Path]:
    """Make a cgroup whose processes may not open these minors."""
    folder = DEVICES / f"test-{os.getpid()}"
    folder.mkdir()
    try:
        for minor in denied:
            (folder / "devices.deny").write_text(f"c {MAJOR}:{minor} rwm")
        yield folder
    finally:
        folder.rmdir()


def test_a_machine_without_device_files_tells_nothing(machine: Machine) -> None:
    assert machine.granted is None
    assert granted_gpus("/nonexistent", "/nonexistent") is None


@needs_root
def test_minors_are_told_in_order_of_their_numbers(machine: Machine) -> None:
    machine.nvidia(10, 2, 0)
    assert machine.granted == "minor:0,minor:2,minor:10"


@needs_root
def test_other_files_of_the_driver_are_no_gpus(machine: Machine) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia", "nvidia0x", "nvidia\u0661"):
        (machine.dev / name).touch()
    assert machine.granted is None
    machine.nvidia(3)
    assert machine.granted == "minor:3"


@needs_root
def test_amd_s_render_nodes_are_told_by_their_vendor(machine: Machine) -> None:
    machine.render(129, "0x1002")
    machine.render(128, "0x1a03")
    machine.render(130, "0x1002")
    assert machine.granted == "drm:129,drm:130"


@needs_root
def test_a_render_node_that_sysfs_does_not_know_is_none(machine: Machine) -> None:
    machine.render(128, "0x1002")
    (machine.sys / "class/drm/renderD128/device/vendor").unlink()
    assert machine.granted is None


@needs_root
def test_nvidia_s_files_count_before_render_nodes(machine: Machine) -> None:
    machine.render(128, "0x1002")
    machine.nvidia(1)
    assert machine.granted == "minor:1"


@needs_root
def test_a_file_that_one_may_only_read_is_not_granted(machine: Machine) -> None:
    machine.nvidia(0, mode=0o644)
    machine.nvidia(1)
    machine.nvidia(2, mode=0o600)
    assert seen(machine, NOBODY) == "minor:1"
    assert machine.granted == "minor:0,minor:1,minor:2"


@needs_root
def test_who_may_open_none_of_nvidia_s_has_none(machine: Machine) -> None:
    machine.nvidia(0, 1, mode=0o600)
    assert seen(machine, NOBODY) == "none"


@needs_root
def test_who_may_open_none_of_amd_s_is_only_in_no_group_of_theirs(machine: Machine) -> None:
    machine.render(128, "0x1002", mode=0o660)
    assert seen(machine, NOBODY) == "None"


@needs_root
@needs_cgroup
@pytest.mark.parametrize(
    ("denied", "expected"),
    [((1, 3), "minor:0,minor:2"), ((0, 1, 2, 3), "none"), ((), "minor:0,minor:1,minor:2,minor:3")],
)
def test_a_device_cgroup_is_honoured_even_for_root(
    machine: Machine, denied: tuple[int, ...], expected: str
) -> None:
    machine.nvidia(0, 1, 2, 3)
    with device_cgroup(*denied) as group:
        assert seen(machine, group=group) == expected


@needs_root
@needs_cgroup
def test_a_device_cgroup_hides_render_nodes(machine: Machine) -> None:
    machine.render(128, "0x1002")
    machine.render(129, "0x1002")
    with device_cgroup(128) as group:
        assert seen(machine, group=group) == "drm:129"


@needs_root
def test_nothing_is_opened(machine: Machine) -> None:
    """To open one of these would be ENXIO; to open a real one would wake a driver."""
    machine.nvidia(0)
    with pytest.raises(OSError, match="No such device or address"):
        os.open(machine.dev / "nvidia0", os.O_RDWR)
    assert machine.granted == "minor:0"
