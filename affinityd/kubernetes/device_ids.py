"""The ids of GPUs by device plugins and DRA drivers, and which of the node's GPUs these are. Pure.

Sources: NVIDIA/k8s-device-plugin (UUIDs, or indices; `::N` behind a shared one), container-engine-
accelerators of GKE (`nvidia0`, `nvidia0/vgpu1`), ROCm/k8s-device-plugin (PCI bus ids), Ascend's
(`Ascend910-0`); of DRA, NVIDIA's (`gpu-0`, N of /dev/nvidiaN) and ROCm/k8s-gpu-dra-driver's
(`gpu-1-129`: card, renderD).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.kubelet import ContainerResources
from affinityd.topology.model import Gpu, Topology

#: A GPU, and a MIG instance of it; None: all of it, or an unknown one.
Device = tuple[GpuKey, str | None]

REPLICA = "::"  #: before the number of a shared device's replica
INDEX, MINOR, RENDER = "index of {}: {}", "/dev/nvidia{}", "/dev/dri/renderD{}"
#: RESOURCE/ID or DRIVER/DEVICE → the GPU's name here. Other ids are UUIDs and PCI bus ids.
NAMES = {
    re.compile(r"(nvidia)\.com/[^/]+/(\d+)"): INDEX,
    re.compile(r"nvidia\.com/[^/]+/nvidia(\d+)(?:/.*)?"): MINOR,
    re.compile(r"(huawei)\.com/[^/]+/Ascend.*-(\d+)"): INDEX,
    re.compile(r"gpu\.nvidia\.com/gpu-(\d+)(?:-mig-.*)?"): MINOR,
    re.compile(r"gpu\.amd\.com/gpu-\d+-(\d+)"): RENDER,
}


def devices(container: ContainerResources, topology: Topology) -> frozenset[Device]:
    """Return which of the node's GPUs, and MIG instances, a container was given."""
    by_plugins = (
        f"{resource}/{it.partition(REPLICA)[0]}"
        for resource, its in container.devices.items()
        for it in its
    )
    named = {_name(it) for it in (*by_plugins, *container.claims)}
    return frozenset(
        (gpu.key, mig) for gpu in topology.gpus for name, mig in _names(gpu) if name in named
    )


def _name(device: str) -> str:
    """Return the name here of RESOURCE/ID."""
    found = ((name, pattern.fullmatch(device)) for pattern, name in NAMES.items())
    whole = (name.format(*match.groups()) for name, match in found if match)
    return next(whole, device.rpartition("/")[2])


def _names(gpu: Gpu) -> Iterator[tuple[str, str | None]]:
    """Yield the names of a GPU and of its MIG instances, each with the instance."""
    files = {MINOR: gpu.minor, RENDER: gpu.render_minor}
    yield INDEX.format(gpu.vendor, gpu.index), None
    yield from ((name.format(it), None) for name, it in files.items() if it is not None)
    yield from ((name, None) for name in (gpu.pci_bus_id, gpu.uuid) if name)
    yield from ((it.uuid, it.uuid) for it in gpu.mig)
