"""NVML's facts about GPUs, read by a short-lived child."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.discovery.nvml.session import NvmlDevice, as_sysfs, ask, devices, print_report
from affinityd.linux.files import text

#: 64 CPUs a word: 8192 CPUs, the most that an x86 kernel is built for.
AFFINITY_WORDS = 128


def query(timeout: float = 20.0) -> NvmlReport:
    """Return NVML's report, after `timeout` seconds and a little grace at most.

    Every failure is in the report; none is raised.
    """
    return ask(__name__, NvmlReport, timeout)


def main() -> None:
    """Be the child: print a report."""
    print_report(NvmlReport, _report)


def _may_run_on(cpus: CpuSet) -> bool:
    """Widen this process's mask to `cpus`; return whether the kernel allowed them all.

    NVML leaves out the CPUs that its caller's cpuset does not hold: from a narrow one, its answer
    about affinity is wrong.
    """
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    return bool(cpus) and cpus <= os.sched_getaffinity(0)


def _report(nvml: ModuleType) -> NvmlReport:
    trusted = _may_run_on(_online())
    gpus = tuple(_gpu(index, it, trusted) for index, it in enumerate(devices(nvml)))
    return NvmlReport(gpus, _driver_version(nvml))


def _online() -> CpuSet:
    """Return /sys/devices/system/cpu/online; empty where it cannot be read."""
    try:
        return parse_list(text("/sys/devices/system/cpu/online"))
    except ValueError:
        return frozenset()


def _driver_version(nvml: ModuleType) -> str | None:
    with suppress(nvml.NVMLError):
        return str(nvml.nvmlSystemGetDriverVersion())
    return None


def _gpu(index: int, gpu: NvmlDevice, trusted: bool) -> NvmlGpu:
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
        error=gpu.error,
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
