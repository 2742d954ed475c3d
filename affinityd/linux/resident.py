"""The NUMA nodes of a process's memory, by a sample of its pages: as fast for 500 GB as for 1.

move_pages(2) tells the node of any page, and the process never waits for it; for a reader of
numa_maps the kernel walks all pages under a lock. Both need ptrace read access: the process's own
user, or CAP_SYS_PTRACE. Sources: proc_pid_maps(5), proc_pid_status(5), kernel mm/migrate.c
`do_pages_stat`.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from mmap import PAGESIZE
from random import Random

from affinityd.linux import syscalls
from affinityd.linux.files import content, read, text

ANONYMOUS = "anonymous"
SHARED = "shared"
HUGE = "huge pages"
MAPPED = "files"
CUDA_MAPPED = "CUDA buffers"
MEMORY_KINDS = (ANONYMOUS, SHARED, HUGE, MAPPED, CUDA_MAPPED)

#: Lines of /proc/PID/status: the resident size of each kind, and the memory that never moves or
#: swaps. The kernel counts CUDA buffers as shared.
STATUS_SIZES = {
    ANONYMOUS: "RssAnon",
    SHARED: "RssShmem",
    HUGE: "HugetlbPages",
    MAPPED: "RssFile",
}
LOCKED = ("VmPin", "VmLck")

#: A readable mapping: addresses, device and name. Mappings of the kernel, such as [vdso], have no
#: memory.
MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r\S+ [0-9a-f]+ (\w+:\w+) \d+(?! *\[v) *(.*)$", re.MULTILINE
)
NO_DEVICE = b"00:00"  #: of anonymous memory
DEVICE_MAPPINGS = (
    b"/dev/nvidia",
    b"/dev/infiniband/",
)  #: mapped device files are not the process's memory
#: The name of shared anonymous memory. If NVIDIA's driver is mapped too, it is memory of
#: cudaHostAlloc and PyTorch's pin_memory: pinned, and not in VmPin (seen with driver 580).
ZERO = b"/dev/zero (deleted)"
#: File systems that keep files in memory, and how `maps` names files of those without a mount.
IN_MEMORY = {b"tmpfs": SHARED, b"hugetlbfs": HUGE}
UNMOUNTED = (b"/memfd:", b"/SYSV", b"/anon_hugepage")

ALL_MAPS = 64 * 1024 * 1024  #: bytes of `maps`, for 65530 mappings (kernel's default)
DRAWN = 1024  #: pages drawn in a round
ENOUGH = 800  #: how many drawn pages must be present
ROUNDS = 4
LEAST_PAGES = 64  #: this many pages tell a proportion to within an eighth, in 95 % of samples
#: The proportion of resident memory whose node the sample must tell. Linux 6.1 to 6.5 hide the node
#: of pages that NUMA balancing watches, most often far ones (mm/gup.c `gup_can_follow_protnone`).
LEAST_SEEN = 7 / 8


@dataclass(frozen=True)
class ResidentMemory:
    """The resident memory of a process."""

    sizes: Mapping[str, int]  #: kind → bytes
    #: (Kind, node) → drawn pages that are present; empty if the kernel does not tell
    drawn: Mapping[tuple[str, int], int] = field(default_factory=dict)
    locked: Mapping[str, int] = field(default_factory=dict)  #: bytes, by kind in LOCKED

    @property
    def size(self) -> int:
        """All resident memory, in bytes."""
        return sum(self.sizes.values())

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that hold resident memory."""
        return frozenset(node for _, node in self.drawn)

    @property
    def by_node(self) -> Mapping[int, int] | None:
        """Bytes by node, as far as the sample tells; None: not known."""
        drawn = sum(self.drawn.values())
        sizes = {}
        for node in sorted(self.nodes):
            sizes[node] = round(self.size * self.pages([node]) / drawn)
        return sizes or None

    def pages(self, nodes: Collection[int], kinds: Collection[str] = MEMORY_KINDS) -> int:
        """Return how many of the drawn pages of these kinds are on these nodes."""
        total = 0
        for (kind, node), pages in self.drawn.items():
            if node in nodes and kind in kinds:
                total += pages
        return total

    def part_on(self, nodes: Collection[int], of: Collection[int] | None = None) -> float | None:
        """Return which part of the pages on `of` (None: all) is on `nodes`; None: too few drawn."""
        drawn = self.pages(self.nodes if of is None else of)
        return self.pages(nodes) / drawn if drawn >= LEAST_PAGES else None


def resident_memory(pid: int, chosen: Random | None = None) -> ResidentMemory:
    """Return the resident memory of a process, by a sample of pages that `chosen` draws.

    Only the sizes are known without ptrace read access, or if the kernel hides the nodes of much of
    the memory. The sizes of an ended process are 0.
    """
    memory = resident_sizes(pid)
    try:
        wait_for_lock(pid)
        mappings = mappings_in(read(f"/proc/{pid}/maps", ALL_MAPS), _files_in_memory(pid))
        drawn, seen = _draw(pid, mappings, chosen or Random())  # noqa: S311 - no secret
    except OSError:
        return memory
    return replace(memory, drawn=drawn) if seen >= LEAST_SEEN * memory.size else memory


