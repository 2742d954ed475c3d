"""A GPU or MIG device to ask NVML about: a question that fails costs its own answer alone.

Nothing here imports pynvml: the module is an argument (`affinityd.discovery.nvml.session`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")

#: nvmlReturn_t of a feature that the GPU or driver lacks, which is no error.
LACKING = {3, 6, 13}  # NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND


class NvmlDevice:
    """What NVML's handle stands for."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        """Begin without errors; those of its MIG devices become its own."""
        self.nvml, self._handle = nvml, handle
        self.errors: list[str] = []

    def query(self, question: Callable[..., T], *arguments: object) -> T | None:
        """Return the answer; None where there is none, and `errors` says why if that is a fault."""
        try:
            return question(self._handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value not in LACKING:
                self.errors.append(str(error))
        except ValueError as error:  # text of a faulty GPU that is not UTF-8
            self.errors.append(str(error))
        return None

    def uuid(self) -> str | None:
        """Return nvmlDeviceGetUUID."""
        return self.query(self.nvml.nvmlDeviceGetUUID)

    def pci_bus_id(self) -> str | None:
        """Return nvmlDeviceGetPciInfo's bus id as sysfs writes it."""
        return self.query(_pci_bus_id, self.nvml)

    def mig_modes(self) -> tuple[bool, bool]:
        """Return whether MIG is on, and whether it is to be on after the next reset."""
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
                device = NvmlDevice(self.nvml, handle)
                device.errors = self.errors
                yield device


def as_sysfs(bus_id: str) -> str:
    """Write NVML's 00000000:07:00.0 as sysfs does; a domain above ffff keeps its digits."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def _pci_bus_id(handle: object, nvml: ModuleType) -> str:
    return as_sysfs(nvml.nvmlDeviceGetPciInfo(handle).busId)
