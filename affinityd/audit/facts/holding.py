"""The processes that use GPUs, as drivers and open files name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from affinityd.topology.model import Gpu

#: A GPU's one name on its machine: `Gpu.key`, its vendor and index.
GpuKey = tuple[str, int]


@dataclass(frozen=True)
class Holding:
    """A process that uses a GPU: of several, first the one where it holds most memory."""

    pid: int  #: as /proc here numbers it
    gpu: GpuKey
    memory_bytes: int | None = None  #: of the GPU's memory; None: not known
    mig: str | None = None  #: UUID of the MIG instance
    beside: tuple[GpuKey, ...] = ()  #: other GPUs that it works on as much, by index


@dataclass(frozen=True)
class GpuHolders:
    """The holders of GPUs, as far as they are known: by one source, or by all of them."""

    #: One a process; of one source, one for each of its GPUs.
    holdings: tuple[Holding, ...] = ()
    #: GPUs with unknown processes → why, and the remedy
    unknown: Mapping[GpuKey, str] = field(default_factory=dict)
    #: Seconds since boot; a pid that started later is another's. inf: within this scan.
    asked: float = float("inf")
    skipped: int = 0  #: processes: their files were not read within the time limit
    notices: tuple[str, ...] = ()  #: remarks for people

    @classmethod
    def unknown_of(cls, gpus: Iterable[Gpu], why: str) -> GpuHolders:
        """Return that nothing is known of these GPUs' processes."""
        return cls(unknown={gpu.key: why for gpu in gpus})
