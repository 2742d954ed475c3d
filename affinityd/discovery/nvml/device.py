"""A GPU or MIG device to ask NVML about: a question that fails costs its own answer alone.

Nothing here imports pynvml: it is handed in by who started it (`affinityd.discovery.nvml.gpus`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")

#: What nvmlReturn_t says of a feature that a GPU or driver has not: nothing to complain of.
LACKING = {3, 6, 13}  # NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND


class Device:
    """What NVML's handle stands for."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        """Begin without complaints; those of its MIG devices become its own."""
        self.nvml, self._handle = nvml, handle
        self.complaints: list[str] = []

    def told(self, question: Callable[..., T], *arguments: object) -> T | None:
        """Return the answer; None, and a complaint if that is a fault, where there is none."""
        try:
            return question(self._handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value not in LACKING:
                self.complaints.append(str(error))
        except ValueError as error:  # a sick GPU's text that is none
            self.complaints.append(str(error))
        return None

    def uuid(self) -> str | None:
        """Return nvmlDeviceGetUUID."""
        return self.told(self.nvml.nvmlDeviceGetUUID)

    def pci_bus_id(self) -> str | None:
        """Return nvmlDeviceGetPciInfo's bus id as sysfs writes it."""
        return self.told(_pci_bus_id, self.nvml)

    def mig_modes(self) -> tuple[bool, bool]:
        """Return whether MIG is on, and whether it is to be on after the next reset."""
        current, pending = self.told(self.nvml.nvmlDeviceGetMigMode) or (None, None)
        enabled = self.nvml.NVML_DEVICE_MIG_ENABLE
        return current == enabled, pending == enabled

    def mig_devices(self) -> Iterator[Device]:
        """Yield the MIG devices; of the slots for them, most may be empty."""
        is_divided, _ = self.mig_modes()
        slots = self.told(self.nvml.nvmlDeviceGetMaxMigDeviceCount) if is_divided else None
        for slot in range(slots or 0):
            handle = self.told(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex, slot)
            if handle is not None:
                device = Device(self.nvml, handle)
                device.complaints = self.complaints
                yield device


def as_sysfs(bus_id: str) -> str:
    """Write NVML's 00000000:07:00.0 as sysfs does; a domain above ffff keeps its digits."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def _pci_bus_id(handle: object, nvml: ModuleType) -> str:
    return as_sysfs(nvml.nvmlDeviceGetPciInfo(handle).busId)
