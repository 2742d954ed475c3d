"""NVML, called by short-lived children: facts about GPUs, and the processes that use them.

A process that holds NVML open blocks GPU resets, MIG changes and driver upgrades, and a faulty
driver hangs or crashes its caller. So a child starts NVML, queries it, shuts it down, prints a
report and ends; its parent never loads the library.

This is the only importer of pynvml, the module that the distribution nvidia-ml-py provides.
Sources: nvml.h on nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses and
nvmlDeviceGetMPSComputeRunningProcesses (privileges, MIG handles), nvidia-ml-py's calls of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from types import ModuleType
from typing import TypeVar

from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.discovery.nvml import (
    GpuProcesses,
    NvmlGpu,
    NvmlLoad,
    NvmlProcess,
    NvmlReport,
    ProcessReport,
    R,
    read_report,
)
from affinityd.errors import AffinityError
from affinityd.json_codec import dumps
from affinityd.linux.children import GRACE, ChildError, check_stuck, ending, run, run_program, stuck
from affinityd.linux.files import text
from affinityd.text import printable

T = TypeVar("T")

#: Isolated (-I): neither the environment nor the working folder brings code into the child; it
#: imports from where its parent does. The timer ends a hanging child whose parent has ended. What
#: a driver library prints to stdout goes to stderr.
CODE = (
    "import importlib, os, signal, sys; signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1])); "
    "sys.stdout = open(os.dup(1), 'w', encoding='utf-8', errors='replace'); os.dup2(2, 1); "
    f"sys.path[:] = sys.argv[2:]; importlib.import_module({__name__!r}).main()"
)

#: nvmlReturn_t of nvmlInit → the remedy.
INIT_REMEDIES = {
    4: "ask as root, or as a user who may open /dev/nvidiactl",  # NO_PERMISSION
    9: "load the driver: modprobe nvidia",  # DRIVER_NOT_LOADED
    # LIBRARY_NOT_FOUND
    12: "libnvidia-ml.so.1 is a part of NVIDIA's driver; NVIDIA's runtime adds it to containers "
    "(NVIDIA_DRIVER_CAPABILITIES=utility)",
    18: "after a driver upgrade, reload its modules or reboot",  # LIB_RM_VERSION_MISMATCH
}

UNKNOWN_ERROR = 999
#: nvmlReturn_t of a GPU that can no longer compute: INSUFFICIENT_POWER, TIMEOUT, IRQ_ISSUE,
#: GPU_IS_LOST, RESET_REQUIRED.
FAULTS = {8, 10, 11, 15, 16, UNKNOWN_ERROR}


class _UncountedError(Exception):
    """NVML cannot count the GPUs; the message is the reason, one line."""


@dataclass(frozen=True)
class NvmlDevice:
    """A GPU or MIG device to query: a query that fails loses only its own answer."""

    nvml: ModuleType
    handle: object  #: None: NVML gave no handle, and `errors` says why
    errors: dict[str, int]  #: message → nvmlReturn_t; a GPU's MIG devices share it

    def query(self, question: Callable[..., T], *arguments: object) -> T | None:
        """Return the answer; None: there is no answer. A fault is noted in `errors`."""
        try:
            return question(self.handle, *arguments) if self.handle is not None else None
        except self.nvml.NVMLError as error:
            # It is no error if the GPU or driver lacks a feature: NOT_SUPPORTED, NOT_FOUND,
            # FUNCTION_NOT_FOUND.
            if error.value not in {3, 6, 13}:
                self.errors[str(error)] = error.value
        except ValueError as error:  # a faulty GPU's text is not UTF-8
            self.errors[str(error)] = UNKNOWN_ERROR
        return None

    def uuid(self) -> str | None:
        """Return nvmlDeviceGetUUID."""
        return self.query(self.nvml.nvmlDeviceGetUUID)

    def pci_bus_id(self) -> str | None:
        """Return nvmlDeviceGetPciInfo's bus id as sysfs writes it."""
        return self.query(lambda handle: as_sysfs(self.nvml.nvmlDeviceGetPciInfo(handle).busId))

    def is_divided(self) -> bool:
        """Return whether MIG is on."""
        current, _ = self.query(self.nvml.nvmlDeviceGetMigMode) or (None, None)
        return bool(current == self.nvml.NVML_DEVICE_MIG_ENABLE)

    def mig_devices(self) -> Iterator[NvmlDevice]:
        """Yield the MIG devices; most of their slots may be empty."""
        counts = self.nvml.nvmlDeviceGetMaxMigDeviceCount
        slots = self.query(counts) if self.is_divided() else None
        for slot in range(slots or 0):
            handle = self.query(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex, slot)
            if handle is not None:
                yield NvmlDevice(self.nvml, handle, self.errors)


