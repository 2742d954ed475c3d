"""Memory on a chosen NUMA node, and how fast a thread reads it: libc's functions, by ctypes.

Bandwidth: memchr(3) of an absent byte reads the memory once, in order. Latency: tfind(3) descends a
tree that is a chain, so that each load needs the one before. Its nodes are written by hand:
`{key, left, right}`, as glibc (misc/tsearch.c, 64-bit) and musl (src/search/tsearch.h) have them.
The walk must return the last node's address, else it was none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from statistics import median

from affinityd.cpuset import CpuSet
from affinityd.linux.files import listed, text
from affinityd.linux.memory_policy import resident_bytes, set_policy

SECONDS = 0.02  #: that a figure of one round may take, unless one action takes longer


def median_seconds(
    action: Callable[[], object], before: Callable[[], object] | None = None
) -> float:
    """Return the median seconds of an action; `before` runs before each, and is not timed."""
    took: list[float] = []
    end = time.perf_counter() + SECONDS
    while not took or time.perf_counter() < end:
        if before is not None:
            before()
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return median(took)


MIB = 1024 * 1024
LEAST, MOST = 64 * MIB, 512 * MIB  #: of the part that is read in order
LINKS, STRIDE, LINE = 4096, 4096, 64  #: a node of the chain in each page of 4 KiB, in any line
CHAIN = LINKS * STRIDE
THERE = 0.9  #: the part of the memory that must be on the chosen node
CACHES = "/sys/devices/system/cpu/cpu{cpu}/cache"

#: Keys of the chain: the sought one is the last node's, and greater than the others'.
SOUGHT, OTHER = ctypes.create_string_buffer(b"b"), ctypes.create_string_buffer(b"a")


#: The C library that Python itself uses.
LIBC = ctypes.CDLL(None)


class NotMeasuredError(Exception):
    """A figure cannot be measured; the message is one line."""


class Buffer:
    """Filled memory: first the chain's part, then the one that is read in order, and evicts it.

    It is valid only while the map is open.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.swept = self.address + CHAIN, len(memory) - CHAIN  #: address and size
        ctypes.memset(self.address, 1, len(memory))


@contextmanager
def memory_on(node: int, cpus: CpuSet, cache: int, *, is_one: bool) -> Iterator[Buffer]:
    """Yield memory on a node, at least twice a cache's size; the node's CPUs, if any, fill it.

    `preferred` rather than `bind`: where the node has no room, the kernel takes other memory and
    ends no process. `is_one`: there is no other node. Raises NotMeasuredError if it is elsewhere.
    """
    size = CHAIN + max(LEAST, min(2 * cache, MOST))
    here = os.sched_getaffinity(0)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError, AttributeError):  # a kernel, or a Python, without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        before = {} if is_one else _resident()
        with suppress(OSError):  # a cpuset without them; the policy alone may do
            os.sched_setaffinity(0, cpus or here)
        refusals = set_policy("preferred", frozenset({node})).refusals  # the kernel may do without
        try:
            buffer = Buffer(memory)
        finally:
            os.sched_setaffinity(0, here)
        there = size if is_one else _resident().get(node, 0) - before.get(node, 0)
        if there < THERE * size:
            why = refusals[0] if refusals else "it has too little free memory"
            raise NotMeasuredError(f"not all of {size // MIB} MiB came to node {node}: {why}")
        yield buffer


def read_rate(buffer: Buffer) -> float:
    """Return bytes per second that one thread reads in order."""
    address, size = buffer.swept
    return size / median_seconds(lambda: _sweep(address, size))


def latency(buffer: Buffer) -> float:
    """Return seconds for one load of memory that is in no cache. Raises NotMeasuredError."""
    find, compare = LIBC.tfind, ctypes.cast(LIBC.strcmp, ctypes.c_void_p)
    find.restype = ctypes.c_void_p
    first, last = _write_chain(buffer.address)
    root = ctypes.c_void_p(first)
    if find(SOUGHT, ctypes.byref(root), compare) != last:
        raise NotMeasuredError("this libc's tfind(3) has other nodes than glibc's and musl's")
    address, size = buffer.swept
    walk = median_seconds(
        lambda: find(SOUGHT, ctypes.byref(root), compare), before=lambda: _sweep(address, size)
    )
    return walk / LINKS


def last_level_cache(cpu: int) -> int:
    """Return the bytes of a CPU's largest cache: cache/index*/size; 0: unknown."""
    folder = CACHES.format(cpu=cpu)
    sizes = (text(f"{folder}/{name}/size") for name in listed(folder) if name.startswith("index"))
    return max((int(size[:-1]) * 1024 for size in sizes if size[:-1].isdigit()), default=0)


def _write_chain(start: int) -> tuple[int, int]:
    chosen = random.Random(LINKS)  # noqa: S311 - the same order each time
    pages = chosen.sample(range(LINKS), LINKS)
    nodes = [start + page * STRIDE + chosen.randrange(0, STRIDE, LINE) for page in pages]
    sought, other = ctypes.addressof(SOUGHT), ctypes.addressof(OTHER)
    for node, after in zip(nodes, [*nodes[1:], 0], strict=True):
        link = struct.pack("=QQQ", other if after else sought, 0, after)
        ctypes.memmove(node, link, len(link))
    return nodes[0], nodes[-1]


def _sweep(address: int, size: int) -> None:
    LIBC.memchr(ctypes.c_void_p(address), 0, ctypes.c_size_t(size))


def _resident() -> dict[int, int]:
    try:
        return resident_bytes(os.getpid())
    except OSError as error:
        raise NotMeasuredError(f"the place of memory cannot be read: {error.strerror}") from None
