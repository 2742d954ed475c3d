"""NVML's answers as data, and as the JSON that a child prints and a snapshot keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from affinityd.cpuset import CpuSet
from affinityd.json_codec import loads


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML shows it; a field without an answer is None or empty."""

    index: int  #: NVML's index, in PCI bus order
    uuid: str | None = None  #: nvmlDeviceGetUUID
    pci_bus_id: str | None = None  #: nvmlDeviceGetPciInfo, written as sysfs does: 0000:07:00.0
    minor: int | None = None  #: nvmlDeviceGetMinorNumber: the N of /dev/nvidiaN
    model: str | None = None  #: nvmlDeviceGetName
    mig: tuple[str, ...] = ()  #: nvmlDeviceGetUUID of each MIG device
    #: nvmlDeviceGetCpuAffinityWithinScope, scope node; empty: unknown, or not reliable
    node_cpus: CpuSet = frozenset()
    error: str | None = None  #: NVML's first complaint about this GPU: "GPU is lost"


@dataclass(frozen=True)
class NvmlProcess:
    """A process that uses a GPU, from NVML's lists (nvmlProcessInfo_t)."""

    pid: int  #: in the host's numbers; with newer drivers, in the caller's pid namespace
    kind: str  #: which list names it: "compute", "graphics", "mps"
    memory_bytes: int | None = None  #: usedGpuMemory; None: NVML does not know it
    mig: str | None = None  #: UUID of the MIG device that it uses


@dataclass(frozen=True)
class NvmlLoad:
    """How busy a GPU is; None: NVML does not tell, for example with MIG."""

    busy_percent: int | None = None  #: nvmlDeviceGetUtilizationRates
    memory_used_bytes: int | None = None  #: nvmlDeviceGetMemoryInfo
    memory_bytes: int | None = None


NO_LOAD = NvmlLoad()


@dataclass(frozen=True)
class GpuProcesses:
    """The processes of one GPU, or why NVML did not list them."""

    index: int  #: NVML's index, in PCI bus order
    uuid: str | None = None  #: nvmlDeviceGetUUID
    pci_bus_id: str | None = None  #: nvmlDeviceGetPciInfo, as sysfs writes it
    processes: tuple[NvmlProcess, ...] = ()  #: a process in two lists occurs twice
    error: str | None = None  #: why some processes are not known
    is_lost: bool = False  #: the error is a fault of the GPU
    load: NvmlLoad = NO_LOAD


@dataclass(frozen=True, kw_only=True)
class NvmlAnswer:
    """Whether NVML answered; if not, the report's lists are None."""

    error: str | None = None  #: why NVML did not answer
    remedy: str | None = None  #: what to do about the error; None: unknown
    is_late: bool = False  #: NVML did not answer in time
    has_hung: bool = False  #: the driver blocks a child that was killed

    @property
    def said(self) -> str | None:
        """The error with its remedy, on one line; None: no error."""
        return f"{self.error}; {self.remedy}" if self.error and self.remedy else self.error


@dataclass(frozen=True)
class NvmlReport(NvmlAnswer):
    """NVML's report on GPUs."""

    gpus: tuple[NvmlGpu, ...] | None
    driver_version: str | None = None  #: nvmlSystemGetDriverVersion


@dataclass(frozen=True)
class ProcessReport(NvmlAnswer):
    """NVML's report on processes."""

    gpus: tuple[GpuProcesses, ...] | None


R = TypeVar("R", NvmlReport, ProcessReport)


def read_report(kind: type[R], text: str) -> R:
    """Read a report from JSON. Raises ValueError, one line, if the text is no report."""
    report = loads(kind, text, "NVML's report")
    if len({gpu.index for gpu in report.gpus or ()}) < len(report.gpus or ()):
        raise ValueError("NVML's report has two GPUs of one index")
    return report
