"""Names of GPUs, and the devices that a caller sees: its granted ones, less those it hides.

Two renumberings separate a process's index from the node's: that of a container runtime or device
cgroup, and that of the vendor's variable, which is read as the driver reads it.
CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES are one list; ROCm's ROCR_VISIBLE_DEVICES filters
and HIP_VISIBLE_DEVICES indexes the rest, written `ROCR_VISIBLE_DEVICES=…;HIP_VISIBLE_DEVICES=…`.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; ROCm documentation "GPU isolation
techniques"; NVIDIA Container Toolkit, "NVIDIA_VISIBLE_DEVICES".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.request.environment import ASCEND, CUDA, VISIBLE
from affinityd.request.parameters import Request
from affinityd.text import quote
from affinityd.topology.model import Gpu, Topology

# These patterns are compiled where one is used, not at the start of every rank.
UUID_KINDS = ("GPU-", "MIG-")
#: A MIG instance by its GPU's UUID and its numbers there: NVIDIA MIG User Guide, "CUDA Visible
#: Devices"; so drivers before R470 name it.
OLDER_MIG = r"MIG-(GPU-[0-9a-f-]+)/[0-9]+/[0-9]+"
MAX_DIGITS = 9  #: of an index that some machine could have
FILE = r"(minor|drm):[0-9]{1,9}"  #: a device file
INSTANCE = r"([0-9]+):([0-9]{1,3})"  #: 0:1 is instance 1 of GPU 0
#: A domain has four digits or more as the kernel writes it, eight as NVML does.
PCI_BUS_ID = r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
#: As strtoul(3) reads: blanks of isspace(3), a sign, digits, of which leading zeros do not count.
STRTOUL = r"[ \t\n\r\f\v]*([+-]?)(?=[0-9])0*([0-9]*)"
ULONG_MAX = 2**64 - 1
#: More digits than ULONG_MAX has: a number cut down to so many is still above it.
ENOUGH_DIGITS = 21


class ComputeDevice(NamedTuple):
    """A device that a process can drive: a GPU, or a MIG instance of one."""

    gpu: Gpu
    mig: str | None = None  #: the instance's UUID

    @property
    def uuid(self) -> str | None:
        """The name by which visible-device lists know it."""
        return self.mig or self.gpu.uuid

    def __str__(self) -> str:
        """Return its name in a message."""
        return self.mig or self.gpu.pci_bus_id


class VisibleDevices(NamedTuple):
    """The devices that a caller sees."""

    by_index: Mapping[int, ComputeDevice]  #: ascending
    nameable: tuple[ComputeDevice, ...]  #: by UUID or PCI bus id
    by_name: bool  #: the numbering comes from a list of UUIDs, so its order is certain
    hidden_by: str | None = None  #: the variable, with its value, that leaves none visible


#: How a request names a device, or would have, and the device.
Entry = tuple[str, ComputeDevice]


@lru_cache(maxsize=4)
def all_devices(topology: Topology) -> VisibleDevices:
    """Return the view of a caller that may use every GPU: the node's own numbering.

    A lost GPU leaves a gap in it.
    """
    gpus = [ComputeDevice(gpu) for gpu in topology.gpus]
    own = {device.gpu.index: device for device in gpus if device.gpu.vendor == topology.vendor}
    return VisibleDevices(own, tuple(_with_instances(gpus)), by_name=False)


def named(seen: VisibleDevices, names: Sequence[str] | None) -> tuple[Entry, ...]:
    """Return the device of each entry of a request's `gpus`, in rank order; None means all.

    Raises InvalidRequestError for an entry that is no index, UUID or PCI bus id, NoSuchGpuError
    for a name of no GPU that the caller sees.
    """
    if names is None:
        if not seen.by_index:
            cause = f": {seen.hidden_by} names none" if seen.hidden_by else ""
            raise NoSuchGpuError(f"no GPU is visible to the caller{cause}; {_present(seen)}")
        return tuple((str(index), device) for index, device in seen.by_index.items())
    return tuple((name, device_named(seen, name)) for name in names)


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


def names_unknown_mig(topology: Topology, request: Request) -> bool:
    """Return whether a request names a MIG instance that the topology does not have."""
    texts = (*(request.gpus or ()), request.granted, request.nvidia_visible, request.visible)
    names = [name for text in texts if text for name in re.findall(r"MIG-[^,;\s]+", text)]
    nameable = all_devices(topology).nameable
    return any(not _with_uuid(name, nameable) for name in names)


def _with_uuid(name: str, nameable: Sequence[ComputeDevice]) -> list[ComputeDevice]:
    """Return the devices whose UUIDs begin with a name; of an older one, the GPU's instance."""
    devices = [device for device in nameable if (device.uuid or "").startswith(name)]
    if not devices and (older := re.fullmatch(OLDER_MIG, name)):
        gpus = {device.gpu for device in nameable if device.gpu.uuid == older[1]}
        devices = [ComputeDevice(gpu, name) for gpu in gpus]
    return devices


