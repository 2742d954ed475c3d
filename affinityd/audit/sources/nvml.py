"""The holders of NVIDIA's GPUs, by NVML, and when to call it: a call uses the driver.

During maintenance of the driver NVML is not called. A pending change of MIG mode waits for a
reset, often for days, while the GPU has users: meanwhile NVML is called less often, and its last
report counts.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from affinityd.audit.facts.holding import GpuHolders, Holding
from affinityd.audit.sources.driver_maintenance import DriverMaintenance
from affinityd.discovery.nvml import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.topology.model import Gpu

NVML_SECONDS = 10.0  #: that NVML may take to answer

#: How often NVML is called while a change of MIG mode is pending.
CHANGING_SECONDS = 60.0

NO_DRIVER = "NVIDIA's driver is not loaded"
READ_AGAIN = "the daemon reads the machine again on systemctl reload affinityd"
WAITS = "{change} by a reset of the GPU; until then NVML is asked once a minute"


class NvmlSource:
    """Calls NVML at each scan, except during maintenance of the driver."""

    def __init__(
        self,
        ask: Callable[[float], ProcessReport],
        maintenance: DriverMaintenance,
        driver: str,
        clock: Callable[[], float],
    ) -> None:
        """Take the function that calls NVML, its time limit, and the driver's folder in sysfs."""
        self._ask, self._maintenance, self._clock = ask, maintenance, clock
        self._version = f"{driver}/version"
        self._last: tuple[float, ProcessReport] | None = None  # with the time of the call

    def found(self, gpus: Sequence[Gpu]) -> GpuHolders:
        """Return the holders of the GPUs, or why they are not known."""
        if not gpus:
            return GpuHolders()
        # NVML would load a driver that is not there, and so fight an upgrade.
        is_loaded = os.path.exists(self._version)  # noqa: PTH110 - a scan is cheap
        if reason := self._maintenance.reason() if is_loaded else NO_DRIVER:
            self._last = None
            return GpuHolders.unknown_of(gpus, reason)
        asked, report = self._last or (0.0, None)
        now = self._clock()
        if report is None or report.changing is None or now - asked >= CHANGING_SECONDS:
            asked, report = self._last = now, self._ask(NVML_SECONDS)
        return replace(
            processes_of(report, gpus),
            asked=asked,
            notices=(WAITS.format(change=report.changing),) if report.changing else (),
        )


def processes_of(report: ProcessReport, gpus: Sequence[Gpu]) -> GpuHolders:
    """Return the holders of NVIDIA's GPUs by NVML's report."""
    if report.gpus is None:
        return GpuHolders.unknown_of(gpus, report.said or "NVML did not answer")
    by_index = {listed.index: listed for listed in report.gpus}
    doubts = {gpu.key: _doubt(gpu, by_index.get(gpu.index)) for gpu in gpus}
    return GpuHolders(
        tuple(
            holding
            for gpu in gpus
            if gpu.index in by_index and not doubts[gpu.key]
            for holding in _holdings(gpu, by_index[gpu.index].processes)
        ),
        {key: doubt for key, doubt in doubts.items() if doubt},
    )


def _doubt(gpu: Gpu, listed: GpuProcesses | None) -> str | None:
    """Return why the GPU's processes are not known; None: they are."""
    if listed is None:
        return f"NVML does not list a GPU {gpu.index}"
    for known, now in ((gpu.uuid, listed.uuid), (gpu.pci_bus_id, listed.pci_bus_id)):
        if known and now and known != now:
            return f"NVML's GPU {gpu.index} is {now} now, and was {known}: {READ_AGAIN}"
    return listed.error and f"NVML: {listed.error}"


def _holdings(gpu: Gpu, processes: Sequence[NvmlProcess]) -> Iterator[Holding]:
    """Yield the processes, each once: with its memory in all MIG devices, and the one with most.

    Several lists may name the same memory.
    """
    parts: dict[int, dict[str | None, int | None]] = defaultdict(dict)
    for process in processes:
        part = parts[process.pid]
        sizes = [size for size in (part.get(process.mig), process.memory_bytes) if size is not None]
        part[process.mig] = max(sizes, default=None)
    for pid, part in parts.items():
        most = max(part, key=lambda mig: part[mig] or 0)
        yield Holding(pid, gpu.key, _sum(part), most)


def _sum(part: Mapping[str | None, int | None]) -> int | None:
    sizes = [size for size in part.values() if size is not None]
    return sum(sizes) if sizes else None
