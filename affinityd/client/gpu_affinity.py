"""The interface of NVIDIA's gpu_affinity package, with its names and results.

    import affinityd as gpu_affinity

moves a training script over. Source: https://github.com/NVIDIA/gpu_affinity, README.
"""

from __future__ import annotations

import warnings
from enum import Enum

from affinityd.client.bind import bind_process, texts
from affinityd.errors import InvalidRequestError
from affinityd.request.parsers import MAX_ENTRIES


class _Name(Enum):
    def __str__(self) -> str:
        return str(self.value)


class Mode(_Name):
    """How ranks divide the cores: `affinityd.planner.modes`."""

    ALL = "all"
    SINGLE = "single"
    SINGLE_UNIQUE = "single_unique"
    UNIQUE_INTERLEAVED = "unique_interleaved"
    UNIQUE_CONTIGUOUS = "unique_contiguous"
    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core_complex"
    EVEN = "even"


class Scope(_Name):
    """The cores of the NUMA node, or of its whole package."""

    NODE = "node"
    SOCKET = "socket"


class Multithreading(_Name):
    """All CPUs of a core, or only its lowest allowed one."""

    ALL_LOGICAL = "all_logical"
    SINGLE_LOGICAL = "single_logical"


def set_affinity(
    gpu_id: int,
    nproc_per_node: int,
    *,
    mode: Mode = Mode.UNIQUE_CONTIGUOUS,
    scope: Scope = Scope.NODE,
    multithreading: Multithreading = Multithreading.ALL_LOGICAL,
    balanced: bool = True,
    min_physical_cores: int = 1,
    max_physical_cores: int | None = None,
) -> set[int]:
    """Pin this process to the CPUs near a GPU, and return them as read back.

    `gpu_id` is the GPU's index as this process sees it, and its rank among `nproc_per_node`
    processes of one GPU each, which divide the cores among themselves.

    Deviations are told by `warnings.warn`: a process that may use no CPU near its GPU gets the
    nearest that it may use. NVIDIA's package raises GPUAffinityError there, on every rank.

    Raises AffinityError (also as GPUAffinityError) where there is no such GPU or rank, too few
    cores, or no plan at all; `affinityd.bind` raises no error.
    """
    if not 0 <= gpu_id < nproc_per_node:
        raise InvalidRequestError(
            f"gpu_id={gpu_id} is not from 0 to nproc_per_node - 1, which is {nproc_per_node - 1}"
        )
    if nproc_per_node > MAX_ENTRIES:
        raise InvalidRequestError(
            f"nproc_per_node={nproc_per_node} is too many; the most is {MAX_ENTRIES}"
        )
    chosen = {
        "gpus": [*range(nproc_per_node)],
        "ranks": nproc_per_node,
        "rank": gpu_id,
        "share": "requested",
        "mode": mode,
        "scope": scope,
        "multithreading": multithreading,
        "balanced": balanced,
        "min_physical_cores": min_physical_cores,
        "max_physical_cores": max_physical_cores,
    }
    binding = bind_process(texts(chosen))
    for warning in binding.warnings:
        warnings.warn(f"affinityd: {warning}", stacklevel=2)
    return set(binding.cpus)
