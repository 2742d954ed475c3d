"""Which PCI devices are GPUs, the vendor and the number of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from affinityd.discovery import amd, nvidia
from affinityd.discovery.pci import ACCELERATOR, DISPLAY, PciDevice
from affinityd.discovery.tree import Tree
from affinityd.topology.model import Gpu

if TYPE_CHECKING:
    from affinityd.discovery.nvml.report import NvmlReport

#: PCI vendor → the name of its GPUs, first in the topology's list; others have their digits.
VENDORS = {"10de": nvidia.VENDOR, "1002": amd.VENDOR, "19e5": "huawei"}

#: Vendors whose displays compute; others', such as a BMC's, only show.
_COMPUTING_DISPLAYS = ("10de", "1002")


def read_gpus(
    tree: Tree,
    devices: Sequence[PciDevice],
    driver_gpus: Mapping[str, nvidia.DriverGpu],
    nvml: NvmlReport | None,
) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs among the devices, which come in bus order, and notices for people.

    NVIDIA's come first, then AMD's, Huawei's and all others', each by index. `driver_gpus`: those
    of NVIDIA's driver. Their NUMA nodes are not looked for.
    """
    nvidias = nvidia.addresses(driver_gpus, nvml)
    groups: dict[str, list[PciDevice]] = {name: [] for name in VENDORS.values()}
    for device in devices:
        is_nvidias = device.address in nvidias
        if (is_nvidias or _computes(device)) and not _is_given_away(tree, device):
            code = device.vendor or "unknown"
            vendor = nvidia.VENDOR if is_nvidias else VENDORS.get(code, code)
            groups.setdefault(vendor, []).append(device)
    from_nvidia, nvidia_notices = nvidia.enumerate_gpus(
        groups.pop(nvidia.VENDOR), driver_gpus, nvml
    )
    from_amd, amd_notices = amd.enumerate_gpus(tree, groups.pop(amd.VENDOR))
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
