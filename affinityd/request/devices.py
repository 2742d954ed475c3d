"""Names of GPUs, and lists of visible devices, which are read as the GPUs' drivers read them.

CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES are lists. ROCm has two: ROCR_VISIBLE_DEVICES
filters, and HIP_VISIBLE_DEVICES indexes what is left, written
`ROCR_VISIBLE_DEVICES=…;HIP_VISIBLE_DEVICES=…`.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; ROCm documentation "GPU isolation
techniques".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from affinityd.cpuset import several
from affinityd.errors import InvalidRequestError, NoSuchGpuError, UnsatisfiableError
from affinityd.request.environment import ASCEND, CUDA, MAX_ENTRIES, VISIBLE, ZE_MASK
from affinityd.text import MAX_QUOTED, quote, whole_number
from affinityd.topology.model import Gpu, Topology

UUID_KINDS = ("GPU-", "MIG-")
#: PCI ids of Intel's Max 1550 and 1350, with two tiles each.
INTEL_TWO_TILES = ("8086:0bd5", "8086:0bd6", "8086:0bd7", "8086:0bd8")
#: What strtoul(3) reads: blanks of isspace(3), a sign, leading zeros, digits.
STRTOUL = r"[ \t\n\r\f\v]*([+-]?)(?=[0-9])0*([0-9]*)"


class ComputeDevice(NamedTuple):
    """A device that a process can drive: a GPU, or a MIG instance of one."""

    gpu: Gpu
    mig: str | None = None  #: the instance's UUID

    @property
    def uuid(self) -> str | None:
        """The UUID that visible-device lists use for it."""
        return self.mig or self.gpu.uuid

    def __str__(self) -> str:
        """Return the device's name for messages."""
        return self.mig or self.gpu.pci_bus_id


class Doubt(NamedTuple):
    """Why an index may mean any of several GPUs."""

    why: str  #: the reason, with the remedy
    gpus: frozenset[tuple[str, int]]  #: keys of the GPUs that it may mean


class VisibleDevices(NamedTuple):
    """The devices that a caller sees."""

    by_index: Mapping[int, ComputeDevice]  #: ascending
    nameable: tuple[ComputeDevice, ...]  #: devices that a UUID or PCI bus id may name
    hidden_by: str | None = None  #: the variable, with its value, that hides all devices
    doubt: Doubt | None = None  #: None: the numbering is certain
    cut: str | None = None  #: the variable whose list ends early, and where it ends


#: The name by which a request names a device, or could name it; and the device.
Entry = tuple[str, ComputeDevice]


@lru_cache(maxsize=4)
def all_devices(topology: Topology) -> VisibleDevices:
    """Return the devices of a caller that may use all GPUs: the node's numbers, with gaps."""
    gpus = [ComputeDevice(gpu) for gpu in topology.gpus]
    own = {device.gpu.index: device for device in gpus if device.gpu.vendor == topology.vendor}
    return VisibleDevices(own, tuple(_with_instances(gpus)))


def number_devices(devices: Sequence[ComputeDevice]) -> VisibleDevices:
    """Return the view of a caller with these devices; indices count those of the first vendor."""
    of_vendor = [device for device in devices if device.gpu.vendor == devices[0].gpu.vendor]
    nameable = tuple(dict.fromkeys(_with_instances(devices)))
    return VisibleDevices(dict(enumerate(of_vendor)), nameable)


def number_tiles(seen: VisibleDevices) -> VisibleDevices:
    """Return the view of a caller to which each tile of Intel's GPUs is a device."""
    if not any(device.gpu.pci_id in INTEL_TWO_TILES for device in seen.by_index.values()):
        return seen
    tiles: list[ComputeDevice] = []
    for device in seen.by_index.values():
        tiles.append(device)
        if device.gpu.pci_id in INTEL_TWO_TILES:
            tiles.append(device)
    return seen._replace(by_index=dict(enumerate(tiles)))


def find_entries(seen: VisibleDevices, names: Sequence[str] | None) -> tuple[Entry, ...]:
    """Return the device of each entry of a request's `gpus`, in rank order; None means all.

    Raises InvalidRequestError for an entry that can name no GPU, NoSuchGpuError for a hidden GPU.
    """
    if names is None:
        if not seen.by_index:
            cause = f": {seen.hidden_by} names none" if seen.hidden_by else ""
            if divided := [device.gpu.index for device in seen.nameable if device.mig]:
                cause += f", and CUDA shows the MIG instances of {several('GPU', divided)} by UUID"
            raise NoSuchGpuError(f"no GPU is visible to the caller{cause}; {_present(seen)}")
        return tuple((str(index), device) for index, device in seen.by_index.items())
    return tuple((name, device_named(seen, name)) for name in names)


