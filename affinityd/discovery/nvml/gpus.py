"""What NVML knows of NVIDIA's GPUs, asked by a short-lived child.

A process that holds NVML open blocks GPU resets, MIG changes and driver upgrades, and a sick driver
hangs or crashes its caller. So a child starts NVML, reads, shuts it down, prints a report and
ends; the asker never loads the library.

This is the only importer of pynvml, the module that the distribution nvidia-ml-py provides.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.discovery.nvml.device import NvmlDevice, as_sysfs
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.discovery.nvml.subprocess import ChildError, output
from affinityd.errors import NVML_EXTRA
from affinityd.json_codec import dumps

__all__ = ["NvmlGpu", "NvmlReport", "NvmlUnavailableError", "devices", "query", "session"]

R = TypeVar("R")

#: 64 CPUs a word: 8192 CPUs, the most that an x86 kernel is built for.
AFFINITY_WORDS = 128

#: nvmlReturn_t of nvmlInit → what would be right.
REMEDIES = {
    4: "ask as root, or as a user who may open /dev/nvidiactl",  # NO_PERMISSION
    9: "load the driver: modprobe nvidia",  # DRIVER_NOT_LOADED
    # LIBRARY_NOT_FOUND
    12: "libnvidia-ml.so.1 comes with NVIDIA's driver, and into a container with NVIDIA's runtime "
    "(NVIDIA_DRIVER_CAPABILITIES=utility)",
    18: "after a driver upgrade, reload its modules or reboot",  # LIB_RM_VERSION_MISMATCH
}


class NvmlUnavailableError(Exception):
    """NVML does not answer; one line that says why, and the remedy, where one is known."""

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(f"{cause}; {remedy}" if remedy else cause)
        self.cause = cause
        self.remedy = remedy


def query(timeout: float = 20.0) -> NvmlReport:
    """Return what NVML says now, after `timeout` seconds and a little grace at most.

    Every failure is in the report, never by an exception.
    """
    return run_in_child(__name__, NvmlReport.from_json, _unavailable, timeout)


def main() -> None:
    """Be the child: print a report."""
    sys.stdout.write(dumps(_read()))


def run_in_child(
    module: str, read: Callable[[str], R], unavailable: Callable[[str], R], timeout: float
) -> R:
    """Return what `read` makes of the report that `module.main` prints in a child.

    `read` raises ValueError for what is no report. Of any failure `unavailable` makes the answer
    from one line about it.
    """
    try:
        return read(output(module, "main", timeout))
    except ChildError as error:
        return unavailable(f"NVML {error}")
    except ValueError as error:
        return unavailable(f"NVML's child printed no report: {error}")


@contextmanager
def session() -> Iterator[ModuleType]:
    """Start NVML, give pynvml, and shut NVML down. Raises SilenceError where it cannot be asked."""
    try:
        import pynvml  # noqa: PLC0415  an extra, slow to import, and needed in a child alone
    except ImportError:
        raise NvmlUnavailableError(
            "NVML needs nvidia-ml-py, which is not installed", NVML_EXTRA
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        words = str(error).rstrip(".")
        remedy = REMEDIES.get(error.value)
        raise NvmlUnavailableError(f"NVML did not start: {words}", remedy) from None
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def devices(nvml: ModuleType) -> Iterator[NvmlDevice | str]:
    """Yield the GPUs by index: each to be asked, or why it cannot be. Raises SilenceError."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML did not count the GPUs: {error}") from None
    yield from (_device(nvml, index) for index in range(count))


def _device(nvml: ModuleType, index: int) -> NvmlDevice | str:
    try:
        return NvmlDevice(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return str(error)


def _may_run_on(cpus: CpuSet) -> bool:
    """Widen this process's mask to `cpus`, and say if the kernel allowed them all.

    NVML leaves out the CPUs that its caller's cpuset does not hold: from a narrow one, what it
    says of affinity is not to be trusted.
    """
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    return bool(cpus) and cpus <= os.sched_getaffinity(0)


def _unavailable(error: str) -> NvmlReport:
    return NvmlReport(gpus=None, error=error)


def _read() -> NvmlReport:
    """Start NVML, ask everything, shut it down."""
    trusted = _may_run_on(_online())
    try:
        with session() as nvml:
            gpus = tuple(_gpu(index, it, trusted) for index, it in enumerate(devices(nvml)))
            return NvmlReport(gpus, _driver_version(nvml))
    except NvmlUnavailableError as error:
        return NvmlReport(gpus=None, error=error.cause, remedy=error.remedy)


def _online() -> CpuSet:
    """Return /sys/devices/system/cpu/online; empty where it cannot be read."""
    try:
        return parse_list(Path("/sys/devices/system/cpu/online").read_text())
    except (OSError, ValueError):
        return frozenset()


def _driver_version(nvml: ModuleType) -> str | None:
    with suppress(nvml.NVMLError):
        return str(nvml.nvmlSystemGetDriverVersion())
    return None


def _gpu(index: int, gpu: NvmlDevice | str, trusted: bool) -> NvmlGpu:
    if isinstance(gpu, str):
        return NvmlGpu(index, error=gpu)
    nvml = gpu.nvml
    return NvmlGpu(
        index,
        uuid=gpu.uuid(),
        pci_bus_id=gpu.pci_bus_id(),
        minor=gpu.query(nvml.nvmlDeviceGetMinorNumber),
        model=gpu.query(nvml.nvmlDeviceGetName),
        mig=tuple(uuid for device in gpu.mig_devices() if (uuid := device.uuid())),
        node_cpus=_cpus(gpu, nvml.NVML_AFFINITY_SCOPE_NODE) if trusted else frozenset(),
        socket_cpus=_cpus(gpu, nvml.NVML_AFFINITY_SCOPE_SOCKET) if trusted else frozenset(),
        nvlinks=gpu.query(_nvlinks, nvml),
        persistence=_persistence(gpu),
        error=next(iter(gpu.errors), None),
    )


def _cpus(gpu: NvmlDevice, scope: int) -> CpuSet:
    """Return the CPUs near the GPU; empty where NVML does not know."""
    words = gpu.query(gpu.nvml.nvmlDeviceGetCpuAffinityWithinScope, AFFINITY_WORDS, scope)
    return parse_mask(bytes(words)[::-1].hex()) if words else frozenset()


def _persistence(gpu: NvmlDevice) -> bool | None:
    mode = gpu.query(gpu.nvml.nvmlDeviceGetPersistenceMode)
    return None if mode is None else mode == gpu.nvml.NVML_FEATURE_ENABLED


def _nvlinks(handle: object, nvml: ModuleType) -> dict[str, int]:
    """Return the PCI bus id at the other end, a GPU or a switch → how many NVLinks are up."""
    ends = (nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link) for link in _up(handle, nvml))
    return dict(Counter(as_sysfs(end.busId) for end in ends))


def _up(handle: object, nvml: ModuleType) -> Iterator[int]:
    """Yield the numbers of the NVLinks that are up."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            is_up = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError_NotSupported:
            return  # the GPU has no NVLink: one question is enough
        except nvml.NVMLError_InvalidArgument:
            continue  # it has fewer than the newest GPUs
        if is_up:
            yield link
