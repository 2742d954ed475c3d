"""NVML in a child process: initialized, called, shut down.

A process that holds NVML open blocks GPU resets, MIG changes and driver upgrades, and a faulty
driver hangs or crashes its caller. So a short-lived child starts NVML, reads, shuts it down, prints
a report and ends; the caller never loads the library.

This is the only importer of pynvml, the module that the distribution nvidia-ml-py provides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from affinityd.discovery.nvml.report import R, read_report
from affinityd.errors import NVML_EXTRA, AffinityError
from affinityd.json_codec import dumps
from affinityd.linux.children import GRACE, ChildError, check_stuck, ending, run, stuck

T = TypeVar("T")

#: Isolated (-I), so neither the environment nor the working folder brings code into the child; it
#: imports from where its parent does. The timer ends a child that hangs although its parent has
#: ended. A driver library's stdout goes to stderr.
CODE = (
    "import importlib, os, signal, sys; signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1])); "
    "sys.stdout = open(os.dup(1), 'w', encoding='utf-8', errors='replace'); os.dup2(2, 1); "
    "sys.path[:] = sys.argv[3:]; importlib.import_module(sys.argv[2]).main()"
)

#: nvmlReturn_t of nvmlInit → the remedy.
REMEDIES = {
    4: "ask as root, or as a user who may open /dev/nvidiactl",  # NO_PERMISSION
    9: "load the driver: modprobe nvidia",  # DRIVER_NOT_LOADED
    # LIBRARY_NOT_FOUND
    12: "libnvidia-ml.so.1 comes with NVIDIA's driver, and into a container with NVIDIA's runtime "
    "(NVIDIA_DRIVER_CAPABILITIES=utility)",
    18: "after a driver upgrade, reload its modules or reboot",  # LIB_RM_VERSION_MISMATCH
}

#: nvmlReturn_t of a feature that the GPU or driver lacks, which is no error.
LACKING = {3, 6, 13}  # NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND


class NvmlUnavailableError(Exception):
    """NVML does not answer; one line with the reason, and the remedy, if one is known."""

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause)
        self.remedy = remedy


@dataclass(frozen=True)
class NvmlDevice:
    """A GPU or MIG device to query: a query that fails costs only its own answer."""

    nvml: ModuleType
    handle: object  #: None: NVML gives none, and `errors` have the reason
    errors: list[str]  #: those of its MIG devices, too

    def query(self, question: Callable[..., T], *arguments: object) -> T | None:
        """Return the answer; None: there is none; `errors` has the reason if that is a fault."""
        try:
            return question(self.handle, *arguments) if self.handle is not None else None
        except self.nvml.NVMLError as error:
            if error.value not in LACKING:
                self.errors.append(str(error))
        except ValueError as error:  # text of a faulty GPU that is not UTF-8
            self.errors.append(str(error))
        return None

    @property
    def error(self) -> str | None:
        """The first of the errors."""
        return next(iter(self.errors), None)

    def uuid(self) -> str | None:
        """Return nvmlDeviceGetUUID."""
        return self.query(self.nvml.nvmlDeviceGetUUID)

    def pci_bus_id(self) -> str | None:
        """Return nvmlDeviceGetPciInfo's bus id as sysfs writes it."""
        return self.query(lambda handle: as_sysfs(self.nvml.nvmlDeviceGetPciInfo(handle).busId))

    def mig_modes(self) -> tuple[bool, bool]:
        """Return whether MIG is on, and whether it will be on after the next reset."""
        current, pending = self.query(self.nvml.nvmlDeviceGetMigMode) or (None, None)
        enabled = self.nvml.NVML_DEVICE_MIG_ENABLE
        return current == enabled, pending == enabled

    def mig_devices(self) -> Iterator[NvmlDevice]:
        """Yield the MIG devices; of the slots for them, most may be empty."""
        is_on, _ = self.mig_modes()
        slots = self.query(self.nvml.nvmlDeviceGetMaxMigDeviceCount) if is_on else None
        for slot in range(slots or 0):
            handle = self.query(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex, slot)
            if handle is not None:
                yield NvmlDevice(self.nvml, handle, self.errors)


