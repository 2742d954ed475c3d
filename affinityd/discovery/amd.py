"""AMD's GPUs, numbered as ROCm numbers them: in the order of KFD's nodes.

Source: kernel `drivers/gpu/drm/amd/amdkfd/kfd_topology.c` (node_show, kfd_topology_add_device).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from affinityd.discovery.pci import PciDevice
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import number, numbered, read_fields
from affinityd.topology.model import Gpu

VENDOR = "amd"

KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True)
class KfdGpu:
    """A GPU as ROCm counts it; a device that is partitioned has several."""

    address: str
    uuid: str | None
    render_minor: int | None


def enumerate_gpus(tree: Tree, devices: Sequence[PciDevice]) -> tuple[list[Gpu], list[str]]:
    """Return AMD's devices, which come in bus order, with their numbers, and notices for people.

    GPUs that KFD does not list come last.
    """
    at = {device.address: device for device in devices}
    nodes = numbered(tree, KFD_NODES, "") if devices else ()
    seen = (_kfd_gpu(tree, f"{KFD_NODES}/{node}/properties") for node in nodes)
    listed = [gpu for gpu in seen if gpu is not None and gpu.address in at]
    addresses = {gpu.address for gpu in listed}
    unlisted = [device for device in devices if device.address not in addresses]
    gpus = [
        replace(
            at[gpu.address].as_gpu(VENDOR, index),
            uuid=gpu.uuid,
            render_minor=gpu.render_minor,
        )
        for index, gpu in enumerate(listed)
    ] + [device.as_gpu(VENDOR, index) for index, device in enumerate(unlisted, len(listed))]
    # The name that amdgpu found on the board, often none.
    models = [tree.read(f"{at[gpu.pci_bus_id].folder}/product_name") or None for gpu in gpus]
    named = [replace(gpu, model=model) for gpu, model in zip(gpus, models, strict=True)]
    return named, list(_notices(listed, unlisted))


def _notices(listed: Sequence[KfdGpu], unlisted: Sequence[PciDevice]) -> Iterator[str]:
    names = ", ".join(device.address for device in unlisted)
    if names and not listed:
        yield f"AMD's KFD lists no GPU (is amdgpu loaded?): {names} are numbered in PCI bus order"
    elif names:
        yield f"AMD's KFD does not list {names}: numbered last, in PCI bus order"


def _kfd_gpu(tree: Tree, path: str) -> KfdGpu | None:
    """Read one node; None if it is one of CPUs, or one that a device cgroup hides."""
    names = ("simd_count", "location_id", "domain", "unique_id", "drm_render_minor")
    values = {name: number(text) for name, text in read_fields(tree, path, *names).items()}
    location, unique_id = values.get("location_id"), values.get("unique_id")
    if not values.get("simd_count") or location is None:
        return None
    # The bits above these tell the partitions of a device apart.
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
    return KfdGpu(
        address=f"{values.get('domain') or 0:04x}:{bus:02x}:{device:02x}.{function}",
        uuid=f"GPU-{unique_id:016x}" if unique_id else None,
        render_minor=values.get("drm_render_minor") or None,
    )
