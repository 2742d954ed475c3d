"""Names of GPUs: from the numbers a process sees to the node's own.

Two renumberings separate a process's index from the node's: those of a container runtime or device
cgroup, and of the vendor's variable (visible_devices.py). Sources: CUDA C++
Programming Guide "CUDA Environment Variables"; ROCm documentation "GPU isolation techniques".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.text import quote
from affinityd.topology.derived import derived
from affinityd.topology.model import Gpu, Topology

_PCI = re.compile(r"([0-9a-f]{4}|[0-9a-f]{8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]+", re.ASCII)
MAX_DIGITS = 9  #: of an index that some machine could have
_MIG = re.compile(r"MIG-[^,;/\s]+")
_UUID = re.compile(r"(?:GPU|MIG)-.+")


@dataclass(frozen=True)
class ComputeDevice:
    """A device that a process can drive: a GPU, or a MIG instance of one."""

    gpu: Gpu
    mig: str | None = None  #: the instance's UUID

    @property
    def uuid(self) -> str | None:
        """The name by which visible-device lists know it."""
        return self.mig or self.gpu.uuid


@dataclass(frozen=True)
class VisibleDevices:
    """The devices that a caller sees."""

    by_index: Mapping[int, ComputeDevice]  #: ascending
    nameable: tuple[ComputeDevice, ...]  #: by UUID or PCI bus id
    by_name: bool  #: the numbering comes from a list of UUIDs, so its order is certain


@derived
def all_devices(topology: Topology) -> VisibleDevices:
    """Return the view of a caller that may use every GPU: the node's own numbering.

    A lost GPU leaves a gap in it.
    """
    own = (gpu for gpu in topology.gpus if gpu.vendor == topology.vendor)
    everything = tuple(with_instances(tuple(ComputeDevice(gpu) for gpu in topology.gpus)))
    return VisibleDevices({gpu.index: ComputeDevice(gpu) for gpu in own}, everything, by_name=False)


def select_devices(
    seen: VisibleDevices, entries: Sequence[str] | None
) -> tuple[ComputeDevice, ...]:
    """Return the device of each entry of a request's `gpus`, in rank order; None means all.

    Raises InvalidRequestError for an entry that is no index, UUID or PCI bus id, NoSuchGpuError
    for a name of no GPU that the caller sees.
    """
    if entries is not None:
        return tuple(device_named(seen, entry) for entry in entries)
    if not seen.by_index:
        raise NoSuchGpuError(f"no GPU is visible to the caller; {_present(seen)}")
    return tuple(seen.by_index.values())


def is_ambiguous(seen: VisibleDevices, entries: Sequence[str] | None) -> bool:
    """Return whether an index depends on CUDA_DEVICE_ORDER.

    CUDA's default order is FASTEST_FIRST, not PCI_BUS_ID: on mixed models only CUDA knows it.
    """
    by_index = entries is None or any(_INDEX.fullmatch(entry) for entry in entries)
    numbered = {device.gpu.vendor for device in seen.by_index.values()}
    models = {
        device.gpu.model or device.gpu.pci_id
        for device in seen.nameable
        if device.gpu.vendor == "nvidia"
    }
    return by_index and not seen.by_name and "nvidia" in numbered and len(models) > 1


def names_unknown_mig(topology: Topology, *texts: str | None) -> bool:
    """Return whether a text names a MIG instance that the topology does not have."""
    named = [it for text in texts if text and "MIG-" in text for it in _MIG.findall(text)]
    known = [instance.uuid for gpu in topology.gpus for instance in gpu.mig]
    return any(not any(uuid.startswith(name) for uuid in known) for name in named)


def device_named(seen: VisibleDevices, entry: str) -> ComputeDevice:
    """Return the device that an index, UUID or PCI bus id names. Raises as `select_devices`."""
    if _INDEX.fullmatch(entry):
        index = int(entry) if len(entry) <= MAX_DIGITS else None
        if index is not None and index in seen.by_index:
            return seen.by_index[index]
        raise NoSuchGpuError(
            f"no GPU {entry if index is not None else quote(entry)}; {_present(seen)}"
        )
    if pci := _PCI.fullmatch(entry):
        bus_id = f"{int(pci[1], 16):04x}:{pci[2].lower()}"
        found = [device for device in seen.nameable if device.gpu.pci_bus_id == bus_id][:1]
    elif _UUID.fullmatch(entry):
        found = [device for device in seen.nameable if (device.uuid or "").startswith(entry)]
    else:
        raise InvalidRequestError(
            f"gpus: {quote(entry)} is not an index, UUID or PCI bus id; write them like 0,1 or "
            "GPU-8a1f0c3e or 0000:07:00.0, or all alone"
        )
    if len(found) == 1:
        return found[0]
    name = quote(entry)
    problem = f"{len(found)} GPUs begin with {name}" if found else f"no GPU {name}"
    raise NoSuchGpuError(f"{problem}; {_present(seen)}")


def with_instances(devices: Sequence[ComputeDevice]) -> Iterator[ComputeDevice]:
    """Yield devices and, after each whole GPU, its MIG instances."""
    for device in devices:
        yield device
        if device.mig is None:
            yield from (ComputeDevice(device.gpu, instance.uuid) for instance in device.gpu.mig)


def _present(seen: VisibleDevices) -> str:
    if not seen.nameable:
        return "this machine has none"
    if not seen.by_index:
        return f"by name there are {', '.join(map(_name, seen.nameable))}"
    return "visible are " + ", ".join(
        f"{index} ({_name(device)})" for index, device in seen.by_index.items()
    )


def _name(device: ComputeDevice) -> str:
    return device.mig or device.gpu.pci_bus_id