def with_uuid(name: str, nameable: Sequence[ComputeDevice]) -> list[ComputeDevice]:
    """Return the devices whose UUIDs begin with a name."""
    devices = [device for device in nameable if (device.uuid or "").startswith(name)]
    # Drivers before R470 have such names for instances: NVIDIA MIG User Guide, "CUDA Visible
    # Devices".
    if not devices and (older := re.fullmatch(r"MIG-(GPU-[0-9a-f-]+)/[0-9]+/[0-9]+", name)):
        gpus = {device.gpu for device in nameable if device.gpu.uuid == older[1]}
        devices = [ComputeDevice(gpu, name) for gpu in gpus]
    return devices


def device_named(seen: VisibleDevices, entry: str) -> ComputeDevice:
    """Return the device that an index, UUID or PCI bus id names. Raises as `find_entries`."""
    if is_number(entry):
        index = whole_number(entry, MAX_ENTRIES)
        if index is not None and index in seen.by_index:
            return seen.by_index[index]
        raise NoSuchGpuError(f"no GPU {entry[:MAX_QUOTED]}; {_present(seen)}")
    # A PCI bus id: the kernel writes its domain with four digits or more, NVML with eight.
    bus_id_pattern = r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
    if match := re.fullmatch(bus_id_pattern, entry.lower()):
        bus_id = f"{int(match[1], 16):04x}:{match[2]}"  # as the kernel writes it
        matches = [device for device in seen.nameable if device.gpu.pci_bus_id == bus_id][:1]
    elif entry.startswith(UUID_KINDS) and entry not in UUID_KINDS and "\n" not in entry:
        matches = with_uuid(entry, seen.nameable)
    else:
        raise InvalidRequestError(
            f"gpus: {quote(entry)} is not an index, UUID or PCI bus id; write them like 0,1 or "
            "GPU-8a1f0c3e or 0000:07:00.0, or give only the word all"
        )
    if len(matches) == 1:
        return matches[0]
    name = quote(entry)
    problem = f"{len(matches)} GPUs begin with {name}" if matches else f"no GPU {name}"
    raise NoSuchGpuError(f"{problem}; {_present(seen)}")


def is_number(entry: str) -> bool:
    """Return whether an entry has only digits."""
    return entry.isascii() and entry.isdigit()


def _with_instances(devices: Sequence[ComputeDevice]) -> Iterator[ComputeDevice]:
    """Yield devices and, after each whole GPU, its MIG instances."""
    for device in devices:
        yield device
        if device.mig is None:
            yield from (ComputeDevice(device.gpu, instance.uuid) for instance in device.gpu.mig)


def _present(seen: VisibleDevices) -> str:
    if not seen.nameable:
        return "this machine has none"
    if not seen.by_index:
        return f"by name there are {', '.join(map(str, seen.nameable))}"
    named_by = (f"{index} ({device})" for index, device in seen.by_index.items())
    return f"visible are {', '.join(named_by)}"


def at(everything: VisibleDevices, entry: str) -> ComputeDevice:
    """Return a device of a list: by index, UUID or PCI bus id; 0:1 is instance 1 of GPU 0."""
    if match := re.fullmatch(r"([0-9]+):([0-9]{1,3})", entry):
        gpu, number = device_named(everything, match[1]).gpu, int(match[2])
        return ComputeDevice(gpu, gpu.mig[number].uuid if number < len(gpu.mig) else None)
    return device_named(everything, entry)


def read_visible(value: str | None, granted: VisibleDevices) -> VisibleDevices:
    """Return the devices that a variable leaves visible; None: unset, so all granted devices."""
    if value is None:
        return granted
    vendors = {device.gpu.vendor for device in granted.by_index.values()}
    seen = granted
    for variable, text in _lists(value, vendors).items():
        listed = text
        if variable == ZE_MASK:  # in the driver's order, not the list's
            listed = ",".join(map(str, _ze_devices(text)))
        seen = _read_list(variable, listed, seen)
    return seen._replace(nameable=granted.nameable)


