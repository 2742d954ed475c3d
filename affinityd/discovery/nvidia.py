"""NVIDIA's GPUs: its driver's files in /proc, and the numbers that NVML gives them.

If NVML answers, its list counts; else the bus's, in bus order, which is NVML's order too.
Source: the NVIDIA driver's README, "The /proc Interface".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from affinityd.cpuset import CpuSet
from affinityd.discovery.pci import PciDevice, is_pci_address
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import number, read_fields
from affinityd.topology.model import Gpu, MigInstance, NvLinks

if TYPE_CHECKING:
    from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport

VENDOR = "nvidia"

DRIVER_GPUS = "proc/driver/nvidia/gpus"


@dataclass(frozen=True)
class DriverGpu:
    """A GPU that the driver holds: /proc/driver/nvidia/gpus/ADDRESS/information."""

    uuid: str | None = None  #: GPU UUID
    minor: int | None = None  #: Device Minor
    model: str | None = None  #: Model
    excluded: bool = False  #: GPU Excluded: held back from CUDA and NVML by the driver's settings


def read_driver(tree: Tree) -> Mapping[str, DriverGpu]:
    """Return PCI address → the driver's facts of its GPU."""
    return {
        address: _driver_gpu(tree, address) for address in tree.list(DRIVER_GPUS, is_pci_address)
    }


def addresses(driver_gpus: Mapping[str, DriverGpu], nvml: NvmlReport | None) -> set[str]:
    """Return the PCI addresses that are NVIDIA's on its driver's or NVML's word."""
    named = (gpu.pci_bus_id for gpu in (nvml and nvml.gpus) or ())
    return {*driver_gpus, *(address for address in named if address and is_pci_address(address))}


def nearby(nvml: NvmlReport | None) -> Mapping[str, CpuSet]:
    """Return PCI address → the CPUs near it by NVML's word, of the smallest scope known."""
    return {
        gpu.pci_bus_id: gpu.node_cpus or gpu.socket_cpus
        for gpu in (nvml and nvml.gpus) or ()
        if gpu.pci_bus_id
    }


def enumerate_gpus(
    devices: Sequence[PciDevice], driver_gpus: Mapping[str, DriverGpu], nvml: NvmlReport | None
) -> tuple[list[Gpu], list[str]]:
    """Return NVIDIA's devices, which come in bus order, with their numbers, and notices for people.

    `driver_gpus`: the result of `read_driver`. `nvml`: None: it was not called.
    """
    if nvml is not None and nvml.gpus is not None:
        return _by_nvml(nvml.gpus, devices, driver_gpus)
    notices = []
    if devices:
        cause = (nvml and nvml.said) or "NVML was not asked"
        notices.append(f"{cause}; NVIDIA's GPUs are numbered in PCI bus order")
    unknown = ", ".join(device.address for device in devices if device.address not in driver_gpus)
    if unknown:
        notices.append(f"NVIDIA's driver does not list {unknown}: no UUID and no minor are known")
    known = [(device, driver_gpus.get(device.address, DriverGpu())) for device in devices]
    seen = [(device, driver) for device, driver in known if not driver.excluded]
    gpus = [_by_driver(index, device, driver) for index, (device, driver) in enumerate(seen)]
    return gpus, notices


def _by_nvml(
    listed: Sequence[NvmlGpu], devices: Sequence[PciDevice], driver_gpus: Mapping[str, DriverGpu]
) -> tuple[list[Gpu], list[str]]:
    """Join NVML's GPUs to the bus's by PCI address, and the lost ones by elimination."""
    at = {device.address: device for device in devices}
    named = {gpu.index: at[gpu.pci_bus_id] for gpu in listed if gpu.pci_bus_id in at}
    lost = [gpu.index for gpu in listed if gpu.pci_bus_id is None]
    left = [device for device in devices if device not in named.values()]
    # Both are in bus order: where they are equally many, there is one way to pair them.
    paired = dict(zip(lost, left, strict=True)) if len(lost) == len(left) else {}
    found = named | paired
    gpus = [
        _gpu(gpu, found[gpu.index], driver_gpus.get(found[gpu.index].address, DriverGpu()))
        for gpu in listed
        if gpu.index in found
    ]
    notices = list(_notices_of_nvml(listed, found))
    unlisted = ", ".join(device.address for device in left if device not in paired.values())
    if unlisted:
        notices.append(f"NVML does not list NVIDIA's {unlisted}: left out")
    return gpus, notices


def _by_driver(index: int, device: PciDevice, driver: DriverGpu) -> Gpu:
    """Return a GPU as its driver has it."""
    gpu = device.as_gpu(VENDOR, index)
    return replace(gpu, uuid=driver.uuid, minor=driver.minor, model=driver.model)


def _gpu(gpu: NvmlGpu, device: PciDevice, driver: DriverGpu) -> Gpu:
    """Return a GPU as NVML has it; the driver fills in missing facts."""
    links, known = gpu.nvlinks, _by_driver(gpu.index, device, driver)
    return replace(
        known,
        uuid=gpu.uuid or known.uuid,
        minor=known.minor if gpu.minor is None else gpu.minor,
        model=gpu.model or known.model,
        mig=tuple(MigInstance(uuid) for uuid in gpu.mig),
        nvlinks=None if links is None else tuple(NvLinks(*it) for it in links.items()),
    )


def _notices_of_nvml(listed: Sequence[NvmlGpu], found: Mapping[int, PciDevice]) -> Iterator[str]:
    """Yield the facts that NVML lacks about a GPU, and their replacements."""
    for gpu in listed:
        name, error = f"NVIDIA GPU {gpu.index}", gpu.error or "NVML does not say where it is"
        if gpu.index not in found:
            yield f"{name}: {error}; left out: its PCI device is not known"
        elif gpu.pci_bus_id is None:
            address = found[gpu.index].address
            yield f"{name}: {error}; assumed to be {address}, which NVML does not list"
        elif gpu.error:
            yield f"{name} ({gpu.pci_bus_id}): {error}"


def _driver_gpu(tree: Tree, address: str) -> DriverGpu:
    names = ("Model", "GPU UUID", "Device Minor", "GPU Excluded")
    fields = read_fields(tree, f"{DRIVER_GPUS}/{address}/information", *names)
    uuid = fields.get("GPU UUID", "?")
    return DriverGpu(
        uuid=None if "?" in uuid else uuid,  # GPU-????????-… until a process opens the device
        minor=number(fields.get("Device Minor")),
        model=fields.get("Model") or None,
        excluded=fields.get("GPU Excluded") == "Yes",
    )
