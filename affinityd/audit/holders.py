"""Who uses the machine's GPUs: each vendor's own source, and one GPU for each process.

NVIDIA: NVML, by whoever asks it in a child. AMD: KFD. All others: the holders of the device files.
"""

# ruff: noqa: PTH110, PTH115 - a scan is cheap

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from affinityd.audit import kfd, nvml_holders
from affinityd.audit.aside import HOLD, Aside
from affinityd.audit.device_files import DeviceFiles
from affinityd.audit.found import Found, silence
from affinityd.audit.model import Held, Holding
from affinityd.audit.nvml_holders import Report
from affinityd.topology import Gpu, Topology

NVIDIA, AMD = "nvidia", "amd"  #: Gpu.vendor of those whose driver tells who uses it

NVML_SECONDS = 10.0  #: that NVML may take to answer

#: How often NVML is asked while a GPU waits for its MIG mode to be changed, which takes a reset.
CHANGING_SECONDS = 60.0

#: /proc/self/ns/pid of those who see every process: PROC_PID_INIT_INO, kernel
#: include/linux/proc_ns.h.
INITIAL_PIDS = "pid:[4026531836]"

NOT_ALL_PIDS = (
    "it cannot be seen who uses it from a pid namespace of one's own; share the host's "
    "(Kubernetes: hostPID: true; Podman and Docker: --pid=host)"
)
NO_DRIVER = "NVIDIA's driver is not loaded"


def since_boot() -> float:
    """Return the seconds since boot, those of sleep included: what `stat` counts starts in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Holders:
    """Asks who uses the GPUs, again and again."""

    def __init__(
        self,
        ask_nvml: Callable[[float], Report],
        *,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        driver: str = "/proc/driver/nvidia",
        hold: str = HOLD,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        """Take who asks NVML, within so many seconds, and where the machine's files are.

        `hold`: the file that keeps NVML from being asked while it is there.
        """
        self._ask_nvml, self._proc, self._sys, self._clock = ask_nvml, proc, sys, clock
        self._version = f"{driver}/version"
        self._aside = Aside(proc, sys, hold)
        self._files = DeviceFiles(proc, sys, dev)
        self._change = float("-inf"), ""

    def held(self, topology: Topology) -> Held:
        """Return who uses the GPUs now, and of which GPUs that cannot be known.

        `asked` is from before anything was asked: a process that has started since may have the pid
        of one that was named and ended meanwhile. One that is really new is found the next time.
        """
        asked = self._clock()
        gpus = topology.gpus
        if not self._sees_all_pids():
            return Held(unknown=silence(gpus, NOT_ALL_PIDS).unknown, asked=asked)
        found = (
            self._of_nvidia([gpu for gpu in gpus if gpu.vendor == NVIDIA]),
            kfd.found([gpu for gpu in gpus if gpu.vendor == AMD], self._sys),
            self._files.found([gpu for gpu in gpus if gpu.vendor not in {NVIDIA, AMD}]),
        )
        return Held(
            holdings=one_a_process(holding for part in found for holding in part.holdings),
            unknown={key: why for part in found for key, why in part.unknown.items()},
            asked=asked,
            skipped=sum(part.skipped for part in found),
        )

    def _sees_all_pids(self) -> bool:
        try:
            return os.readlink(f"{self._proc}/self/ns/pid") == INITIAL_PIDS
        except OSError:  # a kernel without pid namespaces
            return True

    def _of_nvidia(self, gpus: Sequence[Gpu]) -> Found:
        if not gpus:
            return Found()
        # NVML would load a driver that is not there, and so fight an upgrade.
        if not os.path.exists(self._version):
            return silence(gpus, NO_DRIVER)
        if reason := self._aside.reason() or self._waits():
            return silence(gpus, reason)
        report = self._ask_nvml(NVML_SECONDS)
        if report.changing:
            self._change = self._clock(), report.changing
            return silence(gpus, self._waits() or report.changing)
        return nvml_holders.found(report, gpus)

    def _waits(self) -> str | None:
        """Return which change NVML is not asked for; None: none, or it is time to look again."""
        at, change = self._change
        if self._clock() - at >= CHANGING_SECONDS:
            return None
        return f"{change}: NVML is asked once a minute, until a reset has done that"


def one_a_process(holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    """Return each process with the GPU in which it holds most memory, by ascending pid.

    Of GPUs in which it holds as much, or nobody knows, that with the lowest index.
    """
    best: dict[int, Holding] = {}
    for holding in sorted(holdings, key=lambda it: (-(it.memory_bytes or 0), it.gpu[1], it.gpu[0])):
        best.setdefault(holding.pid, holding)
    return tuple(holding for pid, holding in sorted(best.items()) if pid > 0)
