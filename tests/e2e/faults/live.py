"""A daemon on this machine's own files, which are covered and uncovered while it runs.

It is in a mount namespace of its own, has NVIDIA's driver in `/proc/driver`, and an NVML that
answers from facts: this machine's first PCI device is the GPU.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from affinityd.discovery import discover, open_tree
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.topology.model import Topology
from tests.e2e.faults.elsewhere import plans
from tests.support.daemons import Daemon, eventually, spawn
from tests.support.nvml.shared_object import environment

UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
MODEL = "NVIDIA Test"
DRIVER = "550.54.15"

#: Without a cpuset a caller is planned on its own CPUs, which tests may have fewer of.
QUERIES = tuple(
    f"{query}&cpuset={','.join(map(str, sorted(os.sched_getaffinity(0))))}"
    for query in ("gpus=0&mode=node", "gpus=all&mode=even")
)


def gpu_address() -> str:
    """Return the PCI device that is to be the GPU."""
    return min(path.name for path in Path("/sys/bus/pci/devices").iterdir())


@dataclass(frozen=True)
class Node:
    """A live node's folder, and what can be done to it."""

    folder: Path

    def facts(self, *, fault: str = "") -> str:
        """Return what NVML says; a fault is `FUNCTION ACTION`, as libnvidia_ml.c has it."""
        of_all = fault if "DeviceGetCompute" not in fault else ""
        gpu = f"gpu\nuuid {UUID}\npci 0000{gpu_address()}\nminor 3\nmodel {MODEL}\n"
        lines = (f"driver {DRIVER}\n", of_all and f"fail {of_all}\n", gpu)
        return "".join(lines) + (f"fail {fault}\n" if fault != of_all else "")

    def tell_nvml(self, *, fault: str = "") -> None:
        """Change what NVML says from now on."""
        (self.folder / "nvml.facts").write_text(self.facts(fault=fault))

    def tell_driver(self, version: str = DRIVER) -> None:
        """Have this version of the driver."""
        (self.folder / "driver/nvidia").mkdir(parents=True, exist_ok=True)
        (self.folder / "driver/nvidia/version").write_text(f"NVRM version: {version}\n")

    @property
    def topology(self) -> Topology:
        """What the daemon is to know while nothing is wrong."""
        gpu = NvmlGpu(0, UUID, gpu_address(), minor=3, model=MODEL)
        return discover(open_tree("/"), NvmlReport((gpu,), DRIVER))

    @contextmanager
    def started(self, *arguments: str, at_first: str = ":", fault: str = "") -> Iterator[Daemon]:
        """Start the daemon, after a line of sh in its namespace; wait for nothing."""
        self.tell_driver()
        then = f'mount --bind "$0" /proc/driver && {at_first} && exec "$@"'
        driver = os.fspath(self.folder / "driver")
        before = ["unshare", "--mount", "--map-root-user", "sh", "-c", then, driver]
        env = environment(self.facts(fault=fault), self.folder)
        daemon = spawn(self.folder, *arguments, env=env, before=before)
        try:
            yield daemon
        finally:
            daemon.process.kill()
            daemon.process.wait()

    @contextmanager
    def running(self, *arguments: str, at_first: str = ":") -> Iterator[Daemon]:
        """Run the daemon from its first plan on."""
        with self.started(*arguments, at_first=at_first) as daemon:
            eventually(lambda: plans(daemon), "it plans")
            yield daemon


def inside(daemon: Daemon, *command: str) -> None:
    """Run a command in a daemon's namespaces."""
    enter = ["nsenter", "--target", str(daemon.process.pid), "--user", "--mount", "--"]
    subprocess.run([*enter, *command], check=True)
