"""Who uses NVIDIA's GPUs, by NVML, and when it is asked: whoever asks it uses the driver.

Who works on the driver is left alone. A MIG mode that is to change waits for a reset, often for
days, which users of the GPU keep from happening: meanwhile NVML is asked less often, and what it
said last counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from affinityd.audit import nvml_holders
from affinityd.audit.aside import Aside
from affinityd.audit.found import Found, silence
from affinityd.audit.nvml_holders import Report
from affinityd.topology import Gpu

NVML_SECONDS = 10.0  #: that NVML may take to answer

#: How often NVML is asked while a GPU waits for its MIG mode to be changed.
CHANGING_SECONDS = 60.0

NO_DRIVER = "NVIDIA's driver is not loaded"
WAITS = "{change}: NVML is asked once a minute, until a reset has done that"


@dataclass(frozen=True)
class Told:
    """What NVML said, and when it was asked: seconds since boot."""

    asked: float
    report: Report


class NvmlSource:
    """Asks NVML again and again, unless somebody works on the driver."""

    def __init__(
        self,
        ask: Callable[[float], Report],
        aside: Aside,
        driver: str,
        clock: Callable[[], float],
    ) -> None:
        """Take who asks, within so many seconds, and where the driver says that it is loaded."""
        self._ask, self._aside, self._clock = ask, aside, clock
        self._version = f"{driver}/version"
        self._told: Told | None = None

    def found(self, gpus: Sequence[Gpu]) -> Found:
        """Return who uses the GPUs, or why that is not known."""
        if not gpus:
            return Found()
        # NVML would load a driver that is not there, and so fight an upgrade.
        is_loaded = os.path.exists(self._version)  # noqa: PTH110 - a scan is cheap
        if reason := self._aside.reason() if is_loaded else NO_DRIVER:
            self._told = None
            return silence(gpus, reason)
        if self._told is None or not self._counts(self._told):
            self._told = Told(self._clock(), self._ask(NVML_SECONDS))
        change = self._told.report.changing
        return replace(
            nvml_holders.found(self._told.report, gpus),
            asked=self._told.asked,
            notices=(WAITS.format(change=change),) if change else (),
        )

    def _counts(self, told: Told) -> bool:
        """Whether it is too early to ask again."""
        is_new = self._clock() - told.asked < CHANGING_SECONDS
        return told.report.changing is not None and is_new