def as_sysfs(bus_id: str) -> str:
    """Write NVML's 00000000:07:00.0 as sysfs does; a domain above ffff keeps its digits."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def query_gpus(timeout: float = 20.0) -> NvmlReport:
    """Query NVML in a new interpreter; return its report, or a report that says why NVML failed."""
    return _read(NvmlReport, lambda: _printed(timeout))


def main() -> None:
    """Run as the child of `query_gpus`: print a report."""
    sys.stdout.write(_answer(NvmlReport, _report_gpus))


def query_processes(timeout: float) -> ProcessReport:
    """Query NVML in a fork; return its report, or a report that says why NVML failed."""
    with suppress(ImportError):  # imported once, for all forks
        import pynvml  # noqa: F401, PLC0415

    def answer() -> str:
        work = lambda: _answer(ProcessReport, _report_processes).encode()  # noqa: E731
        return run(work, time.monotonic() + timeout).decode()

    return _read(ProcessReport, answer)


def _read(report: type[R], answer: Callable[[], str]) -> R:
    try:
        return read_report(report, answer())
    except TimeoutError:
        # This is not `has_hung`: while a GPU is initialized, the driver also blocks a killed child
        # for seconds. A child that is still blocked at the next query is another error.
        return report(gpus=None, error="NVML did not answer in time", is_late=True)
    except AffinityError as error:
        return report(gpus=None, error=f"NVML {error}", has_hung=bool(stuck))
    except ValueError as error:
        return report(gpus=None, error=f"NVML's child printed no report: {error}")


def _printed(timeout: float) -> str:
    check_stuck()
    own_end = str(timeout + GRACE)
    command = [sys.executable, "-I", "-c", CODE, own_end, *map(os.path.abspath, sys.path)]
    child = run_program(command, timeout)
    if child.returncode < 0:
        raise ChildError(ending(child.returncode))
    if child.returncode:
        last_line = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildError(f"failed: {last_line}")
    return child.stdout.decode(errors="replace")


def _answer(report: type[R], read: Callable[[ModuleType], R]) -> str:
    """Start NVML, read it, and shut it down; return the report in JSON."""
    try:
        import pynvml  # noqa: PLC0415 - an extra, slow to import, and needed in a child alone
    except ImportError:
        missing = "NVML needs nvidia-ml-py, which is not installed"
        remedy = "install the package affinityd-daemon, or affinityd's extra nvml (docs/install.md)"
        return dumps(report(gpus=None, error=missing, remedy=remedy))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        cause = f"NVML did not start: {str(error).rstrip('.')}"
        return dumps(report(gpus=None, error=cause, remedy=INIT_REMEDIES.get(error.value)))
    try:
        return dumps(read(pynvml))
    except _UncountedError as error:
        return dumps(report(gpus=None, error=str(error)))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _devices(nvml: ModuleType) -> list[NvmlDevice]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise _UncountedError(f"NVML did not count the GPUs: {error}") from None
    devices = []
    for index in range(count):
        try:
            devices.append(NvmlDevice(nvml, nvml.nvmlDeviceGetHandleByIndex(index), {}))
        except nvml.NVMLError as error:  # noqa: PERF203 - there are few
            devices.append(NvmlDevice(nvml, None, {str(error): error.value}))
    return devices


def _may_run_on(cpus: CpuSet) -> bool:
    """Widen this process's mask to `cpus`; return whether the kernel allowed all of them.

    NVML's answer about affinity leaves out CPUs that are not in its caller's cpuset.
    """
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    return bool(cpus) and cpus <= os.sched_getaffinity(0)


def _report_gpus(nvml: ModuleType) -> NvmlReport:
    trusted = _may_run_on(_online())
    devices = _devices(nvml)
    version = None
    with suppress(nvml.NVMLError):
        version = str(nvml.nvmlSystemGetDriverVersion())
    gpus = tuple(_facts(index, gpu, trusted) for index, gpu in enumerate(devices))
    return NvmlReport(gpus, version)


def _online() -> CpuSet:
    try:
        return parse_list(text("/sys/devices/system/cpu/online"))
    except ValueError:
        return frozenset()


def _facts(index: int, gpu: NvmlDevice, trusted: bool) -> NvmlGpu:
    nvml = gpu.nvml
    return NvmlGpu(
        index,
        uuid=gpu.uuid(),
        pci_bus_id=gpu.pci_bus_id(),
        minor=gpu.query(nvml.nvmlDeviceGetMinorNumber),
        model=gpu.query(nvml.nvmlDeviceGetName),
        mig=tuple(uuid for device in gpu.mig_devices() if (uuid := device.uuid())),
        node_cpus=_node_cpus(gpu) if trusted else frozenset(),
        error=next(iter(gpu.errors), None),
    )


def _node_cpus(gpu: NvmlDevice) -> CpuSet:
    scope = gpu.nvml.NVML_AFFINITY_SCOPE_NODE
    most = 8192 // 64  # words of 64 CPUs; no x86 kernel is built for more than 8192
    words = gpu.query(gpu.nvml.nvmlDeviceGetCpuAffinityWithinScope, most, scope)
    return parse_mask(bytes(words)[::-1].hex()) if words else frozenset()


NO_LIST = (
    "NVML lists no processes here: the driver is older than R510, or the GPU cannot report them"
)


def _report_processes(nvml: ModuleType) -> ProcessReport:
    gpus = (_processes(index, gpu) for index, gpu in enumerate(_devices(nvml)))
    return ProcessReport(tuple(gpus))


def _processes(index: int, gpu: NvmlDevice) -> GpuProcesses:
    uuid = gpu.uuid()
    pci_bus_id = gpu.pci_bus_id()
    is_divided = gpu.is_divided()
    # Only a privileged process may query a GPU in MIG mode itself, and no process runs outside
    # the GPU's MIG devices.
    parts: list[tuple[NvmlDevice, str | None]] = [(gpu, None)]
    if is_divided:
        parts = [(part, part.uuid()) for part in gpu.mig_devices()]
    return GpuProcesses(
        index,
        uuid=uuid and printable(uuid),  # printable, as in discovery
        pci_bus_id=pci_bus_id,
        processes=tuple(chain.from_iterable(_listed(part, mig) for part, mig in parts)),
        error=next(iter(gpu.errors), None),
        is_lost=not FAULTS.isdisjoint(gpu.errors.values()),
        load=_load(NvmlDevice(gpu.nvml, gpu.handle, {})),  # a failure must not hide processes
    )


def _load(gpu: NvmlDevice) -> NvmlLoad:
    rates = gpu.query(gpu.nvml.nvmlDeviceGetUtilizationRates)
    memory = gpu.query(gpu.nvml.nvmlDeviceGetMemoryInfo)
    return NvmlLoad(
        rates.gpu if rates else None,
        memory.used if memory else None,
        memory.total if memory else None,
    )


def _listed(device: NvmlDevice, mig: str | None) -> Iterator[NvmlProcess]:
    """Yield a device's processes; note an error if there is no list of computing processes."""
    nvml = device.nvml
    lists = {
        "compute": device.query(nvml.nvmlDeviceGetComputeRunningProcesses_v3),
        "graphics": device.query(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
        "mps": device.query(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
    }
    if lists["compute"] is None:
        device.errors[NO_LIST] = 0
    for kind, processes in lists.items():
        for process in processes or ():
            yield NvmlProcess(process.pid, kind, process.usedGpuMemory, mig)
