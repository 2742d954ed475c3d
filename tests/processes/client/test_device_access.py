"""The GPUs that a process may open, by real device files."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from affinityd.client.process import ProcessContext, mps_daemon

#: For local use, kernel Documentation/admin-guide/devices.txt: no driver serves it, so opening
#: such a file is an error. Opening a real device file would wake a driver.
MAJOR = 240
DEVICES = Path("/sys/fs/cgroup/devices")
AMD, ASPEED, INTEL, HABANA = "0x1002", "0x1a03", "0x8086", "0x1da3"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
needs_cgroup = pytest.mark.skipif(
    not os.access(DEVICES, os.W_OK), reason="no cgroup v1 devices to write to"
)

#: Prints the GPUs that root may open, and those that a user outside the files' groups may open.
LOOK = """
import os
from affinityd.client.process import granted_gpus
print(granted_gpus("dev", "sys"))
os.setgroups([]), os.setgid(65534), os.setuid(65534)
print(granted_gpus("dev", "sys"))
"""


def nvidia(machine: Path, *minors: int, mode: int = 0o666) -> None:
    for minor in minors:
        _device(machine / f"dev/nvidia{minor}", minor, mode)


def render(machine: Path, minor: int, vendor: str = AMD, mode: int = 0o666) -> None:
    _device(machine / f"dev/dri/renderD{minor}", minor, mode)
    device = machine / f"sys/class/drm/renderD{minor}/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")


def _device(path: Path, minor: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(MAJOR, minor))
    path.chmod(mode)


def granted(machine: Path, before: Sequence[str] = ()) -> list[str]:
    machine.chmod(0o755)
    return subprocess.check_output(
        [*before, sys.executable, "-c", LOOK],
        cwd=machine,  # others may not go through the folders above it
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ).split()


def test_nvidia_s_minors_take_precedence_over_amd_s_render_nodes(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia", "nvidia0x", "nvidia\u0661"):
        (tmp_path / "dev" / name).touch()
    assert granted(tmp_path) == ["None"] * 2
    for minor, vendor in ((129, AMD), (128, ASPEED), (130, AMD), (131, "")):
        render(tmp_path, minor, vendor)
    assert granted(tmp_path) == ["drm:129,drm:130"] * 2
    nvidia(tmp_path, 10, 2, 0)
    assert granted(tmp_path) == ["minor:0,minor:2,minor:10"] * 2


def test_device_files_of_other_vendors_are_read_by_their_numbers(tmp_path: Path) -> None:
    for minor, vendor in ((128, INTEL), (129, ASPEED), (130, INTEL)):
        render(tmp_path, minor, vendor)
    assert granted(tmp_path) == ["drm:128,drm:130"] * 2
    for number, vendor in ((0, INTEL), (1, HABANA), (3, HABANA)):  # an Intel NPU is no GPU
        _device(tmp_path / f"dev/accel/accel{number}", number, 0o666)
        device = tmp_path / f"sys/class/accel/accel{number}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
    assert granted(tmp_path) == ["accel:1,accel:3"] * 2
    for number in (4, 5, 7):
        _device(tmp_path / f"dev/davinci{number}", number, 0o666)
    (tmp_path / "dev/davinci_manager").touch()
    assert granted(tmp_path) == ["davinci:4,davinci:5,davinci:7"] * 2


def test_an_mps_client_s_indices_count_within_the_daemon_s_list(tmp_path: Path) -> None:
    """The list is in the environment of the control daemon, whose pid is in the daemon's folder."""
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert mps_daemon(environ) is None  # no daemon is there
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{tmp_path}/control")
    listener.close()
    pid = tmp_path / "nvidia-cuda-mps-control.pid"
    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.symlink_to("/bin/sleep")
    for text in ("", "x", "999999999", f"{os.getpid()}"):  # no pid, or another program's
        pid.write_text(text)
        assert mps_daemon(environ) == {"CUDA_VISIBLE_DEVICES": "unknown"}
    environ["CUDA_DEVICE_ORDER"] = order = "PCI_BUS_ID"
    client = ProcessContext(os.getpid(), 0, environ, devices=None)
    bus_order = ("env", "CUDA_DEVICE_ORDER=PCI_BUS_ID")
    for variables, expected in (
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, [("env", "AFFINITYD_MPS_DEVICES=4,5")]),
        ({}, []),
        ({"CUDA_DEVICE_ORDER": order}, [bus_order]),  # the client's order
    ):
        with subprocess.Popen([daemon, "60"], env=variables) as process:
            while Path(f"/proc/{process.pid}/comm").read_text() != "nvidia-cuda-mps\n":
                pass
            pid.write_text(f"{process.pid}")
            assert mps_daemon(environ) == variables
            sent = client.query({}, frozenset({0}))
            assert [pair for pair in sent if "ALLOWED" not in pair[1]][1:] == expected
            assert mps_daemon(environ, "", 65534) == variables
            os.chown(tmp_path / "control", 65534, -1)  # root's process is not that user's daemon
            assert mps_daemon(environ, "", 65534) == {"CUDA_VISIBLE_DEVICES": "unknown"}
            assert mps_daemon(environ, "", 65533) is None
            os.chown(tmp_path / "control", 0, -1)
            process.kill()


def test_unreadable_device_files_mean_no_nvidia_gpu_and_unknown_amd_gpus(tmp_path: Path) -> None:
    """AMD's files may be closed only because the user is not in the files' group."""
    render(tmp_path, 128, mode=0o660)
    assert granted(tmp_path) == ["drm:128", "None"]
    nvidia(tmp_path, 0, 1, mode=0o644)  # files that may only be read
    assert granted(tmp_path) == ["minor:0,minor:1", "none"]
    nvidia(tmp_path, 2)
    assert granted(tmp_path) == ["minor:0,minor:1,minor:2", "minor:2"]


@needs_cgroup
def test_a_device_cgroup_is_honored_even_for_root(tmp_path: Path) -> None:
    render(tmp_path, 128)
    render(tmp_path, 129)
    cgroup = DEVICES / f"test-{os.getpid()}"
    cgroup.mkdir()
    try:
        for minor in (0, 1, 128):
            (cgroup / "devices.deny").write_text(f"c {MAJOR}:{minor} rwm")
        enter = ("/bin/sh", "-c", f'echo $$ >{cgroup}/cgroup.procs; exec "$@"', "sh")
        assert granted(tmp_path, enter) == ["drm:129"] * 2
        nvidia(tmp_path, 0, 1)
        assert granted(tmp_path, enter) == ["none"] * 2
        nvidia(tmp_path, 2)
        assert granted(tmp_path, enter) == ["minor:2"] * 2
    finally:
        cgroup.rmdir()
