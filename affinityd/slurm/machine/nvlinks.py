"""How many links lead from each GPU of a node to each other: what `Links=` should be.

They are counted as Slurm's gpu/nvml counts them: NVLinks that are up, GPU to GPU; those to a switch
lead to no GPU. For with AutoDetect=, Slurm ignores a GPU whose line says otherwise than its plugin.
That is why AMD's have none: gpu/rsmi says 0, whatever XGMI there is.

Source: Slurm's src/plugins/gpu/nvml/gpu_nvml.c (_nvml_get_nvlink_info), gres.conf(5) "Links".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from affinityd.slurm.machine.device_files import device_file
from affinityd.topology.model import Gpu, Topology

ITSELF = -1  #: stands where a GPU's own number of links would


@dataclass(frozen=True)
class LinkCounts:
    """What `Links=` of each GPU should be."""

    counts: Mapping[tuple[str, int], tuple[int, ...]]  #: GPU's key → to each GPU; {}: not known

    def field(self, gpu: Gpu) -> str | None:
        """Return it as it is written; None where it is not known, or no link leads to a GPU."""
        useful = any(count > 0 for row in self.counts.values() for count in row)
        return written(self.counts[gpu.key]) if useful else None

    def misstated(self, gpu: Gpu, said: tuple[int, ...]) -> str | None:
        """Return what is wrong about a GPU's `Links=`, where that is known; None if nothing is."""
        if said == self.counts[gpu.key]:
            return None
        right = self.field(gpu) or "no Links="
        return f"{written(said)} is not what NVML counts; right is {right}"


def written(counts: Sequence[int]) -> str:
    """Return `Links=-1,4,4,4`."""
    return f"Links={','.join(map(str, counts))}"


def links(topology: Topology) -> LinkCounts:
    """Return the links between the GPUs, in the order of their numbers.

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
        return LinkCounts({})
    return LinkCounts(
        {
            key: tuple(
                ITSELF if other.key == key else nvlinks.get(other.pci_bus_id, 0) for other in gpus
            )
            for key, nvlinks in known.items()
        }
    )
