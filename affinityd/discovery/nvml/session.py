"""NVML in a child process: started, asked, shut down again.

A process that holds NVML open blocks GPU resets, MIG changes and driver upgrades, and a faulty
driver hangs or crashes its caller. So a short-lived child starts NVML, reads, shuts it down, prints
a report and ends; the caller never loads the library.

This is the only importer of pynvml, the module that the distribution nvidia-ml-py provides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TypeVar

from affinityd.discovery.nvml.device import NvmlDevice
from affinityd.discovery.nvml.subprocess import ChildError, output
from affinityd.errors import NVML_EXTRA

R = TypeVar("R")

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
    """Start NVML, give pynvml, and shut NVML down.

    Raises NvmlUnavailableError where it cannot be asked.
    """
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
    """Yield the GPUs by index: each to be asked, or why it cannot be.

    Raises NvmlUnavailableError.
    """
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
