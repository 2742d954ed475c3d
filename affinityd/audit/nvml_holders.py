"""Who uses NVIDIA's GPUs, by NVML's lists: open device files prove nothing there.

A process may have every GPU open, and its GPU is the one in which it holds most memory; one that
only looks on holds none and is in no list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from affinityd.audit.found import Found, silence
from affinityd.audit.model import Holding
from affinityd.topology import Gpu


class Process(Protocol):
    """A process as one of NVML's lists has it: discovery's NvmlProcess."""

    @property
    def pid(self) -> int:
        """As /proc numbers it."""

    @property
    def memory_bytes(self) -> int | None:
        """Of the GPU's memory; None: NVML does not say."""

    @property
    def mig(self) -> str | None:
        """UUID of the MIG device."""


class Listed(Protocol):
    """The processes of a GPU: discovery's GpuProcesses."""

    @property
    def index(self) -> int:
        """NVML's."""

    @property
    def uuid(self) -> str | None:
        """As NVML has it."""

    @property
    def pci_bus_id(self) -> str | None:
        """As sysfs writes it."""

    @property
    def processes(self) -> Sequence[Process]:
        """One in two lists is there twice."""

    @property
    def error(self) -> str | None:
        """Why not all of them are known."""


class Report(Protocol):
    """What NVML said: discovery's ProcessReport."""

    @property
    def gpus(self) -> Sequence[Listed] | None:
        """None: nothing."""

    @property
    def error(self) -> str | None:
        """Why it said nothing."""

    @property
    def changing(self) -> str | None:
        """Why somebody seems to change MIG modes."""


def found(report: Report, gpus: Sequence[Gpu]) -> Found:
    """Return who uses NVIDIA's GPUs by NVML's word."""
    if report.gpus is None:
        return silence(gpus, report.error or "NVML did not answer")
    by_index = {listed.index: listed for listed in report.gpus}
    doubts = {gpu.key: _doubt(gpu, by_index.get(gpu.index)) for gpu in gpus}
    return Found(
        tuple(
            holding
            for gpu in gpus
            if gpu.index in by_index and not doubts[gpu.key]
            for holding in _holdings(gpu, by_index[gpu.index].processes)
        ),
        {key: doubt for key, doubt in doubts.items() if doubt},
    )


def _doubt(gpu: Gpu, listed: Listed | None) -> str | None:
    """Return why the GPU's processes are not known; None: they are."""
    if listed is None:
        return f"NVML does not list a GPU {gpu.index}"
    for known, told in ((gpu.uuid, listed.uuid), (gpu.pci_bus_id, listed.pci_bus_id)):
        if known and told and known != told:
            return f"NVML's GPU {gpu.index} is {told} now, and was {known}: read the machine anew"
    return listed.error and f"NVML: {listed.error}"


def _holdings(gpu: Gpu, processes: Sequence[Process]) -> Iterator[Holding]:
    """Yield the processes, each once: with its memory in all MIG devices, and the one with most.

    A list repeats what another says of the same memory.
    """
    parts: dict[int, dict[str | None, int | None]] = defaultdict(dict)
    for process in processes:
        part = parts[process.pid]
        told = [size for size in (part.get(process.mig), process.memory_bytes) if size is not None]
        part[process.mig] = max(told, default=None)
    for pid, part in parts.items():
        most = max(part, key=lambda mig: part[mig] or 0)
        yield Holding(pid, gpu.key, _sum(part), most)


def _sum(part: Mapping[str | None, int | None]) -> int | None:
    told = [size for size in part.values() if size is not None]
    return sum(told) if told else None