def device_named(seen: VisibleDevices, entry: str) -> ComputeDevice:
    """Return the device that an index, UUID or PCI bus id names. Raises as `named`."""
    if is_number(entry):
        index = int(entry) if len(entry) <= MAX_DIGITS else None
        if index is not None and index in seen.by_index:
            return seen.by_index[index]
        raise NoSuchGpuError(
            f"no GPU {entry if index is not None else quote(entry)}; {_present(seen)}"
        )
    if match := re.fullmatch(PCI_BUS_ID, entry.lower()):
        bus_id = f"{int(match[1], 16):04x}:{match[2]}"  # as the kernel writes it
        matches = [device for device in seen.nameable if device.gpu.pci_bus_id == bus_id][:1]
    elif entry.startswith(UUID_KINDS) and entry not in UUID_KINDS and "\n" not in entry:
        matches = _with_uuid(entry, seen.nameable)
    else:
        raise InvalidRequestError(
            f"gpus: {quote(entry)} is not an index, UUID or PCI bus id; write them like 0,1 or "
            "GPU-8a1f0c3e or 0000:07:00.0, or all alone"
        )
    if len(matches) == 1:
        return matches[0]
    name = quote(entry)
    problem = f"{len(matches)} GPUs begin with {name}" if matches else f"no GPU {name}"
    raise NoSuchGpuError(f"{problem}; {_present(seen)}")


def is_number(entry: str) -> bool:
    """Whether an entry is digits alone."""
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


def visible_devices(topology: Topology, request: Request) -> VisibleDevices:
    """Return the devices a caller sees, by those granted and by its visible-device variable.

    Raises InvalidRequestError for a malformed grant, NoSuchGpuError for one of a device that is not
    here.
    """
    everything, devices = all_devices(topology), None
    if request.granted is not None:
        devices = _grant(topology, everything, request.granted)
    if request.nvidia_visible:
        devices = _listed(everything, request.nvidia_visible, devices) or devices
    if devices is None:
        return read_visible(request.visible, everything)
    numbered = dict(
        enumerate(device for device in devices if device.gpu.vendor == devices[0].gpu.vendor)
    )
    nameable = tuple(dict.fromkeys(_with_instances(devices)))
    return read_visible(request.visible, VisibleDevices(numbered, nameable, by_name=False))


def _grant(
    topology: Topology, everything: VisibleDevices, granted: str
) -> tuple[ComputeDevice, ...]:
    """Return the devices of a request's `granted`."""
    if granted == "none":
        raise NoSuchGpuError("granted=none: the caller was given no GPU")
    files = {
        f"{kind}:{number}": ComputeDevice(gpu)
        for gpu in topology.gpus
        for kind, number in (("minor", gpu.minor), ("drm", gpu.render_minor))
        if number is not None
    }
    entries = granted.split(",")
    if not files.keys().isdisjoint(entries):  # a GPU that is lost leaves its file behind
        entries = [entry for entry in entries if entry in files or not re.fullmatch(FILE, entry)]
    return _in_order(everything, {_granted(everything, files, entry) for entry in entries})


def _granted(
    everything: VisibleDevices, files: Mapping[str, ComputeDevice], entry: str
) -> ComputeDevice:
    if entry in files:
        return files[entry]
    if match := re.fullmatch(FILE, entry):
        numbers = sorted(int(file.partition(":")[2]) for file in files if file.startswith(match[1]))
        have = ", ".join(map(str, numbers)) or "none"
        raise NoSuchGpuError(f"granted: no GPU has {entry}; this machine has {have}")
    try:
        return _at(everything, entry)
    except NoSuchGpuError as error:
        raise NoSuchGpuError(f"granted: {error}") from None
    except InvalidRequestError:
        raise InvalidRequestError(
            f"granted: {quote(entry)} is not a device; write a comma list of indices, UUIDs, "
            "minor:N or drm:N, or none"
        ) from None


