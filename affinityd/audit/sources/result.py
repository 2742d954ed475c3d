"""The holders that one source names; the results of all sources make GpuHolders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from affinityd.audit.model import GpuKey, Holding
from affinityd.topology.model import Gpu


@dataclass(frozen=True)
class SourceResult:
    """The holders of GPUs, by one source."""

    holdings: tuple[Holding, ...] = ()  #: a process may be there once for each of its GPUs
    unknown: Mapping[GpuKey, str] = field(default_factory=dict)  #: GPUs not told of → why
    skipped: int = 0  #: processes that were not looked at, as time was up
    asked: float = float("inf")  #: seconds since boot; inf: within this scan
    notices: tuple[str, ...] = ()  #: what is to be said of the answer, for people


def all_unknown(gpus: Sequence[Gpu], why: str) -> SourceResult:
    """Return that nothing is known of these GPUs' processes."""
    return SourceResult(unknown={gpu.key: why for gpu in gpus})
