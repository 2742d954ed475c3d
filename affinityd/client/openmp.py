"""The OpenMP runtime of this process: whether it has bound the main thread, and its threads.

GNU's libgomp binds the main thread to the first place when it is loaded, as by `import torch`;
Intel's and LLVM's do so in the first parallel region. The places are parts of the mask of that
moment. Sources: OpenMP 5.2, OMP_PROC_BIND and OMP_PLACES; libgomp env.c, config/linux/affinity.c.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from affinityd.cpuset import CpuSet, several
from affinityd.errors import ApplyError
from affinityd.linux.cgroup import cpuset_of, mask_of
from affinityd.linux.files import content
from affinityd.request.environment import LAUNCHERS

PROC_BIND = "OMP_PROC_BIND"
BINDING_VARIABLES = (PROC_BIND, "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
GNU = "libgomp"
RUNTIMES = (GNU, "libiomp5", "libomp")
#: Libraries that start a thread for each CPU that they find.
POOLS = (*RUNTIMES, "libopenblas", "libscipy_openblas", "libmkl_", "libblis")
TORCHRUN = "LOCAL_RANK"  #: the rank of launchers that bind no rank by themselves


def binding_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable, NAME=value, by which a runtime here binds threads; None: none does."""
    if environ.get(PROC_BIND, "").lower() == "false" or not library(RUNTIMES):
        return None
    for name in BINDING_VARIABLES:
        if environ.get(name):
            return f"{name}={environ[name]}"
    return None


def library(names: tuple[str, ...]) -> str | None:
    """Return the path of a library of this process whose name begins so; None: it has none."""
    for line in (content("/proc/self/maps") or b"").decode(errors="replace").split("\n"):
        _, slash, path = line.partition("/")
        if path.rpartition("/")[2].startswith(names):
            return slash + path
    return None


def cpus_before_binding(environ: Mapping[str, str], mask: CpuSet) -> CpuSet:
    """Return the CPUs that this process had before a runtime bound its main thread to this mask.

    If none did, that is the mask; else the CPUs of the parent that the cpuset allows. Raises
    ApplyError where a launcher may have bound the process: the parent has more CPUs then.
    """
    variable = binding_variable(environ)
    if variable is None:
        return mask
    cpuset = cpuset_of(os.getpid())
    before = mask_of(os.getppid()) or cpuset or mask
    before &= cpuset or before
    if mask >= before:
        return mask
    launchers = [name for name in LAUNCHERS if name in environ and name != TORCHRUN]
    if launchers:
        raise ApplyError(
            f"OpenMP ({variable}) has bound the main thread to {several('CPU', mask)}, and which "
            "CPUs it had is not known: call bind() before the first parallel region and "
            "before the library is loaded, or start the program by affinityd exec"
        )
    return before


def pool_size(threads: int, cpus: int) -> int:
    """Return how many threads a library has in its pool, or will have; 0: unknown, or none.

    libgomp says it. Of others `threads`, those of this process, are a pool if there are as many as
    CPUs when it was loaded, `cpus`.
    """
    size = threads if threads >= cpus and library(POOLS) else 0
    path = library((GNU,))
    if path is None:
        return size
    import ctypes  # noqa: PLC0415 - few processes need it

    try:
        runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return max(size, int(runtime.omp_get_max_threads()))
    except (OSError, AttributeError):
        return size
