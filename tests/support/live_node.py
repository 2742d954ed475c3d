"""A daemon on this machine's own files, with NVIDIA's driver as far as that can be had without one.

In a mount namespace of its own, `/proc/driver` is a folder; NVML is a real shared library that
answers from facts: this machine's first PCI device is its GPU.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from affinityd.discovery import discover, open_tree
from affinityd.discovery.nvml import NvmlGpu, NvmlReport
from affinityd.topology.model import Topology
from tests.support.daemons import Daemon, eventually, is_ready, started
from tests.support.made_nodes import DRIVER
from tests.support.nvml.shared_object import environment

UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
MODEL = "NVIDIA Test"


def gpu_address() -> str:
    """Return a PCI device of this machine, which NVML calls its GPU."""
    return min(path.name for path in Path("/sys/bus/pci/devices").iterdir())


class LiveNode:
    """What a daemon finds, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = folder / "driver/nvidia"  #: as /proc/driver/nvidia
        self.device = folder / "nvidiactl"  #: held open while NVML is initialised
        self.driver.mkdir(parents=True)
        self.device.touch()
        self.tell_driver(DRIVER)
        self.says()

    def says(self, *faults: str, of_gpu: str = "") -> None:
        """Have NVML answer so; a fault is `FUNCTION ACTION`, as libnvidia_ml.c has it."""
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
        """Start the daemon, after a line of sh in its namespace; by default it scans nothing."""
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
