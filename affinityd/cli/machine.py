"""The machine that the settings name, as it can be read again and again."""

from __future__ import annotations

import os

from affinityd import machines
from affinityd.discovery import discover
from affinityd.discovery.nvml import ask
from affinityd.discovery.nvml_report import NvmlReport
from affinityd.discovery.root import open_tree
from affinityd.discovery.tree import FolderTree, Tree
from affinityd.errors import TreeError
from affinityd.settings import Settings
from affinityd.snapshot import snapshot_nvml
from affinityd.topology import Topology

MAX_LIST = 65536  #: bytes; more than any kernel writes into one file of sysfs
NVML_SECONDS = 20.0  #: that NVML may take to answer; GPUs that nobody uses wake up first
ONLINE = "sys/devices/system/cpu/online"
NVIDIA_DRIVER = "proc/driver/nvidia/version"
#: Differ when a GPU driver came, went or was exchanged.
DRIVERS = (NVIDIA_DRIVER, "sys/class/kfd/kfd/topology/generation_id")


class Machine:
    """A live or replayed machine. What its drivers said is remembered between readings."""

    def __init__(self, settings: Settings) -> None:
        """Raise TreeError for a root or machine that is none."""
        self._shipped = machines.load(settings.machine) if settings.machine else None
        self._tree: Tree | None = (
            None if self._shipped else open_tree(settings.root, settings.node_name)
        )
        self._report: NvmlReport | None = None
        self._online = _keep_open(self._tree)

    @property
    def tree(self) -> Tree:
        """Its files. Raises TreeError for a shipped machine, which has none."""
        if self._tree is None:
            raise TreeError("a shipped machine has no files; name a --root")
        return self._tree

    @property
    def report(self) -> NvmlReport | None:
        """What NVML said when it was last asked."""
        return self._report

    @property
    def is_live(self) -> bool:
        """Whether it is the machine that we run on."""
        return self._tree is not None and self._tree.live

    def ask_drivers(self, timeout: float = NVML_SECONDS) -> None:
        """Ask NVML, or the snapshot of what it said.

        NVML is asked only where its driver is loaded: it would load it, and so fight an upgrade.
        """
        if self._tree is None:
            return
        if not self._tree.live:
            self._report = snapshot_nvml(self._tree)
        elif self._tree.read(NVIDIA_DRIVER) is not None:
            self._report = ask(timeout)
        else:
            self._report = NvmlReport(None, error="NVIDIA's driver is not loaded")

    def read(self) -> Topology:
        """Return its topology, with what the drivers said when they were last asked."""
        if self._tree is None:
            assert self._shipped is not None  # noqa: S101 - one of the two is there
            return self._shipped
        return discover(self._tree, self._report)

    def online(self) -> bytes | None:
        """Return the kernel's list of online CPUs, as it is: one small read."""
        try:
            return None if self._online is None else os.pread(self._online, MAX_LIST, 0)
        except OSError:  # a folder or pipe in a captured machine
            return None

    def drivers(self) -> tuple[str | None, ...]:
        """Return what differs when a driver came or went."""
        return tuple(self._tree.read(path) for path in DRIVERS) if self._tree else ()

    def is_driver_silent(self) -> bool:
        """Whether NVIDIA's driver is there and NVML did not answer."""
        answered = self._report is not None and self._report.gpus is not None
        return self.is_live and not answered and self.drivers()[0] is not None


def _keep_open(tree: Tree | None) -> int | None:
    """Open the list of online CPUs for good: to read it then costs a third of opening it anew."""
    if not isinstance(tree, FolderTree):
        return None
    try:
        return os.open(tree.root + ONLINE, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # kernels before 2.6.28 have none
        return None


def read_once(settings: Settings) -> Topology:
    """Return the topology of the machine that the settings name. Raises TreeError."""
    machine = Machine(settings)
    machine.ask_drivers()
    return machine.read()
