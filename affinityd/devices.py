"""Which GPU is meant: from what a process sees to the node's own numbering.

Two renumberings lie between a process's index and the node's: what a container runtime or device
cgroup granted, and what the vendor's variable makes visible. Sources: CUDA C++ Programming Guide
"CUDA Environment Variables"; ROCm documentation "GPU isolation techniques"; strtoul(3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.errors import InvalidRequestError, NoSuchGpuError, quote
from affinityd.topology import Gpu, Topology
from affinityd.visible import read_visible

_PCI = re.compile(r"([0-9a-f]{4}|[0-9a-f]{8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_MINOR = re.compile(r"(minor|drm):([0-9]{1,9})", re.ASCII)
_INDEX = re.compile(r"[0-9]+", re.ASCII)
_INSTANCE = re.compile(r"([0-9]+):([0-9]{1,3})", re.ASCII)
MAX_DIGITS = 9  #: of an index that some machine could have
_UUID = re.compile(r"(?:GPU|MIG)-.+")


@dataclass(frozen=True)
class Device:
    """What a process can drive: a GPU, or a MIG instance of one."""

    gpu: Gpu
    mig: str | None = None  #: the instance's UUID

    @property
    def uuid(self) -> str | None:
        """The name by which visible-device lists know it."""
        return self.mig or self.gpu.uuid


@dataclass(frozen=True)
class Sight:
    """What a caller sees."""

    numbered: Mapping[int, Device]  #: by the caller's index, ascending
    nameable: tuple[Device, ...]  #: by UUID or PCI bus id
    by_name: bool  #: the numbering comes from a list of UUIDs, so its order is certain


def look(
    topology: Topology,
    granted: str | None,
    visible: str | None,
    nvidia_visible: str | None = None,
) -> Sight:
    """Return what a caller sees, by what it was granted and by its visible-device variable.

    All are the request's values, None where it has none. Raises InvalidRequestError for a
    malformed grant, NoSuchGpuError for one of a device that is not here.
    """
    given = None if granted is None else _grant(topology, granted)
    if nvidia_visible:
        given = _listed(topology, nvidia_visible, given) or given
    if given is None:
        given = tuple(Device(gpu) for gpu in topology.gpus)
        numbered = _by_index(topology)
    else:
        numbered = dict(enumerate(d for d in given if d.gpu.vendor == given[0].gpu.vendor))
    nameable = tuple(dict.fromkeys(_with_instances(given)))
    seen = read_visible(visible, numbered, nameable)
    return Sight(seen.devices, nameable, seen.by_name)


def choose(sight: Sight, entries: Sequence[str] | None) -> tuple[Device, ...]:
    """Return the device of each entry of a request's `gpus`, in rank order; None means all.

    Raises InvalidRequestError for an entry that is no index, UUID or PCI bus id, NoSuchGpuError
    for one that names nothing the caller sees.
    """
    if entries is not None:
        return tuple(_chosen(sight, entry) for entry in entries)
    if not sight.numbered:
        raise NoSuchGpuError(f"no GPU is visible to the caller; {_present(sight)}")
    return tuple(sight.numbered.values())


def is_ambiguous(sight: Sight, entries: Sequence[str] | None) -> bool:
    """Return whether an index depends on CUDA_DEVICE_ORDER.

    CUDA's default order is FASTEST_FIRST, not PCI_BUS_ID: on mixed models nobody else knows it.
    """
    by_index = entries is None or any(_INDEX.fullmatch(entry) for entry in entries)
    numbered = {device.gpu.vendor for device in sight.numbered.values()}
    models = {
        device.gpu.model or device.gpu.pci_id
        for device in sight.nameable
        if device.gpu.vendor == "nvidia"
    }
    return by_index and not sight.by_name and "nvidia" in numbered and len(models) > 1


def names_unknown_mig(topology: Topology, *texts: str | None) -> bool:
    """Return whether a text names a MIG instance that the topology does not have."""
    known = [instance.uuid for gpu in topology.gpus for instance in gpu.mig]
    named = [name for text in texts if text for name in re.findall(r"MIG-[^,;/\s]+", text)]
    return any(not any(uuid.startswith(name) for uuid in known) for name in named)


def _by_index(topology: Topology) -> Mapping[int, Device]:
    """Return the node's own numbering, in which a GPU that is lost leaves a gap."""
    own = (gpu for gpu in topology.gpus if gpu.vendor == topology.vendor)
    return {gpu.index: Device(gpu) for gpu in own}


def _grant(topology: Topology, granted: str) -> tuple[Device, ...]:
    if granted.strip() == "none":
        raise NoSuchGpuError("granted=none: the caller was given no GPU")
    everything = tuple(_with_instances(tuple(Device(gpu) for gpu in topology.gpus)))
    entries = [entry.strip() for entry in granted.split(",")]
    wanted = {_granted(topology, everything, entry) for entry in _of_gpus(topology, entries)}
    return tuple(device for device in everything if device in wanted)


