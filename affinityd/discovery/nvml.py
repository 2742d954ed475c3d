"""What NVML knows of NVIDIA's GPUs, asked by a short-lived child.

A process that holds NVML open blocks GPU resets, MIG changes and driver upgrades, and a sick driver
hangs or crashes whoever calls it. So a child starts NVML, reads, shuts it down, prints a report and
ends; the asker never loads the library.

This is the only importer of pynvml, the module that the distribution nvidia-ml-py provides.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.discovery.child import ChildError, output
from affinityd.discovery.nvml_report import NvmlGpu, NvmlReport

__all__ = ["NvmlGpu", "NvmlReport", "ask"]

T = TypeVar("T")

#: 64 CPUs a word: 8192 CPUs, the most that an x86 kernel is built for.
AFFINITY_WORDS = 128

#: What nvmlReturn_t says of a feature that a GPU or driver has not: nothing to complain of.
LACKING = {3, 6, 13}  # NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND

#: nvmlReturn_t of nvmlInit → what would be right.
REMEDIES = {
    4: "; ask as root, or as a user who may open /dev/nvidiactl",  # NO_PERMISSION
    9: "; load the driver: modprobe nvidia",  # DRIVER_NOT_LOADED
    12: "; libnvidia-ml.so.1 comes with NVIDIA's driver",  # LIBRARY_NOT_FOUND
    18: "; after a driver upgrade, reload its modules or reboot",  # LIB_RM_VERSION_MISMATCH
}


def ask(timeout: float = 20.0) -> NvmlReport:
    """Return what NVML says now, after `timeout` seconds and a little grace at most.

    Whatever goes wrong is told by the report, never by an exception.
    """
    try:
        return NvmlReport.from_json(output(__name__, "main", timeout))
    except ChildError as error:
        return _silence(f"NVML {error}")
    except ValueError as error:
        return _silence(f"NVML's child printed no report: {error}")


def main() -> None:
    """Be the child: print a report."""
    sys.stdout.write(_read().to_json())


def _may_run_on(cpus: CpuSet) -> bool:
    """Widen this process's mask to `cpus`, and say if the kernel allowed them all.

    NVML leaves out the CPUs that its caller's cpuset does not hold: from a narrow one, what it
    says of affinity is not to be trusted.
    """
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    return bool(cpus) and cpus <= os.sched_getaffinity(0)


def _silence(error: str) -> NvmlReport:
    return NvmlReport(gpus=None, error=error)


def _read() -> NvmlReport:
    """Start NVML, ask everything, shut it down."""
    try:
        import pynvml  # noqa: PLC0415  an extra, slow to import, and needed in the child alone
    except ImportError:
        return _silence(
            "NVML needs pynvml, which is not installed: pip install 'affinityd[daemon]'"
        )
    trusted = _may_run_on(_online())
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        words = str(error).rstrip(".")
        return _silence(f"NVML did not start: {words}{REMEDIES.get(error.value, '')}")
    try:
        return NvmlReport(_gpus(pynvml, trusted), _driver_version(pynvml))
    except pynvml.NVMLError as error:
        return _silence(f"NVML did not count the GPUs: {error}")
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


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


def _gpus(nvml: ModuleType, trusted: bool) -> tuple[NvmlGpu, ...]:
    return tuple(_gpu(nvml, index, trusted) for index in range(nvml.nvmlDeviceGetCount()))


def _gpu(nvml: ModuleType, index: int, trusted: bool) -> NvmlGpu:
    try:
        gpu = _Handle(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return NvmlGpu(index, error=str(error))
    return NvmlGpu(
        index,
        uuid=gpu.told(nvml.nvmlDeviceGetUUID),
        pci_bus_id=gpu.told(_pci_bus_id, nvml),
        minor=gpu.told(nvml.nvmlDeviceGetMinorNumber),
        model=gpu.told(nvml.nvmlDeviceGetName),
        mig=gpu.mig(),
        node_cpus=gpu.cpus(nvml.NVML_AFFINITY_SCOPE_NODE) if trusted else frozenset(),
        socket_cpus=gpu.cpus(nvml.NVML_AFFINITY_SCOPE_SOCKET) if trusted else frozenset(),
        nvlinks=gpu.told(_nvlinks, nvml),
        error=next(iter(gpu.complaints), None),
    )


def _pci_bus_id(handle: object, nvml: ModuleType) -> str:
    return _as_sysfs(nvml.nvmlDeviceGetPciInfo(handle).busId)


def _as_sysfs(bus_id: str) -> str:
    """Write NVML's 00000000:07:00.0 as sysfs does; a domain above ffff keeps its digits."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def _nvlinks(handle: object, nvml: ModuleType) -> dict[str, int]:
    """Return the PCI bus id at the other end, a GPU or a switch → how many NVLinks are up."""
    ends = (nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link) for link in _up(handle, nvml))
    return dict(Counter(_as_sysfs(end.busId) for end in ends))


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


class _Handle:
    """A GPU to ask; a question that fails costs its own answer alone."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml, self._handle = nvml, handle
        self.complaints: list[str] = []

    def told(self, question: Callable[..., T], *arguments: object) -> T | None:
        """Return the answer; None, and a complaint if that is a fault, where there is none."""
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value not in LACKING:
                self.complaints.append(str(error))
        except ValueError as error:  # a sick GPU's text that is none
            self.complaints.append(str(error))
        return None

    def cpus(self, scope: int) -> CpuSet:
        """Return the CPUs near the GPU; empty where NVML does not know."""
        words = self.told(self._nvml.nvmlDeviceGetCpuAffinityWithinScope, AFFINITY_WORDS, scope)
        return parse_mask(bytes(words)[::-1].hex()) if words else frozenset()

    def mig(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG devices; of the slots for them, most may be empty."""
        mode = self.told(self._nvml.nvmlDeviceGetMigMode)
        if not mode or mode[0] != self._nvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        slots = range(self.told(self._nvml.nvmlDeviceGetMaxMigDeviceCount) or 0)
        return tuple(uuid for slot in slots if (uuid := self.told(self._mig_uuid, slot)))

    def _mig_uuid(self, handle: object, slot: int) -> str:
        device = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        return str(self._nvml.nvmlDeviceGetUUID(device))
