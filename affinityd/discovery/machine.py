"""The machine that the settings name, which can be read repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from affinityd import machines
from affinityd.config.settings import Settings
from affinityd.discovery import discover, open_tree, snapshot_nvml
from affinityd.discovery.nvml import NvmlReport
from affinityd.discovery.pci import port_states
from affinityd.discovery.tree import Tree
from affinityd.errors import TreeError
from affinityd.topology.model import Topology

READING_SECONDS = 20.0  #: seconds that NVML may take to answer; idle GPUs wake up first
NVIDIA_DRIVER = "proc/driver/nvidia/version"
#: Files that change when a GPU driver is loaded, unloaded or replaced.
DRIVERS = (NVIDIA_DRIVER, "sys/class/kfd/kfd/topology/generation_id")


class Machine:
    """A live or replayed machine. Its drivers' answers are kept between readings."""

    def __init__(
        self, settings: Settings, query_nvml: Callable[[float], NvmlReport] | None = None
    ) -> None:
        """Open the machine. `query_nvml` calls NVML; it takes a timeout. Raises TreeError."""
        self._query_nvml = query_nvml
        self._shipped = machines.load(settings.machine) if settings.machine else None
        self._tree: Tree | None = (
            None if self._shipped else open_tree(settings.root, settings.node_name)
        )
        self.report: NvmlReport | None = None  #: NVML's last report
        self._answered_by: str | None = None  # the driver's version when NVML last answered
        #: The file that changes when a CPU goes online or offline; None: there is no such file.
        self.online_file = self._tree.root + "sys/devices/system/cpu/online" if self._tree else None

    @property
    def tree(self) -> Tree:
        """The machine's files. Raises TreeError for a built-in machine, which has none."""
        if self._tree is None:
            raise TreeError("a built-in machine has no files; name a --root")
        return self._tree

    @property
    def is_live(self) -> bool:
        """Whether it is the machine on which this process runs."""
        return self._tree is not None and self._tree.live

    def query_drivers(self, timeout: float = READING_SECONDS) -> None:
        """Query NVML, or read a snapshot's report.

        NVML is called only if its driver is loaded: otherwise NVML would load it, even during an
        upgrade of the driver. If NVML fails, its last answer is kept while the driver is the same.
        """
        if self._tree is None:
            return
        if not self._tree.live:
            self.report = snapshot_nvml(self._tree)
            return
        version = self._tree.read(NVIDIA_DRIVER)
        if version is None:
            self.report = NvmlReport(None, error="NVIDIA's driver is not loaded")
            return
        if self._query_nvml is None:
            # Imported here: calling NVML needs many modules, and few readings call it.
            from affinityd.discovery.nvml.query import query_gpus  # noqa: PLC0415

            self._query_nvml = query_gpus
        report = self._query_nvml(timeout)
        if report.gpus is not None:
            self._answered_by = version
        elif (
            self.report is not None and version == self._answered_by
        ):  # keep the last report's GPUs
            report = replace(self.report, error=report.error, remedy=report.remedy)
        self.report = report

    def read(self) -> Topology:
        """Return the machine's topology. Raises TreeError."""
        if self._tree is None:
            assert self._shipped is not None  # noqa: S101 - set if there is no tree
            return self._shipped
        topology = discover(self._tree, self.report)
        report = self.report
        if self.is_live and report is not None and report.gpus is not None and report.error:
            notice = f"{report.said}; its last answer is used"
            topology = replace(topology, notices=(*topology.notices, notice))
        return topology

    def drivers(self) -> tuple[object, ...]:
        """Return a value that changes when a driver, or one of NVIDIA's GPUs, comes or goes."""
        if self._tree is None:
            return ()
        return (*map(self._tree.read, DRIVERS), self._tree.list("proc/driver/nvidia/gpus"))

    def ports(self) -> tuple[tuple[str, bool], ...]:
        """Return a value that changes when an RDMA port goes up or down."""
        return port_states(self._tree) if self._tree else ()

    def lacks_nvml(self) -> bool:
        """Whether NVIDIA's driver is there and NVML did not answer."""
        report = self.report
        answered = report is not None and report.gpus is not None and report.error is None
        return self.is_live and not answered and self.drivers()[0] is not None


def read_once(settings: Settings) -> Topology:
    """Return the topology of the machine that the settings name. Raises TreeError."""
    machine = Machine(settings)
    machine.query_drivers()
    return machine.read()
