"""Who asks, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.cpuset import CpuSet


@dataclass(frozen=True)
class Caller:
    """Who asks, as far as that is known."""

    mask: CpuSet  #: its affinity mask
    #: What its cgroup lets it use, never narrower than the mask; None: that is not known.
    cpuset: CpuSet | None = None
