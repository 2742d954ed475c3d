"""What NVML says of the processes that use GPUs, as a child writes it for its parent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from affinityd.discovery.nvml.fields import field, parsed, typed, whole


@dataclass(frozen=True)
class NvmlProcess:
    """A process that uses a GPU, as NVML's lists have it (nvmlProcessInfo_t)."""

    pid: int  #: as the host numbers it; newer drivers: as the asker's pid namespace does
    kind: str  #: the list that has it: "compute", "graphics", "mps"
    memory_bytes: int | None = None  #: usedGpuMemory; None: NVML does not say
    mig: str | None = None  #: UUID of the MIG device that it uses


@dataclass(frozen=True)
class GpuProcesses:
    """The processes of one GPU, or why NVML did not list them."""

    index: int  #: NVML's own, in PCI bus order
    uuid: str | None = None  #: nvmlDeviceGetUUID
    pci_bus_id: str | None = None  #: nvmlDeviceGetPciInfo, as sysfs writes it
    processes: tuple[NvmlProcess, ...] = ()  #: one in two lists is there twice
    error: str | None = None  #: why not all of them are known


@dataclass(frozen=True)
class ProcessReport:
    """All that NVML said of processes, or why it said nothing."""

    gpus: tuple[GpuProcesses, ...] | None  #: by index; None: NVML did not answer, see `error`
    error: str | None = None
    changing: str | None = None  #: why somebody seems to change MIG modes just now

    def to_json(self) -> str:
        """Write the report on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ProcessReport:
        """Read what `to_json` wrote. Raises ValueError, one line, on anything else."""
        return parsed(text, _report, "NVML's list of processes")


def _report(fields: dict[str, Any]) -> ProcessReport:
    listed = field(fields, "gpus", list)
    return ProcessReport(
        gpus=None if listed is None else tuple(_gpu(typed(gpu, dict, "a GPU")) for gpu in listed),
        error=field(fields, "error", str),
        changing=field(fields, "changing", str),
    )


def _gpu(fields: dict[str, Any]) -> GpuProcesses:
    listed = field(fields, "processes", list) or ()
    return GpuProcesses(
        index=whole(fields.get("index"), "index"),
        uuid=field(fields, "uuid", str),
        pci_bus_id=field(fields, "pci_bus_id", str),
        processes=tuple(_process(typed(process, dict, "a process")) for process in listed),
        error=field(fields, "error", str),
    )


def _process(fields: dict[str, Any]) -> NvmlProcess:
    return NvmlProcess(
        pid=whole(fields.get("pid"), "pid"),
        kind=typed(fields.get("kind"), str, "kind"),
        memory_bytes=field(fields, "memory_bytes", int),
        mig=field(fields, "mig", str),
    )
