"""A node's GPUs as Slurm names them, `File=`, and as they are linked, `Links=`.

Links are counted as Slurm's gpu/nvml counts them: NVLinks that are up, GPU to GPU; those to a
switch lead to no GPU. With AutoDetect=, Slurm ignores a GPU whose line differs from its plugin's
numbers. So AMD's have none: gpu/rsmi always has 0, even with XGMI.

Sources: Slurm's src/plugins/gpu/nvml/gpu_nvml.c (_nvml_get_nvlink_info) and gpu/rsmi, gres.conf(5)
"Links"; kernel Documentation/admin-guide/devices.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from affinityd.topology.model import Gpu, Topology

ITSELF = -1  #: stands where a GPU's own number of links would

Key = tuple[str, int]  #: of a GPU


@dataclass(frozen=True)
class DeviceNaming:
    """How a vendor's driver names its device files."""

    prefix: str
    minor: Callable[[Gpu], int | None]
    unknown: str  #: why a minor is not known
    runtime: str  #: the source of the GPUs' numbers in a job, in the order of affinityd


NAMINGS: Mapping[str, DeviceNaming] = {
    "nvidia": DeviceNaming(
        "/dev/nvidia",
        lambda gpu: gpu.minor,
        "its minor is not known (NVIDIA's driver would tell it)",
        "CUDA",
    ),
    "amd": DeviceNaming(
        "/dev/dri/renderD",
        lambda gpu: gpu.render_minor,
        "its minor is not known (KFD would tell it)",
        "ROCm",
    ),
}


def naming(gpu: Gpu) -> DeviceNaming:
    """Return how a GPU's device file is named."""
    why = f"how the device files of vendor {gpu.vendor} are numbered is not known"
    return NAMINGS.get(gpu.vendor) or DeviceNaming("", lambda _: None, why, "affinityd")


def device_file(gpu: Gpu) -> str | None:
    """Return a GPU's device file; None where the machine does not tell which it is."""
    minor = naming(gpu).minor(gpu)
    return None if minor is None else f"{naming(gpu).prefix}{minor}"


def links(topology: Topology) -> Mapping[Key, tuple[int, ...]]:
    """Return how many links lead from each GPU to each, in the order of their numbers.

    None are known where a GPU is left out of Slurm's numbers, as its device file is not known, or
    counts as several, its MIG instances: each of the others' would stand in a wrong place.
    """
    gpus = topology.gpus
    known = {
        gpu.key: {it.pci_bus_id: it.links for it in gpu.nvlinks}
        for gpu in gpus
        if gpu.nvlinks is not None and device_file(gpu) and not gpu.mig
    }
    if len(known) < len(gpus):
        return {}
    return {
        key: tuple(
            ITSELF if other.key == key else nvlinks.get(other.pci_bus_id, 0) for other in gpus
        )
        for key, nvlinks in known.items()
    }
