"""Memory on a chosen NUMA node, and how fast a thread reads it: memchr(3) of an absent byte."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from statistics import median
from typing import NamedTuple

from affinityd.linux.files import listed, text
from affinityd.linux.memory_policy import set_policy
from affinityd.linux.syscalls import move_pages
from affinityd.topology.model import Topology

SECONDS = 0.02  #: that a figure of one round may take, unless one action takes longer


def median_seconds(action: Callable[[], object]) -> float:
    """Return the median seconds of an action."""
    took: list[float] = []
    end = time.perf_counter() + SECONDS
    while not took or time.perf_counter() < end:
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return median(took)


MIB = 1024 * 1024
LEAST, MOST = 64 * MIB, 512 * MIB
THERE = 0.9  #: the part of the memory that must be on the chosen node
CACHES = "/sys/devices/system/cpu/cpu{cpu}/cache"


class NotMeasuredError(Exception):
    """A figure cannot be measured; the message is one line."""


class Buffer(NamedTuple):
    """Filled memory, valid only while its map is open."""

    address: ctypes.c_void_p
    size: ctypes.c_size_t


@contextmanager
def memory_on(topology: Topology, node: int, reader: int) -> Iterator[Buffer]:
    """Yield memory on a node, at least twice the largest cache of the node that reads it.

    The node's CPUs, if any, fill it. `preferred` rather than `bind`: where the node has no room,
    the kernel takes other memory and ends no process. Raises NotMeasuredError if it is elsewhere.
    """
    size = max(LEAST, min(2 * last_level_cache(min(topology.cpus_of_node(reader))), MOST))
    is_one = len(topology.nodes_with_memory) == 1  # then the place of memory is not checked
    here = os.sched_getaffinity(0)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError, AttributeError):  # a kernel, or a Python, without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        with suppress(OSError):  # a cpuset without them; the policy alone may do
            os.sched_setaffinity(0, topology.cpus_of_node(node) or here)
        refusals = set_policy("preferred", frozenset({node})).refusals  # the kernel may do without
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.memset(address, 1, size)
        os.sched_setaffinity(0, here)
        if not is_one and _part_on(node, address, size) < THERE:
            why = refusals[0] if refusals else "it has too little free memory"
            raise NotMeasuredError(f"not all of {size // MIB} MiB came to node {node}: {why}")
        yield Buffer(ctypes.c_void_p(address), ctypes.c_size_t(size))


def read_rate(buffer: Buffer) -> float:
    """Return bytes per second that one thread reads in order."""
    read = ctypes.CDLL(None).memchr  # of the C library that Python itself uses
    return buffer.size.value / median_seconds(lambda: read(buffer.address, 0, buffer.size))


def last_level_cache(cpu: int) -> int:
    """Return the bytes of a CPU's largest cache: cache/index*/size; 0: unknown."""
    folder = CACHES.format(cpu=cpu)
    sizes = (text(f"{folder}/{name}/size") for name in listed(folder) if name.startswith("index"))
    return max((int(size[:-1]) * 1024 for size in sizes if size[:-1].isdigit()), default=0)


def _part_on(node: int, address: int, size: int) -> float:
    """Return the part of memory that is on a node, by every sixteenth page."""
    pages = array("Q", range(address, address + size, 16 * mmap.PAGESIZE))
    try:
        _, nodes = move_pages(os.getpid(), pages)
    except OSError as error:
        raise NotMeasuredError(f"the place of memory cannot be read: {error.strerror}") from None
    return nodes.tolist().count(node) / len(nodes)