def as_sysfs(bus_id: str) -> str:
    """Write NVML's 00000000:07:00.0 as sysfs does; a domain above ffff keeps its digits."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def ask(module: str, report: type[R], timeout: float) -> R:
    """Return the report that `module.main` prints in a child. Every failure is in the report."""
    return _read(report, lambda: _printed_by(module, timeout))


def ask_fork(read: Callable[[ModuleType], R], report: type[R], timeout: float) -> R:
    """Return the report by `read`, in a fork of this process. Every failure is in the report.

    This process imports pynvml, which loads no library, once for all forks.
    """
    with suppress(ImportError):
        import pynvml  # noqa: F401, PLC0415

    def answer() -> str:
        return run(lambda: _answer(report, read).encode(), time.monotonic() + timeout).decode()

    return _read(report, answer)


def _read(report: type[R], answer: Callable[[], str]) -> R:
    try:
        return read_report(report, answer())
    except TimeoutError:
        return report(gpus=None, error="NVML did not answer in time")
    except AffinityError as error:
        return report(gpus=None, error=f"NVML {error}")
    except ValueError as error:
        return report(gpus=None, error=f"NVML's child printed no report: {error}")


def _printed_by(module: str, timeout: float) -> str:
    """Return the output of `main` of a module, in a new interpreter, as a process of threads needs.

    Raises ChildError, TimeoutError.
    """
    check_stuck()
    own_end = str(timeout + GRACE)
    command = [sys.executable, "-I", "-c", CODE, own_end, module, *map(os.path.abspath, sys.path)]
    try:
        child = subprocess.Popen(  # noqa: S603 - this very interpreter, with the code above
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a process group, to be killed as one
        )
    except OSError as error:
        raise ChildError(f"could not be started: {error}") from None
    try:
        printed, complaint = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            stuck.append(child.pid)
        raise TimeoutError from None
    if child.returncode < 0:
        raise ChildError(ending(child.returncode))
    if child.returncode:
        raise ChildError(
            f"failed: {complaint.decode(errors='replace').strip().rpartition(chr(10))[2]}"
        )
    return printed.decode(errors="replace")


def print_report(report: type[R], read: Callable[[ModuleType], R]) -> None:
    """Run in the child: start NVML, print the result of `read`, shut it down."""
    sys.stdout.write(_answer(report, read))


def _answer(report: type[R], read: Callable[[ModuleType], R]) -> str:
    try:
        with _session() as nvml:
            return dumps(read(nvml))
    except NvmlUnavailableError as error:
        return dumps(report(gpus=None, error=str(error), remedy=error.remedy))


def devices(nvml: ModuleType) -> list[NvmlDevice]:
    """Return the GPUs by index. Raises NvmlUnavailableError."""
    try:
        return [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML did not count the GPUs: {error}") from None


def _device(nvml: ModuleType, index: int) -> NvmlDevice:
    try:
        return NvmlDevice(nvml, nvml.nvmlDeviceGetHandleByIndex(index), [])
    except nvml.NVMLError as error:
        return NvmlDevice(nvml, None, [str(error)])


@contextmanager
def _session() -> Iterator[ModuleType]:
    """Start NVML, give pynvml, and shut NVML down. Raises NvmlUnavailableError."""
    try:
        import pynvml  # noqa: PLC0415  an extra, slow to import, and needed in a child alone
    except ImportError:
        missing = "NVML needs nvidia-ml-py, which is not installed"
        raise NvmlUnavailableError(missing, NVML_EXTRA) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        cause = f"NVML did not start: {str(error).rstrip('.')}"
        raise NvmlUnavailableError(cause, REMEDIES.get(error.value)) from None
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
