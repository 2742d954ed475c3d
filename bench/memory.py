"""Where a process's memory is: by a sample of its pages, compared with reading its numa_maps.

python -m bench.memory [--gib N ...]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from affinityd.linux.resident import resident_memory
from bench.ratio import Ratio

GIB = 2**30
SIZES = (6, 20)
SPARE = 4 * GIB  #: bytes that stay free

#: Fills memory with pages of 4 KiB.
FILL = """
import ctypes, mmap, sys
area = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(area)), 1, len(area))
print('ready', flush=True)
input()
"""


def measure(rounds: int = 15) -> tuple[Ratio, ...]:
    """Return the ratios of a sample's time to that of numa_maps, for each size that fits."""
    free = _available() - SPARE
    sizes = [gib for gib in SIZES if gib * GIB <= free]
    if not sizes:
        raise RuntimeError(f"only {free / GIB:.0f} GiB are free beyond {SPARE / GIB:.0f} to spare")
    return tuple(_ratio(gib, rounds) for gib in sizes)


def _ratio(gib: int, rounds: int) -> Ratio:
    with _filled(gib * GIB) as pid:
        ratios = [_sample(pid) / _whole(pid) for _ in range(rounds)]
    return Ratio(f"where {gib} GiB of memory are, by a sample", "numa_maps", 0.05, ratios)


def _sample(pid: int) -> float:
    began = time.perf_counter()
    assert resident_memory(pid).drawn
    return time.perf_counter() - began


def _whole(pid: int) -> float:
    began = time.perf_counter()
    assert Path(f"/proc/{pid}/numa_maps").read_bytes()
    return time.perf_counter() - began


@contextmanager
def _filled(size: int) -> Iterator[int]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-S", "-c", FILL, str(size)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def _available() -> int:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
