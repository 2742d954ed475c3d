"""The holders of AMD's GPUs, by the files of its compute driver: /sys/class/kfd/kfd/proc/PID.

Source: kernel drivers/gpu/drm/amd/amdkfd/kfd_process.c (kfd_create_process, kfd_procfs_show,
kfd_procfs_queue_show). A process has its folder from its first open of /dev/kfd on, with a file
vram_GPUID of every GPU that it may open: that proves no use. A GPU in which it holds memory, or
has a queue, it uses. The pids are the host's. Its sdma_GPUID is never read: that stops its queues
for a moment. Newer kernels have context_N folders in PID, with the same files, for programs that
open the GPU more than once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from affinityd.audit.facts.holding import GpuHolders, Holding
from affinityd.linux.files import listed, numbered, text
from affinityd.topology.model import Gpu

KFD = "class/kfd/kfd"

NO_KFD = "AMD's KFD lists no processes; load amdgpu, or use a newer Linux"
NOT_LISTED = "AMD's KFD does not list it"


def found(gpus: Sequence[Gpu], sys: str = "/sys") -> GpuHolders:
    """Return the holders of AMD's GPUs."""
    if not gpus:
        return GpuHolders()
    processes = f"{sys}/{KFD}/proc"
    if not os.path.isdir(processes):  # noqa: PTH112
        return GpuHolders.unknown_of(gpus, NO_KFD)
    gpu_of = _by_id(gpus, sys)
    unlisted = [gpu for gpu in gpus if gpu not in gpu_of.values()]
    holdings = tuple(
        Holding(pid, gpu_of[number].key, memory)
        for pid in numbered(processes)
        for number, memory in _uses(f"{processes}/{pid}").items()
        if number in gpu_of
    )
    return replace(GpuHolders.unknown_of(unlisted, NOT_LISTED), holdings=holdings)


def _by_id(gpus: Sequence[Gpu], sys: str) -> Mapping[str, Gpu]:
    """Return KFD's gpu_id → GPU, by the render device that both name: each partition has its own.

    Files: topology/nodes/N/gpu_id, and drm_render_minor in topology/nodes/N/properties.
    """
    nodes = f"{sys}/{KFD}/topology/nodes"
    by_minor = {str(gpu.render_minor): gpu for gpu in gpus if gpu.render_minor is not None}
    found = {
        text(f"{nodes}/{node}/gpu_id"): by_minor.get(_render_minor(f"{nodes}/{node}"))
        for node in listed(nodes)
    }
    return {number: gpu for number, gpu in found.items() if gpu is not None}


def _render_minor(node: str) -> str:
    lines = (line.split() for line in text(f"{node}/properties").splitlines())
    return next((line[1] for line in lines if line[:1] == ["drm_render_minor"]), "")


def _uses(folder: str) -> Mapping[str, int]:
    """Return the gpu_ids of the GPUs that a process uses → bytes of their memory that it holds."""
    contexts = (f"{folder}/{name}" for name in listed(folder) if name.startswith("context_"))
    uses: Counter[str] = Counter()
    for place in (folder, *contexts):
        queues = f"{place}/queues"
        queued = {text(f"{queues}/{queue}/gpuid") for queue in listed(queues)}
        for name in listed(place):
            kind, _, number = name.partition("_")
            size = text(f"{place}/{name}") if kind == "vram" else ""
            if size.isdigit() and (int(size) or number in queued):
                uses[number] += int(size)
    return uses