def _lists(value: str, vendors: Collection[str]) -> dict[str, str]:
    """Return the variables that a value of `visible` holds, in the order in which they apply."""
    assigned = dict(part.strip().partition("=")[::2] for part in value.split(";"))
    for vendor in ("amd", "8086"):
        if assigned.keys() <= set(VISIBLE[vendor]):
            return {name: assigned[name] for name in VISIBLE[vendor] if name in assigned}
    return {ASCEND if vendors == {"huawei"} else CUDA: value}


def _ze_devices(text: str) -> list[int]:
    """Return the devices in a ZE_AFFINITY_MASK, where 0.1 is a tile of 0."""
    return sorted({_strtoul(entry) for entry in text.split(",")} - {-1})


def narrow_visible(value: str | None, vendor: str, numbers: Sequence[int]) -> tuple[str, str]:
    """Return a variable and its value that restrict a caller to some of the devices it sees.

    `numbers` are devices by the caller's numbers, `value` its variables now. No text of the caller
    is returned: a shell may read it. Raises UnsatisfiableError if the vendor has no such variable.
    """
    if vendor not in VISIBLE:
        raise UnsatisfiableError(f"choose: no variable is known that chooses GPUs of {vendor}")
    if value is None:
        return VISIBLE[vendor][0], ",".join(map(str, numbers))
    variable, text = list(_lists(value, {vendor}).items())[-1]
    entries = text.split(",")
    if variable == ZE_MASK:
        devices = [_ze_devices(text)[number] for number in numbers]
        kept = [_as_read(entry) for entry in entries if _strtoul(entry) in devices]
    else:
        kept = [_as_read(entries[number]).partition(".")[0] for number in numbers]
    return variable, ",".join(kept)


def _as_read(entry: str) -> str:
    """Return an entry of a list as its driver reads it: a UUID, or a number and Intel's tile."""
    if entry.startswith(UUID_KINDS):
        if not re.fullmatch(r"[A-Za-z0-9/-]+", entry):
            raise UnsatisfiableError(f"choose: {quote(entry)} is no UUID")
        return entry
    tile = re.match(rf"{STRTOUL}(\.[0-9]+)?", entry)
    return f"{_strtoul(entry)}{(tile and tile[3]) or ''}"


def _read_list(variable: str, text: str, seen: VisibleDevices) -> VisibleDevices:
    entries = text.split(",")
    is_by_uuid = text.startswith(UUID_KINDS)
    devices = _by_uuid(entries, seen) if is_by_uuid else _by_index(entries, seen)
    by_index = dict(enumerate(devices))
    view = seen._replace(by_index=by_index, nameable=devices)
    if is_by_uuid:
        view = view._replace(doubt=None)
    listed = f"{variable}={quote(text)}"
    if not devices:
        return view._replace(hidden_by=seen.hidden_by or listed)
    if len(devices) < len(entries):
        end = f"ends before {quote(entries[len(devices)])}, which the driver does not find here"
        return view._replace(cut=f"{listed} {end}")
    return view


def _by_index(entries: Sequence[str], seen: VisibleDevices) -> tuple[ComputeDevice, ...]:
    """Return a list's devices, up to the first entry that is unreadable, negative or missing."""
    numbers = list(takewhile(lambda number: number >= 0, map(_strtoul, entries)))
    if len(set(numbers)) < len(numbers):
        return ()
    here = takewhile(lambda number: number in seen.by_index, numbers)
    return tuple(seen.by_index[number] for number in here)


def _strtoul(entry: str) -> int:
    """Return the number at the beginning of an entry; negative if there is none."""
    match = re.match(STRTOUL, entry)
    if match is None:
        return -1
    number = min(int(match[2][:21] or "0"), 2**64 - 1)  # ULONG_MAX, which has 20 digits
    return -number if match[1] == "-" else number


def _by_uuid(entries: Sequence[str], seen: VisibleDevices) -> tuple[ComputeDevice, ...]:
    """Return the devices that UUIDs name, up to the first UUID that does not name one device."""
    kind = entries[0][: len("GPU-")]
    names = list(takewhile(lambda entry: entry.startswith(kind), entries))
    matches = (with_uuid(name, seen.nameable) for name in names)
    devices = tuple(match[0] for match in takewhile(lambda match: len(match) == 1, matches))
    uuids = {device.uuid for device in devices}
    is_repeated = len(set(names)) < len(names) or len(uuids) < len(devices)
    return () if is_repeated else devices
