"""NVML's answers as data, and as JSON: what its child prints and a snapshot keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.discovery.nvml.fields import field, parsed, typed, whole


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML sees it; what NVML would not say is None or empty."""

    index: int  #: NVML's own, in PCI bus order
    uuid: str | None = None  #: nvmlDeviceGetUUID
    pci_bus_id: str | None = None  #: nvmlDeviceGetPciInfo, written as sysfs does: 0000:07:00.0
    minor: int | None = None  #: nvmlDeviceGetMinorNumber, of /dev/nvidiaN
    model: str | None = None  #: nvmlDeviceGetName
    mig: tuple[str, ...] = ()  #: nvmlDeviceGetUUID of each MIG device
    #: nvmlDeviceGetCpuAffinityWithinScope, scope node; empty: unknown, or not to be trusted
    node_cpus: CpuSet = frozenset()
    socket_cpus: CpuSet = frozenset()  #: the same, scope socket
    #: nvmlDeviceGetNvLinkState, RemotePciInfo: PCI bus id at the other end → links that are up
    nvlinks: Mapping[str, int] | None = None
    persistence: bool | None = None  #: nvmlDeviceGetPersistenceMode: the driver stays loaded
    error: str | None = None  #: NVML's first complaint about this GPU: "GPU is lost"


@dataclass(frozen=True)
class NvmlReport:
    """All that NVML said, or why it said nothing."""

    gpus: tuple[NvmlGpu, ...] | None  #: by index; None: NVML did not answer, `error` says why
    driver_version: str | None = None  #: nvmlSystemGetDriverVersion
    error: str | None = None
    remedy: str | None = None  #: of the error; None: none is known

    @property
    def said(self) -> str | None:
        """The error with its remedy, on one line; None: there is no error."""
        return f"{self.error}; {self.remedy}" if self.error and self.remedy else self.error

    def to_json(self) -> str:
        """Write the report on one line, its CPU sets as cpulists."""
        return json.dumps(asdict(self), default=format_list)

    @classmethod
    def from_json(cls, text: str) -> NvmlReport:
        """Read what `to_json` wrote. Raises ValueError, one line, on anything else."""
        return parsed(text, _report, "an NVML report")


def _report(fields: dict[str, Any]) -> NvmlReport:
    listed = field(fields, "gpus", list)
    gpus = [_gpu(typed(gpu, dict, "a GPU")) for gpu in listed or ()]
    if len({gpu.index for gpu in gpus}) < len(gpus):
        raise ValueError("two GPUs have one index")
    return NvmlReport(
        gpus=None if listed is None else tuple(gpus),
        driver_version=field(fields, "driver_version", str),
        error=field(fields, "error", str),
        remedy=field(fields, "remedy", str),
    )


def _gpu(fields: dict[str, Any]) -> NvmlGpu:
    return NvmlGpu(
        index=whole(fields.get("index"), "index"),
        uuid=field(fields, "uuid", str),
        pci_bus_id=field(fields, "pci_bus_id", str),
        minor=field(fields, "minor", int),
        model=field(fields, "model", str),
        mig=tuple(typed(uuid, str, "mig") for uuid in field(fields, "mig", list) or ()),
        node_cpus=parse_list(field(fields, "node_cpus", str) or ""),
        socket_cpus=parse_list(field(fields, "socket_cpus", str) or ""),
        nvlinks=_nvlinks(field(fields, "nvlinks", dict)),
        persistence=field(fields, "persistence", bool),
        error=field(fields, "error", str),
    )


def _nvlinks(counts: dict[str, Any] | None) -> Mapping[str, int] | None:
    if counts is None:
        return None
    return {end: whole(count, "a number of nvlinks") for end, count in counts.items()}