def _listed(
    everything: VisibleDevices, listed: str, granted: tuple[ComputeDevice, ...] | None
) -> tuple[ComputeDevice, ...] | None:
    """Return the devices of an NVIDIA_VISIBLE_DEVICES; None where it proves nothing.

    That is if it lists none (`all`, `void`, `none`, a folder), or not only granted ones: a
    runtime that takes devices from elsewhere (CDI) leaves it as the image or the pod has it. To a
    privileged container all devices are open, and the list says which are its own.
    """
    try:
        wanted = {_at(everything, entry.strip()) for entry in listed.split(",")}
    except (InvalidRequestError, NoSuchGpuError):
        return None
    keys = None if granted is None else {device.gpu.key for device in granted}
    if keys is not None and not keys >= {device.gpu.key for device in wanted}:
        return None
    return _in_order(everything, wanted)


def _in_order(everything: VisibleDevices, wanted: set[ComputeDevice]) -> tuple[ComputeDevice, ...]:
    """Return devices in the node's order, by which a process with these devices counts them."""
    return tuple(device for device in everything.nameable if device in wanted)


def _at(everything: VisibleDevices, entry: str) -> ComputeDevice:
    """Return a listed device: an index, UUID or PCI bus id, or GPU 0's instance 1 as 0:1."""
    if match := re.fullmatch(INSTANCE, entry):
        gpu, number = device_named(everything, match[1]).gpu, int(match[2])
        return ComputeDevice(gpu, gpu.mig[number].uuid if number < len(gpu.mig) else None)
    return device_named(everything, entry)


def read_visible(value: str | None, granted: VisibleDevices) -> VisibleDevices:
    """Return the devices a variable's value leaves visible; None: unset, so all granted ones.

    Indices count in `by_index`, UUIDs name any that is `nameable`.
    """
    if value is None:
        return granted
    vendors = {device.gpu.vendor for device in granted.by_index.values()}
    lists = {ASCEND if vendors == {"huawei"} else CUDA: value}
    assigned = dict(part.strip().partition("=")[::2] for part in value.split(";"))
    if assigned.keys() <= set(VISIBLE["amd"]):  # they are applied one after the other
        lists = {name: assigned[name] for name in VISIBLE["amd"] if name in assigned}
    seen = granted
    for variable, text in lists.items():
        is_by_uuid = text.startswith(UUID_KINDS)
        devices = (_by_uuid if is_by_uuid else _by_index)(text.split(","), seen)
        hidden_by = seen.hidden_by or (None if devices else f"{variable}={quote(text)}")
        by_name = seen.by_name or is_by_uuid
        seen = VisibleDevices(dict(enumerate(devices)), devices, by_name, hidden_by)
    return seen._replace(nameable=granted.nameable)


def _by_index(entries: Sequence[str], seen: VisibleDevices) -> tuple[ComputeDevice, ...]:
    """Return a list's devices: it ends at the first that is unreadable, negative or not here."""
    numbers = list(takewhile(lambda number: number >= 0, map(_strtoul, entries)))
    if len(set(numbers)) < len(numbers):
        return ()
    here = takewhile(lambda number: number in seen.by_index, numbers)
    return tuple(seen.by_index[number] for number in here)


def _strtoul(entry: str) -> int:
    """Read the number that an entry begins with; negative where it begins with none."""
    match = re.match(STRTOUL, entry)
    if match is None:
        return -1
    number = min(int(match[2][:ENOUGH_DIGITS] or "0"), ULONG_MAX)
    return -number if match[1] == "-" else number


def _by_uuid(entries: Sequence[str], seen: VisibleDevices) -> tuple[ComputeDevice, ...]:
    """Return the devices that UUIDs or unique prefixes name; blanks are part of an entry.

    The list ends at the first that is of another kind, or names none or several.
    """
    kind = entries[0][: len("GPU-")]
    names = list(takewhile(lambda entry: entry.startswith(kind), entries))
    matches = (_with_uuid(name, seen.nameable) for name in names)
    devices = tuple(match[0] for match in takewhile(lambda match: len(match) == 1, matches))
    uuids = {device.uuid for device in devices}
    is_repeated = len(set(names)) < len(names) or len(uuids) < len(devices)
    return () if is_repeated else devices
