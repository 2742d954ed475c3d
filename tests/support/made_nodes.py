"""Runs a real daemon as if this machine had NVIDIA's driver and the NUMA nodes of a test.

The daemon has this machine's `/`, except `/proc/driver`, `/sys/devices/system` and `/run`, which
are mounted over in the daemon's mount namespace; NVML is a real shared library. On a `LiveNode` the
NUMA nodes are this machine's, too, and its first PCI device is the GPU.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from affinityd.discovery import discover, open_tree
from affinityd.discovery.nvml import NvmlGpu, NvmlReport
from affinityd.topology.model import Topology
from tests.support.daemons import Daemon, eventually, is_ready, running, started
from tests.support.machines.sysfs_tree import write_tree
from tests.support.shared_objects import environment

DRIVER = "550.54.15"
MOUNTS = (
    'mount --bind "$0/driver" /proc/driver && '
    'mount --bind "$0/machine/sys/devices/system" /sys/devices/system && '
    'mount --bind "$0/run" /run && exec "$@"'
)


@contextmanager
def running_on(
    machine: Topology,
    folder: Path,
    nvml: str,
    *arguments: str,
    before: Sequence[str] = (),
    listen: str = "none",
) -> Iterator[Daemon]:
    """Run the daemon on a machine that is written to a folder; `nvml`: the facts that NVML tells.

    `before` is a command that starts the daemon.
    """
    env = environment(nvml, folder)
    before = [*entering(machine, folder), *before]
    with running(folder, *arguments, env=env, listen=listen, before=before) as daemon:
        yield daemon


def entering(machine: Topology, folder: Path) -> list[str]:
    """Write the machine and its driver, and return the command that runs another on the machine."""
    (folder / "run/affinityd").mkdir(parents=True, exist_ok=True)
    (folder / "driver/nvidia").mkdir(parents=True)
    (folder / "driver/nvidia/version").write_text(f"NVRM version: {DRIVER}\n")
    write_tree(machine, folder / "machine")
    return ["unshare", "--mount", "sh", "-c", MOUNTS, os.fspath(folder)]


UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
MODEL = "NVIDIA Test"


def gpu_address() -> str:
    return min(path.name for path in Path("/sys/bus/pci/devices").iterdir())


class LiveNode:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = folder / "driver/nvidia"  #: as /proc/driver/nvidia
        self.device = folder / "nvidiactl"  #: held open while NVML is initialized
        self.driver.mkdir(parents=True)
        self.device.touch()
        self.tell_driver(DRIVER)
        self.says()

    def says(self, *faults: str, of_gpu: str = "") -> None:
        """Make NVML answer with these faults, each `FUNCTION ACTION` as in libnvidia_ml.c."""
        gpu = f"gpu\nuuid {UUID}\npci 0000{gpu_address()}\nminor 3\nmodel {MODEL}"
        fails = (f"fail {fault}" for fault in faults)
        lines = (f"driver {DRIVER}", f"device {self.device}", *fails, gpu, of_gpu, "")
        self._env = environment("\n".join(lines), self.folder)

    def tell_driver(self, version: str) -> None:
        (self.driver / "version").write_text(f"NVRM version: {version}\n")

    @property
    def topology(self) -> Topology:
        gpu = NvmlGpu(0, UUID, gpu_address(), minor=3, model=MODEL)
        return discover(open_tree("/"), NvmlReport((gpu,), DRIVER))

    @contextmanager
    def started(self, *arguments: str, at_first: str = ":") -> Iterator[Daemon]:
        """Start the daemon after the sh line `at_first`; it scans if `arguments` say so."""
        arguments = ("--scan-interval", "off", *arguments)
        before = self._inside(at_first)
        with started(self.folder, *arguments, env=self._env, before=before) as daemon:
            yield daemon

    def run(self, *command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._inside(), *command],
            env={**os.environ, **self._env, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def _inside(self, at_first: str = ":") -> list[str]:
        then = f'mount --bind "$0" /proc/driver && {at_first} && exec "$@"'
        mounting = ["sh", "-c", then, os.fspath(self.driver.parent)]
        return ["unshare", "--mount", "--map-root-user", *mounting]

    @contextmanager
    def running(self, *arguments: str, at_first: str = ":") -> Iterator[Daemon]:
        with self.started(*arguments, at_first=at_first) as daemon:
            eventually(lambda: is_ready(daemon), "it is ready")
            yield daemon