def resident_sizes(pid: int) -> ResidentMemory:
    """Return only the sizes of a process's memory, without waiting for a lock."""
    status = {}
    for line in (content(f"/proc/{pid}/status") or b"").split(b"\n"):
        words = line.split()
        if words[2:] == [b"kB"]:
            status[words[0].decode()] = int(words[1]) * 1024
    sizes = {kind: status.get(f"{name}:", 0) for kind, name in STATUS_SIZES.items()}
    locked = {name: size for name in LOCKED if (size := status.get(f"{name}:"))}
    return ResidentMemory(sizes, locked=locked)


#: The first address of a mapping, the first address after it, and the mapping's kind.
MemoryMapping = tuple[int, int, str]


def mappings_in(maps: bytes, files: Mapping[bytes, str]) -> list[MemoryMapping]:
    """Return the readable mappings in a file `maps`; `files`: kind of memory by device."""
    mappings = []
    zero = CUDA_MAPPED if b" /dev/nvidia" in maps else SHARED
    for start, end, device, name in MAPPING.findall(maps):
        if name.startswith(DEVICE_MAPPINGS):
            continue
        kind = zero if name == ZERO else files.get(device)
        if kind is None:  # the kernel has internal file systems for huge pages, one for each size
            kind = HUGE if name.startswith(UNMOUNTED) else MAPPED
        mappings.append((int(start, 16), int(end, 16), kind))
    return mappings


def wait_for_lock(pid: int) -> None:
    """Wait for the lock of a process's memory, in a way that a signal can end.

    A wait in move_pages(2) cannot be ended: a killed reader would stay as long as the process has
    the lock. Source: kernel fs/proc/task_mmu.c `pagemap_read`.
    """
    with suppress(OSError):  # a kernel without CONFIG_PROC_PAGE_MONITOR, or no access
        read(f"/proc/{pid}/pagemap", 8)


def _files_in_memory(pid: int) -> Mapping[bytes, str]:
    """Return the kinds of memory without a file, by the device that `maps` shows for them."""
    kinds = {NO_DEVICE: ANONYMOUS, _memfd_device(): SHARED}
    for line in (content(f"/proc/{pid}/mountinfo") or b"").split(b"\n"):
        here, _, there = line.partition(b" - ")
        kind = IN_MEMORY.get(there.partition(b" ")[0])
        if kind is not None:
            major, _, minor = here.split(b" ")[2].partition(b":")
            kinds[b"%02x:%02x" % (int(major), int(minor))] = kind
    return kinds


@cache
def _memfd_device() -> bytes:
    """Return the device of the tmpfs of memfd_create(2), shmat(2) and shared anonymous memory."""
    file = os.memfd_create("affinityd")
    device = os.fstat(file).st_dev
    os.close(file)
    return b"%02x:%02x" % (os.major(device), os.minor(device))


def _draw(
    pid: int, mappings: Sequence[MemoryMapping], chosen: Random
) -> tuple[Mapping[tuple[str, int], int], float]:
    """Return how many drawn pages are present, by kind and node, and the bytes of all such pages.

    Raises OSError.

    Each round divides all mappings into equal parts and draws a page of each. Pages that were never
    touched, or are swapped, have no node: another round makes up for them.
    """
    drawn: Counter[tuple[str, int]] = Counter()
    total = sum(end - start for start, end, _ in mappings) // PAGESIZE
    parts = min(DRAWN, total)
    asked = 0
    for _ in range(ROUNDS if total else 0):
        addresses = array("Q")
        kinds = []
        rest = iter(mappings)
        last = mappings[-1]
        first = 0
        behind = 0
        for part in range(parts):
            page = int((part + chosen.random()) * total / parts)
            while page >= behind:
                start, end, kind = next(rest, last)  # a float may be rounded up
                first = behind
                behind += (end - start) // PAGESIZE
            addresses.append(start + (page - first) * PAGESIZE)
            kinds.append(kind)
        places = zip(kinds, syscalls.nodes_of_pages(pid, addresses), strict=True)
        drawn.update(place for place in places if place[1] >= 0)
        asked += parts
        if drawn.total() >= ENOUGH:
            break
    most = drawn.total() + 2 * drawn.total() ** 0.5  # hardly any other sample has more
    return drawn, most * total * PAGESIZE / asked if asked else 0.0


def room_on(node: int) -> int:
    """Return the bytes that a node has free, or can free at once: files not used lately."""
    path = f"/sys/devices/system/node/node{node}/meminfo"
    room = 0
    for line in text(path).splitlines():  # Node 0 MemFree: 1024 kB
        match line.split():
            case [_, _, "MemFree:" | "Inactive(file):", size, *_]:
                room += int(size) * 1024
    return room
