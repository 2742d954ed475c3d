"""Which PCI devices are GPUs, the vendor and the number of each.

NVIDIA's: if NVML answers, its list counts; else the bus's, in bus order, which is NVML's order too.
AMD's are numbered as ROCm numbers them: in the order of KFD's nodes.

Sources: the NVIDIA driver's README, "The /proc Interface"; kernel
drivers/gpu/drm/amd/amdkfd/kfd_topology.c (node_show, kfd_topology_add_device).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.discovery.pci import ACCELERATOR, DISPLAY, PciDevice, is_pci_address
from affinityd.discovery.tree import Tree, number, numbered, read_fields
from affinityd.topology.model import Gpu, MigInstance, NvLinks

if TYPE_CHECKING:
    from affinityd.discovery.nvml import NvmlGpu, NvmlReport

NVIDIA, AMD = "nvidia", "amd"

DRIVER_GPUS = "proc/driver/nvidia/gpus"


class DriverGpu(NamedTuple):
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


def nvidia_addresses(driver_gpus: Mapping[str, DriverGpu], nvml: NvmlReport | None) -> set[str]:
    """Return the PCI addresses of the GPUs that NVIDIA's driver or NVML lists."""
    named = (gpu.pci_bus_id for gpu in (nvml and nvml.gpus) or ())
    return {*driver_gpus, *(address for address in named if address and is_pci_address(address))}


def cpus_near(nvml: NvmlReport | None) -> Mapping[str, CpuSet]:
    """Return PCI address → the CPUs near it as NVML reports them, of the smallest scope known."""
    return {
        gpu.pci_bus_id: gpu.node_cpus or gpu.socket_cpus
        for gpu in (nvml and nvml.gpus) or ()
        if gpu.pci_bus_id
    }


