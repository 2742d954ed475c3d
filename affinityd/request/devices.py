"""Names of GPUs: from the numbers a process sees to the node's own.

Two renumberings separate a process's index from the node's: those of a container runtime or device
cgroup, and of the vendor's variable (visible_devices.py). Sources: CUDA C++
Programming Guide "CUDA Environment Variables"; ROCm documentation "GPU isolation techniques".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.text import quote
from affinityd.topology.model import Gpu, Topology

UUID_KINDS = ("GPU-", "MIG-")
MAX_DIGITS = 9  #: of an index that some machine could have
DOMAINS = (4, 8)  #: digits of a PCI domain: the kernel's, NVML's


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


@lru_cache(maxsize=4)
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
    by_index = entries is None or any(map(is_number, entries))
    numbered = {device.gpu.vendor for device in seen.by_index.values()}
    models = {
        device.gpu.model or device.gpu.pci_id
        for device in seen.nameable
        if device.gpu.vendor == "nvidia"
    }
    return by_index and not seen.by_name and "nvidia" in numbered and len(models) > 1


def names_unknown_mig(topology: Topology, *texts: str | None) -> bool:
    """Return whether a text names a MIG instance that the topology does not have."""
    said = [text for text in texts if text and "MIG-" in text]
    if not said:
        return False
    import re  # noqa: PLC0415 - few name one

    named = [it for text in said for it in re.findall(r"MIG-[^,;/\s]+", text)]
    known = [instance.uuid for gpu in topology.gpus for instance in gpu.mig]
    return any(not any(uuid.startswith(name) for uuid in known) for name in named)


def device_named(seen: VisibleDevices, entry: str) -> ComputeDevice:
    """Return the device that an index, UUID or PCI bus id names. Raises as `select_devices`."""
    if is_number(entry):
        index = int(entry) if len(entry) <= MAX_DIGITS else None
        if index is not None and index in seen.by_index:
            return seen.by_index[index]
        raise NoSuchGpuError(
            f"no GPU {entry if index is not None else quote(entry)}; {_present(seen)}"
        )
    if bus_id := _pci_bus_id(entry):
        found = [device for device in seen.nameable if device.gpu.pci_bus_id == bus_id][:1]
    elif entry.startswith(UUID_KINDS) and entry not in UUID_KINDS and "\n" not in entry:
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


def is_number(entry: str) -> bool:
    """Whether an entry is digits alone."""
    return entry.isascii() and entry.isdigit()


def _pci_bus_id(entry: str) -> str | None:
    """Return a PCI bus id as the kernel writes it, like 0000:07:00.0; None where it is none."""
    domain, _, place = entry.lower().partition(":")
    digits = [domain, place[:2], place[3:5], place[6:]]
    is_one = (
        len(domain) in DOMAINS
        and place == f"{digits[1]}:{digits[2]}.{digits[3]}"
        and digits[3] in tuple("01234567")
        and all(digit in "0123456789abcdef" for digit in "".join(digits))
    )
    return f"{int(domain, 16):04x}:{place}" if is_one else None


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
