"""The OpenMP runtime of this process: whether it has bound the main thread, and its pool size.

GNU's libgomp binds the main thread to the first place when it is loaded, as by `import torch`;
Intel's and LLVM's do so in the first parallel region. The places are parts of the mask at that
moment. Sources: OpenMP 5.2, OMP_PROC_BIND and OMP_PLACES; libgomp env.c, config/linux/affinity.c.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from affinityd.cpuset import CpuSet, several
from affinityd.errors import ApplyError
from affinityd.linux.cgroup import cpuset_of, mask_of
from affinityd.linux.files import content
from affinityd.request.environment import LAUNCHERS, LOCAL_RANK

RUNTIMES = ("libgomp", "libiomp5", "libomp")


def library(*names: str) -> str | None:
    """Return the path of a library of this process by the start of its name; None: no library."""
    for line in (content("/proc/self/maps") or b"").decode(errors="replace").split("\n"):
        _, slash, path = line.partition("/")
        if path.rpartition("/")[2].startswith(names):
            return slash + path
    return None


def cpus_before_binding(environ: Mapping[str, str], mask: CpuSet) -> CpuSet:
    """Return the CPUs that this process had before a runtime bound its main thread to this mask.

    If no runtime did, return the mask; else the CPUs of the parent that the cpuset allows. Raises
    ApplyError if a launcher may have bound the process, and the parent has more CPUs.
    """
    names = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
    variables = [f"{name}={environ[name]}" for name in names if environ.get(name)]
    is_off = environ.get("OMP_PROC_BIND", "").lower() == "false"
    if not variables or is_off or not library(*RUNTIMES):
        return mask
    cpuset = cpuset_of(os.getpid())
    before = mask_of(os.getppid()) or cpuset or mask
    before &= cpuset or before
    if mask >= before:
        return mask
    # torchrun and similar launchers do not bind ranks.
    if any(name in environ and name != LOCAL_RANK for name in LAUNCHERS):
        raise ApplyError(
            f"OpenMP ({variables[0]}) has bound the main thread to {several('CPU', mask)}, and "
            "which CPUs it had is not known: call bind() before the first parallel region and "
            "before the library is loaded, or start the program by affinityd exec"
        )
    return before


def pool_size(threads: int, cpus: int) -> int:
    """Return how many threads a library has in its pool, or will have; 0: no pool is known.

    libgomp tells the number. Otherwise this process's `threads` count as a pool if they are as many
    as its CPUs.
    """
    size = 0
    # Libraries that start a thread for each CPU they find.
    pools = (*RUNTIMES, "libopenblas", "libscipy_openblas", "libmkl_", "libblis")
    if threads >= cpus and library(*pools):
        size = threads
    path = library("libgomp")
    if path is None:
        return size
    try:
        import ctypes  # noqa: PLC0415 - a Python without libffi has none

        runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return max(size, int(runtime.omp_get_max_threads()))
    except (ImportError, OSError, AttributeError):
        return size
