"""The device file of a GPU: what `File=` in gres.conf names, and what tells one GPU from another.

Sources: Slurm's plugins gpu/nvml and gpu/rsmi; kernel Documentation/admin-guide/devices.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from affinityd.topology.model import Gpu


@dataclass(frozen=True)
class DeviceNaming:
    """How a vendor's driver names its device files."""

    prefix: str
    minor: Callable[[Gpu], int | None]
    told_by: str  #: what would tell the minor
    runtime: str  #: what numbers the GPUs in a job


NAMINGS: Mapping[str, DeviceNaming] = {
    "nvidia": DeviceNaming(
        "/dev/nvidia", lambda gpu: gpu.minor, "NVIDIA's driver would tell it", "CUDA"
    ),
    "amd": DeviceNaming(
        "/dev/dri/renderD", lambda gpu: gpu.render_minor, "KFD would tell it", "ROCm"
    ),
}


def device_file(gpu: Gpu) -> str | None:
    """Return a GPU's device file; None where the machine does not tell which it is."""
    naming = NAMINGS.get(gpu.vendor)
    minor = naming and naming.minor(gpu)
    return None if naming is None or minor is None else f"{naming.prefix}{minor}"


def unknown_file(gpu: Gpu) -> tuple[str, str]:
    """Return why a GPU's device file is not known, and what stands in a line for its name."""
    naming = NAMINGS.get(gpu.vendor)
    if naming is None:
        return f"how the device files of vendor {gpu.vendor} are numbered is not known", "?"
    return f"its minor is not known ({naming.told_by})", f"{naming.prefix}?"


def runtime(gpu: Gpu) -> str:
    """Return what counts the GPU in a job, in the order of affinityd."""
    naming = NAMINGS.get(gpu.vendor)
    return naming.runtime if naming else "affinityd"