def _listed(
    topology: Topology, listed: str, given: tuple[Device, ...] | None
) -> tuple[Device, ...] | None:
    """Return the devices of an NVIDIA_VISIBLE_DEVICES; None where it proves nothing.

    That is where it lists none (`all`, `void`, `none`, a folder), or not only what was given: a
    runtime that takes devices from elsewhere (CDI) leaves it as the image or the pod has it. To a
    privileged container all devices are open, and the list says which are its own. Source: NVIDIA
    Container Toolkit, "NVIDIA_VISIBLE_DEVICES".
    """
    everything = tuple(_with_instances(tuple(Device(gpu) for gpu in topology.gpus)))
    whole = Sight(_by_index(topology), everything, by_name=False)
    try:
        wanted = {_at(whole, entry.strip()) for entry in listed.split(",")}
    except (InvalidRequestError, NoSuchGpuError):
        return None
    mine = None if given is None else {device.gpu.key for device in given}
    if mine is not None and not mine >= {device.gpu.key for device in wanted}:
        return None
    return tuple(device for device in everything if device in wanted)


def _at(whole: Sight, entry: str) -> Device:
    """Return a listed device: an index, UUID or PCI bus id, or 0:1, GPU 0's instance 1."""
    if instance := _INSTANCE.fullmatch(entry):
        gpu, number = _chosen(whole, instance[1]).gpu, int(instance[2])
        return Device(gpu, gpu.mig[number].uuid if number < len(gpu.mig) else None)
    return _chosen(whole, entry)


def _of_gpus(topology: Topology, entries: Sequence[str]) -> Sequence[str]:
    """Leave out device files without a GPU, as one that is lost leaves behind; all have one: none.

    Where none of them has a GPU, they are left in: they are of another machine.
    """
    gpus = topology.gpus
    known = {f"minor:{gpu.minor}" for gpu in gpus} | {f"drm:{gpu.render_minor}" for gpu in gpus}
    files = [entry for entry in entries if _MINOR.fullmatch(entry)]
    if known.isdisjoint(files):
        return entries
    return [entry for entry in entries if entry not in files or entry in known]


def _granted(topology: Topology, everything: tuple[Device, ...], entry: str) -> Device:
    if minor := _MINOR.fullmatch(entry):
        field = "minor" if minor[1] == "minor" else "render_minor"
        at = {getattr(gpu, field): Device(gpu) for gpu in topology.gpus}
        if int(minor[2]) in at:
            return at[int(minor[2])]
        have = ", ".join(str(number) for number in sorted(at.keys() - {None})) or "none"
        raise NoSuchGpuError(f"granted: no GPU has {entry}; this machine has {have}")
    try:
        return _at(Sight(_by_index(topology), everything, by_name=False), entry)
    except NoSuchGpuError as error:
        raise NoSuchGpuError(f"granted: {error}") from None
    except InvalidRequestError:
        raise InvalidRequestError(
            f"granted: {quote(entry)} is not a device; write a comma list of indices, UUIDs, "
            "minor:N or drm:N, or none"
        ) from None


def _chosen(sight: Sight, entry: str) -> Device:
    if _INDEX.fullmatch(entry):
        index = int(entry) if len(entry) <= MAX_DIGITS else None
        if index is not None and index in sight.numbered:
            return sight.numbered[index]
        raise NoSuchGpuError(
            f"no GPU {entry if index is not None else quote(entry)}; {_present(sight)}"
        )
    if pci := _PCI.fullmatch(entry):
        bus_id = f"{int(pci[1], 16):04x}:{pci[2].lower()}"
        found = [device for device in sight.nameable if device.gpu.pci_bus_id == bus_id][:1]
    elif _UUID.fullmatch(entry):
        found = [device for device in sight.nameable if (device.uuid or "").startswith(entry)]
    else:
        raise InvalidRequestError(
            f"gpus: {quote(entry)} is not an index, UUID or PCI bus id; write them like 0,1 or "
            "GPU-8a1f0c3e or 0000:07:00.0, or all alone"
        )
    if len(found) == 1:
        return found[0]
    name = quote(entry)
    problem = f"{len(found)} GPUs begin with {name}" if found else f"no GPU {name}"
    raise NoSuchGpuError(f"{problem}; {_present(sight)}")


def _with_instances(devices: Sequence[Device]) -> Iterator[Device]:
    """Yield devices and, after each whole GPU, its MIG instances."""
    for device in devices:
        yield device
        if device.mig is None:
            yield from (Device(device.gpu, instance.uuid) for instance in device.gpu.mig)


def _present(sight: Sight) -> str:
    if not sight.nameable:
        return "this machine has none"
    if not sight.numbered:
        return f"by name there are {', '.join(map(_name, sight.nameable))}"
    return "visible are " + ", ".join(
        f"{index} ({_name(device)})" for index, device in sight.numbered.items()
    )


def _name(device: Device) -> str:
    return device.mig or device.gpu.pci_bus_id
