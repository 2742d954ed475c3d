"""The holders of the machine's GPUs, by each vendor's own source: each process once.

NVIDIA: NVML, called in a child. AMD: KFD. All others: the holders of the device files.
"""

from __future__ import annotations

# ruff: noqa: PTH115 - a scan is cheap
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from affinityd.audit.facts.holding import GpuHolders, Holding
from affinityd.audit.sources import kfd
from affinityd.audit.sources.device_files import DeviceFileScanner
from affinityd.audit.sources.driver_maintenance import HOLD, DriverMaintenance
from affinityd.audit.sources.nvml import NvmlSource
from affinityd.discovery.nvml import ProcessReport
from affinityd.linux.processes import INITIAL_PIDS, process_of, since_boot
from affinityd.topology.model import Topology

NVIDIA, AMD = "nvidia", "amd"  #: Gpu.vendor, if its driver names the holders

#: A process works on a GPU if it holds this part there of its memory in its first GPU.
LEAST = 0.25

NOT_ALL_PIDS = (
    "its processes are not visible here, in another pid namespace than the host's; share the "
    "host's (Kubernetes: hostPID: true; Podman and Docker: --pid=host)"
)


class HolderSources:
    """Finds the holders of the GPUs, at each scan."""

    def __init__(
        self,
        ask_nvml: Callable[[float], ProcessReport],
        *,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        driver: str = "/proc/driver/nvidia",
        hold: str = HOLD,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        """Take the function that calls NVML, its time limit, and the root of the machine's files.

        `hold`: while this file exists, NVML is not called.
        """
        self._proc, self._sys, self._clock = proc, sys, clock
        self._nvml = NvmlSource(ask_nvml, DriverMaintenance(sys, hold, proc), driver, clock)
        self._files = DeviceFileScanner(proc, sys, dev)

    def held(self, topology: Topology) -> GpuHolders:
        """Return the holders of the GPUs now, and the GPUs with unknown holders.

        `asked` is the time before the first query: a process that has started since may have the
        pid of a named one that has ended. A really new one is found at the next scan.
        """
        asked = self._clock()
        gpus = topology.gpus
        if not _sees_all_pids(self._proc):
            return replace(GpuHolders.unknown_of(gpus, NOT_ALL_PIDS), asked=asked)
        found = (
            self._nvml.found([gpu for gpu in gpus if gpu.vendor == NVIDIA]),
            kfd.found([gpu for gpu in gpus if gpu.vendor == AMD], self._sys),
            self._files.found([gpu for gpu in gpus if gpu.vendor not in {NVIDIA, AMD}]),
        )
        return GpuHolders(
            holdings=one_a_process((it for part in found for it in part.holdings), self._proc),
            unknown={key: why for part in found for key, why in part.unknown.items()},
            asked=min(asked, *(part.asked for part in found)),
            skipped=sum(part.skipped for part in found),
            notices=tuple(notice for part in found for notice in part.notices),
        )


def _sees_all_pids(proc: str) -> bool:
    try:
        return os.readlink(f"{proc}/self/ns/pid") == INITIAL_PIDS
    except OSError:  # a kernel without pid namespaces
        return True


def one_a_process(holdings: Iterable[Holding], proc: str) -> tuple[Holding, ...]:
    """Return each process with the GPUs that it works on, by ascending pid.

    A driver may name a thread with its process, or instead of it.

    First is the GPU in which it holds most memory, and of several such, or where that is not known,
    the one with the lowest index. Beside it are those in which it holds a quarter of that, or more:
    a process that divides work between GPUs holds about as much in each, seldom less than half. A
    mere context, which NCCL or a careless `cuda:0` leaves on GPU 0, is 300 to 500 MiB: less than
    a quarter of a computing program's memory. A GPU in which its memory is not known, as of
    open device files, counts, too: to be near one more costs no CPU.
    """
    of_process: defaultdict[int, list[Holding]] = defaultdict(list)
    for holding in sorted(holdings, key=lambda it: (-(it.memory_bytes or 0), it.gpu[1], it.gpu[0])):
        if holding.pid > 0:
            of_process[process_of(holding.pid, proc) or holding.pid].append(holding)
    return tuple(_together(pid, *those) for pid, those in sorted(of_process.items()))


def _together(pid: int, first: Holding, *others: Holding) -> Holding:
    least = (first.memory_bytes or 0) * LEAST
    used = {it.gpu for it in others if it.memory_bytes is None or it.memory_bytes >= least}
    return replace(first, pid=pid, beside=tuple(sorted(used - {first.gpu})))
