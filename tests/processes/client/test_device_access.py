"""The GPUs that a process may open, by real device files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.client.process_context import granted_gpus

MAJOR = 240  #: for local use, kernel Documentation/admin-guide/devices.txt: no driver is behind it
DEVICES = Path("/sys/fs/cgroup/devices")
AMD, ASPEED = "0x1002", "0x1a03"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
needs_cgroup = pytest.mark.skipif(
    not os.access(DEVICES, os.W_OK), reason="no cgroup v1 devices to write to"
)

#: Looks as another user, where that is said.
LOOK = """
import os, sys
from affinityd.client.process_context import granted_gpus
if user := int(sys.argv[1]):
    os.setgroups([]), os.setgid(user), os.setuid(user)
print(granted_gpus("dev", "sys"))
"""
NOBODY = 65534


class Machine:
    """A /dev and a /sys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dev, self.sys = folder, folder / "dev", folder / "sys"
        (self.dev / "dri").mkdir(parents=True)
        folder.chmod(0o755)

    def nvidia(self, *minors: int, mode: int = 0o666) -> None:
        for minor in minors:
            self._device(f"nvidia{minor}", minor, mode)

    def render(self, minor: int, vendor: str | None = AMD, mode: int = 0o666) -> None:
        self._device(f"dri/renderD{minor}", minor, mode)
        device = self.sys / f"class/drm/renderD{minor}/device"
        device.mkdir(parents=True)
        if vendor:
            (device / "vendor").write_text(f"{vendor}\n")

    def _device(self, name: str, minor: int, mode: int) -> None:
        os.mknod(self.dev / name, stat.S_IFCHR, os.makedev(MAJOR, minor))
        (self.dev / name).chmod(mode)

    @property
    def granted(self) -> str | None:
        return granted_gpus(str(self.dev), str(self.sys))

    def granted_to(self, user: int = 0, before: Sequence[str] = ()) -> str:
        """Return what another process is granted, as a user or started by a command."""
        return subprocess.check_output(
            [*before, sys.executable, "-c", LOOK, str(user)],
            cwd=self.folder,  # others may not go through the folders above it
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        ).strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@contextmanager
def device_cgroup(*denied: int) -> Iterator[Sequence[str]]:
    """Yield the command that starts another in a cgroup that may not open these minors."""
    folder = DEVICES / f"test-{os.getpid()}"
    folder.mkdir()
    try:
        for minor in denied:
            (folder / "devices.deny").write_text(f"c {MAJOR}:{minor} rwm")
        yield ("/bin/sh", "-c", f'echo $$ >{folder}/cgroup.procs; exec "$@"', "sh")
    finally:
        folder.rmdir()


def test_nvidia_s_minors_are_told_in_order_and_before_the_render_nodes_of_amd_s_vendor(
    machine: Machine,
) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia", "nvidia0x", "nvidia\u0661"):
        (machine.dev / name).touch()
    assert machine.granted is None
    for minor, vendor in ((129, AMD), (128, ASPEED), (130, AMD), (131, None)):
        machine.render(minor, vendor)
    assert machine.granted == "drm:129,drm:130"
    machine.nvidia(10, 2, 0)
    assert machine.granted == "minor:0,minor:2,minor:10"


def test_a_file_that_may_only_be_read_is_not_granted(machine: Machine) -> None:
    machine.nvidia(0, mode=0o644)
    machine.nvidia(1)
    assert machine.granted_to(NOBODY) == "minor:1"
    assert machine.granted == "minor:0,minor:1"


def test_of_nvidia_s_files_none_to_be_opened_are_none_and_of_amd_s_nothing_is_known(
    machine: Machine,
) -> None:
    """AMD's may be closed to a user that is only in no group of theirs."""
    machine.render(128, mode=0o660)
    assert machine.granted_to(NOBODY) == "None"
    machine.nvidia(0, 1, mode=0o600)
    assert machine.granted_to(NOBODY) == "none"


@needs_cgroup
def test_a_device_cgroup_is_honored_even_for_root(machine: Machine) -> None:
    machine.render(128)
    machine.render(129)
    with device_cgroup(0, 1, 128) as before:
        assert machine.granted_to(before=before) == "drm:129"
        machine.nvidia(0, 1)
        assert machine.granted_to(before=before) == "none"
        machine.nvidia(2)
        assert machine.granted_to(before=before) == "minor:2"


def test_nothing_is_opened(machine: Machine) -> None:
    """To open one of these would be ENXIO; to open a real one would wake a driver."""
    machine.nvidia(0)
    with pytest.raises(OSError, match="No such device or address"):
        os.open(machine.dev / "nvidia0", os.O_RDWR)
    assert machine.granted == "minor:0"