def _nvidia_gpus(
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
    drivers = [(device, driver_gpus.get(device.address, DriverGpu())) for device in devices]
    usable = [(device, driver) for device, driver in drivers if not driver.excluded]
    gpus = [_by_driver(index, device, driver) for index, (device, driver) in enumerate(usable)]
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
    device_of = named | paired
    gpus = [
        _gpu(gpu, device, driver_gpus.get(device.address, DriverGpu()))
        for gpu in listed
        if (device := device_of.get(gpu.index))
    ]
    notices = list(_notices_of_nvml(listed, device_of))
    unlisted = ", ".join(device.address for device in left if device not in paired.values())
    if unlisted:
        notices.append(f"NVML does not list NVIDIA's {unlisted}: left out")
    return gpus, notices


def _by_driver(index: int, device: PciDevice, driver: DriverGpu) -> Gpu:
    """Return a GPU as its driver has it."""
    gpu = device.as_gpu(NVIDIA, index)
    return replace(gpu, uuid=driver.uuid, minor=driver.minor, model=driver.model)


def _gpu(gpu: NvmlGpu, device: PciDevice, driver: DriverGpu) -> Gpu:
    """Return a GPU as NVML has it; the driver fills in missing facts."""
    links, of_driver = gpu.nvlinks, _by_driver(gpu.index, device, driver)
    return replace(
        of_driver,
        uuid=gpu.uuid or of_driver.uuid,
        minor=of_driver.minor if gpu.minor is None else gpu.minor,
        model=gpu.model or of_driver.model,
        mig=tuple(MigInstance(uuid) for uuid in gpu.mig),
        nvlinks=None if links is None else tuple(NvLinks(*link) for link in links.items()),
    )


def _notices_of_nvml(
    listed: Sequence[NvmlGpu], device_of: Mapping[int, PciDevice]
) -> Iterator[str]:
    """Yield the facts that NVML lacks about a GPU, and their replacements."""
    for gpu in listed:
        name, error = f"NVIDIA GPU {gpu.index}", gpu.error or "NVML does not say where it is"
        if gpu.index not in device_of:
            yield f"{name}: {error}; left out: its PCI device is not known"
        elif gpu.pci_bus_id is None:
            address = device_of[gpu.index].address
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


KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def _amd_gpus(tree: Tree, devices: Sequence[PciDevice]) -> tuple[list[Gpu], list[str]]:
    """Return AMD's devices, which come in bus order, with their numbers, and notices for people.

    A partitioned device has a node of KFD for each partition; GPUs that KFD does not list come
    last.
    """
    at = {device.address: device for device in devices}
    kfd_names = ("simd_count", "location_id", "domain", "unique_id", "drm_render_minor")
    gpus: list[Gpu] = []
    for node in numbered(tree, KFD_NODES, "") if devices else ():
        fields = read_fields(tree, f"{KFD_NODES}/{node}/properties", *kfd_names)
        values = {name: number(text) for name, text in fields.items()}
        device = at.get(_kfd_address(values.get("domain"), values.get("location_id")))
        if values.get("simd_count") and device:  # not of CPUs, nor hidden by a device cgroup
            unique_id = values.get("unique_id")
            gpu = replace(
                device.as_gpu(AMD, len(gpus)),
                uuid=f"GPU-{unique_id:016x}" if unique_id else None,
                render_minor=values.get("drm_render_minor") or None,
            )
            gpus.append(gpu)
    listed = {gpu.pci_bus_id for gpu in gpus}
    unlisted = [device for device in devices if device.address not in listed]
    gpus += [device.as_gpu(AMD, index) for index, device in enumerate(unlisted, len(gpus))]
    # The name that amdgpu found on the board, often none.
    models = [tree.read(f"{at[gpu.pci_bus_id].folder}/product_name") or None for gpu in gpus]
    notices = []
    if names := ", ".join(device.address for device in unlisted):
        notices.append(
            f"AMD's KFD does not list {names}: numbered last, in PCI bus order"
            if listed
            else "AMD's KFD lists no GPU (is amdgpu loaded?): "
            f"{names} are numbered in PCI bus order"
        )
    return [replace(gpu, model=model) for gpu, model in zip(gpus, models, strict=True)], notices


def _kfd_address(domain: int | None, location: int | None) -> str:
    if location is None:
        return ""
    # Higher bits are the partition's number.
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
    return f"{domain or 0:04x}:{bus:02x}:{device:02x}.{function}"


#: PCI vendor → the name of its GPUs, first in the topology's list; others have their digits.
VENDORS = {"10de": NVIDIA, "1002": AMD, "19e5": "huawei"}

#: Vendors whose displays compute; others', such as a BMC's, only show.
_COMPUTING_DISPLAYS = ("10de", "1002")


def read_gpus(
    tree: Tree,
    devices: Sequence[PciDevice],
    driver_gpus: Mapping[str, DriverGpu],
    nvml: NvmlReport | None,
) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs among the devices, which come in bus order, and notices for people.

    NVIDIA's come first, then AMD's, Huawei's and all others', each by index. `driver_gpus`: those
    of NVIDIA's driver. Their NUMA nodes are not looked for.
    """
    nvidias = nvidia_addresses(driver_gpus, nvml)
    groups: dict[str, list[PciDevice]] = {name: [] for name in VENDORS.values()}
    for device in devices:
        is_nvidias = device.address in nvidias
        if (is_nvidias or _computes(device)) and not _is_given_away(tree, device):
            code = device.vendor or "unknown"
            vendor = NVIDIA if is_nvidias else VENDORS.get(code, code)
            groups.setdefault(vendor, []).append(device)
    from_nvidia, nvidia_notices = _nvidia_gpus(groups.pop(NVIDIA), driver_gpus, nvml)
    from_amd, amd_notices = _amd_gpus(tree, groups.pop(AMD))
    from_others = [
        device.as_gpu(vendor, index)
        for vendor, group in groups.items()
        for index, device in enumerate(group)
    ]
    return [*from_nvidia, *from_amd, *from_others], nvidia_notices + amd_notices


def _computes(device: PciDevice) -> bool:
    return device.base_class == ACCELERATOR or (
        device.base_class == DISPLAY and device.vendor in _COMPUTING_DISPLAYS
    )


def _is_given_away(tree: Tree, device: PciDevice) -> bool:
    """Whether a virtual machine may have the device: vfio-pci drives it, or a vendor's variant."""
    driver = (tree.link(f"{device.folder}/driver") or "").rpartition("/")[2]
    return driver.replace("_", "-").endswith("vfio-pci")
