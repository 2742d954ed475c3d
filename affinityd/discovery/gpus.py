"""Which PCI devices are GPUs, and the vendor and index of each GPU.

NVIDIA's GPUs are those of NVML's list if NVML answers, else those on the PCI bus; both are in bus
order. AMD's GPUs are numbered as ROCm numbers them: in the order of KFD's nodes.

Sources: the NVIDIA driver's README, "The /proc Interface"; MIG User Guide, "Device Nodes and
Capabilities"; kernel drivers/gpu/drm/amd/amdkfd/kfd_topology.c (node_show,
kfd_topology_add_device).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from affinityd.discovery.pci import ACCELERATOR, DISPLAY, PciDevice, is_pci_address
from affinityd.discovery.tree import Tree, number, numbered, read_fields
from affinityd.topology.model import Gpu, MigInstance

if TYPE_CHECKING:
    from affinityd.discovery.nvml import NvmlGpu, NvmlReport

NVIDIA = "nvidia"
AMD = "amd"

DRIVER_GPUS = "proc/driver/nvidia/gpus"


class DriverGpu(NamedTuple):
    """A GPU that the driver lists: /proc/driver/nvidia/gpus/ADDRESS/information."""

    uuid: str | None = None  #: GPU UUID
    minor: int | None = None  #: Device Minor
    model: str | None = None  #: Model
    excluded: bool = False  #: GPU Excluded: held back from CUDA and NVML by the driver's settings
    is_divided: bool = False  #: there are MIG instances: capabilities/gpuMINOR/mig/giN


def read_driver(tree: Tree) -> Mapping[str, DriverGpu]:
    """Return PCI address → the driver's facts of the GPU there."""
    names = ("Model", "GPU UUID", "Device Minor", "GPU Excluded")
    gpus = {}
    for address in tree.list(DRIVER_GPUS, is_pci_address):
        fields = read_fields(tree, f"{DRIVER_GPUS}/{address}/information", *names)
        uuid = fields.get("GPU UUID", "?")
        minor = number(fields.get("Device Minor"))
        gpus[address] = DriverGpu(
            uuid=None if "?" in uuid else uuid,  # GPU-????????-… until a process opens the device
            minor=minor,
            model=fields.get("Model") or None,
            excluded=fields.get("GPU Excluded") == "Yes",
            is_divided=bool(
                numbered(tree, f"proc/driver/nvidia/capabilities/gpu{minor}/mig", "gi")
            ),
        )
    return gpus


def nvidia_addresses(driver_gpus: Mapping[str, DriverGpu], nvml: NvmlReport | None) -> set[str]:
    """Return the PCI addresses of the GPUs that NVIDIA's driver or NVML lists."""
    named = (gpu.pci_bus_id for gpu in (nvml and nvml.gpus) or ())
    return {*driver_gpus, *(address for address in named if address and is_pci_address(address))}


def _by_driver(
    devices: Sequence[PciDevice], driver_gpus: Mapping[str, DriverGpu], why: str
) -> tuple[list[Gpu], list[str]]:
    """Return NVIDIA's GPUs with the driver's facts, and notices; `why`: why NVML is not used."""
    gpus: list[Gpu] = []
    notices = []
    if devices:
        notices.append(f"{why}; NVIDIA's GPUs are numbered in PCI bus order")
    unknown = ", ".join(device.address for device in devices if device.address not in driver_gpus)
    if unknown:
        notices.append(f"NVIDIA's driver does not list {unknown}: no UUID and no minor are known")
    for device in devices:
        driver = driver_gpus.get(device.address, DriverGpu())
        if not driver.excluded:
            gpu = device.as_gpu(
                NVIDIA,
                len(gpus),
                uuid=driver.uuid,
                minor=driver.minor,
                model=driver.model,
                is_divided=driver.is_divided,
            )
            gpus.append(gpu)
    return gpus, notices


def _by_nvml(
    listed: Sequence[NvmlGpu], devices: Sequence[PciDevice], driver_gpus: Mapping[str, DriverGpu]
) -> tuple[list[Gpu], list[str]]:
    """Join NVML's GPUs to PCI devices by address; GPUs without one are joined by elimination."""
    at = {device.address: device for device in devices}
    device_of = {gpu.index: at[gpu.pci_bus_id] for gpu in listed if gpu.pci_bus_id in at}
    lost = [gpu.index for gpu in listed if gpu.pci_bus_id is None]
    left = [device for device in devices if device not in device_of.values()]
    # Lost GPUs and left devices are in bus order: if they are equally many, the order pairs them.
    if len(lost) == len(left):
        device_of.update(zip(lost, left, strict=True))
        left = []
    gpus = []
    notices = []
    for gpu in listed:
        name = f"NVIDIA GPU {gpu.index}"
        error = gpu.error or "NVML does not say where it is"
        device = device_of.get(gpu.index)
        if device is None:
            notices.append(f"{name}: {error}; left out: its PCI device is not known")
            continue
        if gpu.pci_bus_id is None:
            place = device.address
            notices.append(f"{name}: {error}; assumed to be {place}, which NVML does not list")
        elif gpu.error:
            notices.append(f"{name} ({gpu.pci_bus_id}): {error}")
        driver = driver_gpus.get(device.address, DriverGpu())
        joined = device.as_gpu(
            NVIDIA,
            gpu.index,
            uuid=gpu.uuid or driver.uuid,
            minor=driver.minor if gpu.minor is None else gpu.minor,
            model=gpu.model or driver.model,
            mig=tuple(MigInstance(uuid) for uuid in gpu.mig),
        )
        gpus.append(joined)
    if unlisted := ", ".join(device.address for device in left):
        notices.append(f"NVML does not list NVIDIA's {unlisted}: left out")
    return gpus, notices


KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def _amd_gpus(tree: Tree, devices: Sequence[PciDevice]) -> tuple[list[Gpu], list[str]]:
    """Return AMD's GPUs (one for each node of KFD, a partition; then unlisted ones) and notices."""
    at = {device.address: device for device in devices}
    kfd_names = ("simd_count", "location_id", "domain", "unique_id", "drm_render_minor")
    found: list[tuple[PciDevice, dict[str, Any]]] = []
    for node in numbered(tree, KFD_NODES, "") if devices else ():
        fields = read_fields(tree, f"{KFD_NODES}/{node}/properties", *kfd_names)
        simds, place, domain, unique_id, minor = (number(fields.get(name)) for name in kfd_names)
        if simds and place is not None:  # a GPU that no device cgroup hides
            # A partition's number is in location_id's highest bits, or replaces the function (0).
            bus = place >> 8 & 0xFF
            slot = place >> 3 & 0x1F
            function = place & 0x7
            name = f"{domain or 0:04x}:{bus:02x}:{slot:02x}"
            device = at.get(f"{name}.{function}") or at.get(f"{name}.0")
            if device is not None:
                uuid = f"GPU-{unique_id:016x}" if unique_id else None
                found.append((device, {"uuid": uuid, "render_minor": minor or None}))
    listed = {device.address for device, _ in found}
    unlisted = [device for device in devices if device.address not in listed]
    gpus: list[Gpu] = []
    for device, facts in (*found, *((device, {}) for device in unlisted)):
        model = tree.read(f"{device.folder}/product_name") or None  # amdgpu writes it, often empty
        gpus.append(device.as_gpu(AMD, len(gpus), model=model, **facts))
    notices = []
    names = ", ".join(device.address for device in unlisted)
    if unlisted and listed:
        notices.append(f"AMD's KFD does not list {names}: numbered last, in PCI bus order")
    elif unlisted:
        why = "AMD's KFD lists no GPU (is amdgpu loaded?)"
        notices.append(f"{why}: {names} are numbered in PCI bus order")
    return gpus, notices


#: PCI vendor → name of the vendor, in the order of the topology's list; other vendors are named by
#: their digits.
VENDORS = {"10de": NVIDIA, "1002": AMD, "19e5": "huawei"}


def read_gpus(
    tree: Tree,
    devices: Sequence[PciDevice],
    driver_gpus: Mapping[str, DriverGpu],
    nvml: NvmlReport | None,
) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs, sorted by vendor and index, without their NUMA nodes, and notices."""
    nvidias = nvidia_addresses(driver_gpus, nvml)
    groups: dict[str, list[PciDevice]] = {name: [] for name in VENDORS.values()}
    for device in devices:
        is_nvidias = device.address in nvidias
        code = device.vendor or "unknown"
        if not is_nvidias and device.base_class not in {ACCELERATOR, DISPLAY}:
            continue
        driver = (tree.link(f"{device.folder}/driver") or "").rpartition("/")[2]
        # A device with vfio-pci, or a vendor's variant of it, may belong to a virtual machine.
        is_elsewhere = driver.replace("_", "-").endswith("vfio-pci")
        if not is_elsewhere and (is_nvidias or _computes(device)):
            vendor = NVIDIA if is_nvidias else VENDORS.get(code, code)
            groups.setdefault(vendor, []).append(device)
    nvidia_devices = groups.pop(NVIDIA)
    if nvml is not None and nvml.gpus is not None:
        gpus, notices = _by_nvml(nvml.gpus, nvidia_devices, driver_gpus)
    else:
        why = (nvml and nvml.said) or "NVML was not asked"
        gpus, notices = _by_driver(nvidia_devices, driver_gpus, why)
    from_amd, amd_notices = _amd_gpus(tree, groups.pop(AMD))
    from_others = []
    for vendor, group in groups.items():
        for index, device in enumerate(group):
            accel = numbered(tree, f"{device.folder}/accel", "accel")
            render = numbered(tree, f"{device.folder}/drm", "renderD")
            gpu = device.as_gpu(
                vendor,
                index,
                minor=accel[0] if accel else None,
                render_minor=render[0] if render else None,
            )
            from_others.append(gpu)
    return [*gpus, *from_amd, *from_others], notices + amd_notices


def _computes(device: PciDevice) -> bool:
    """Return whether a PCI device computes. A graphics unit of Intel's CPUs, on bus 0, does not."""
    if device.base_class == ACCELERATOR:
        return True
    is_virtual = device.vendor in {"1af4", "1b36"}  # virtual displays, which may have these classes
    if device.base_class != DISPLAY or is_virtual:
        return False
    if device.class_code in {0x0302, 0x0380}:  # GPUs without a display
        return True
    if device.vendor == "8086" and device.address.startswith("0000:00:"):
        return False
    # Displays of other vendors, such as a BMC's, do not compute.
    return device.vendor in {"10de", "1002", "8086"}
