"""A process's resident memory, as the real kernel reports its pages.

tests/e2e/vm has the tests that need several NUMA nodes.
"""

import errno
import json
import os
from array import array
from pathlib import Path
from random import Random

import pytest

from affinityd.linux import resident, syscalls
from affinityd.linux.resident import (
    ANONYMOUS,
    CUDA_MAPPED,
    ENOUGH,
    MAPPED,
    SHARED,
    ResidentMemory,
    mappings_in,
    resident_memory,
    room_on,
    wait_for_lock,
)
from tests.support.child_python import said
from tests.support.children import program, sleeping
from tests.support.paths import REPOSITORY

MIB = 1 << 20

#: Memory of each kind, and large mappings that are never touched, or that cannot be read.
HOLDER = """
import mmap, os, sys
NORESERVE = 0x4000
def filled(size, *arguments, **options):
    area = mmap.mmap(*arguments, **options)
    for place in range(0, size << 20, mmap.PAGESIZE):
        area[place] = 1
    return area
def file_of(path, size):
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, size << 20)
    return file
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
pool = os.memfd_create('pool')
os.ftruncate(pool, 15 << 20)
held = [
    filled(60, -1, 60 << 20, flags=private),
    filled(15, pool, 15 << 20),
    filled(15, -1, 15 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
    *(filled(30, file_of(path, 30), 30 << 20) for path in sys.argv[1:]),
    mmap.mmap(-1, 100 << 20, flags=private),
    mmap.mmap(-1, 1 << 40, flags=private | NORESERVE, prot=0),
]
print('ready', flush=True)
input()
"""

#: Shared memory in 960 mappings of 64 KiB.
FRAGMENTED = """
import ctypes, mmap
shared = mmap.mmap(-1, 960 << 17)
first = ctypes.addressof(ctypes.c_char.from_buffer(shared))
for start in range(0, len(shared), 1 << 17):
    shared[start:start + 65536] = bytes([1]) * 65536
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + start + 65536), 65536, 0) == 0
print('ready', flush=True)
input()
"""

#: A file of 3 GiB that is mapped and not read, beside 100 MiB of memory.
SPARSE = """
import mmap, os
pool = os.memfd_create('pool')
os.ftruncate(pool, 3 << 30)
held = mmap.mmap(pool, 3 << 30), bytearray(b'1' * (100 << 20))
print('ready', flush=True)
input()
"""


def test_pages_are_drawn_in_proportion_to_the_resident_size_of_each_kind() -> None:
    with program(HOLDER) as holder:
        memory = resident_memory(holder.pid, Random(36))  # noqa: S311 - the same pages each time
    sizes = {ANONYMOUS: 60, SHARED: 30, MAPPED: 3}
    drawn = sum(memory.drawn.values())
    assert drawn >= ENOUGH
    for kind, mib in sizes.items():
        assert mib <= memory.sizes[kind] / MIB < mib + 15
        assert memory.drawn[kind, 0] / drawn == pytest.approx(
            memory.sizes[kind] / memory.size, abs=0.05
        )
    assert memory.size == sum(memory.sizes.values())
    assert [*memory.nodes, *memory.locked] == [0]


def test_memory_is_located_beside_a_large_mapping_that_is_hardly_touched() -> None:
    with program(SPARSE) as holder:
        assert resident_memory(holder.pid).part_on({0}) == 1.0


def test_a_node_s_bytes_are_in_proportion_to_its_drawn_pages() -> None:
    memory = ResidentMemory({ANONYMOUS: 90}, {(ANONYMOUS, 8): 1, (ANONYMOUS, 0): 2})
    assert f"{memory.by_node}" == "{0: 60, 8: 30}"


def test_small_mappings_in_a_long_list_count() -> None:
    with program(FRAGMENTED) as holder:
        maps = Path(f"/proc/{holder.pid}/maps").read_bytes()
        memory = resident_memory(holder.pid, Random(36))  # noqa: S311 - the same pages each time
    assert len(maps) > 64 * 1024
    part = memory.drawn[SHARED, 0] / sum(memory.drawn.values())
    assert part == pytest.approx(memory.sizes[SHARED] / memory.size, abs=0.05)
    assert memory.sizes[SHARED] >= 60 * MIB


def test_files_on_a_tmpfs_are_shared_memory() -> None:
    path = Path(f"/dev/shm/affinityd-{os.getpid()}")  # noqa: S108 - the kind that is meant
    try:
        with program(HOLDER, os.fspath(path)) as holder:
            memory = resident_memory(holder.pid)
    finally:
        path.unlink(missing_ok=True)
    assert memory.sizes[SHARED] >= 60 * MIB
    assert memory.drawn[SHARED, 0] > 0.4 * sum(memory.drawn.values())


def test_locked_memory_is_reported() -> None:
    code = f"""
import ctypes, mmap
area = mmap.mmap(-1, {MIB})
libc = ctypes.CDLL(None)
assert libc.mlock(ctypes.byref(ctypes.c_char.from_buffer(area)), {MIB}) == 0
print('ready', flush=True)
input()
"""
    with program(code) as holder:
        assert resident_memory(holder.pid).locked == {"VmLck": MIB}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_only_the_sizes_of_another_user_s_memory_are_known() -> None:
    with sleeping() as child:
        sizes, drawn, by_node = json.loads(
            said(f"""
import json, os, sys
sys.path.insert(0, {os.fspath(REPOSITORY)!r})
from affinityd.linux.resident import resident_memory
os.setuid(65534)
memory = resident_memory({child.pid})
print(json.dumps([memory.sizes, list(memory.drawn), memory.by_node]))
""")
        )
    assert sizes[ANONYMOUS] > 0
    assert (drawn, by_node) == ([], None)


def test_shared_anonymous_memory_is_pinned_if_cuda_s_driver_is_mapped() -> None:
    """The maps are those of a program that pinned a tensor, with driver 580 of an H200."""
    driver = b"""\
200800000-204000000 rw-s 00000000 00:06 142                              /dev/nvidiactl
"""
    maps = b"""\
7f1afa000000-7f1bfa000000 rw-s 00000000 00:01 2052                       /dev/zero (deleted)
7f197bfff000-7f1a7c021000 rw-p 00000000 00:00 0
"""
    files = {b"00:00": ANONYMOUS, b"00:01": SHARED}
    buffers, rest = (0x7F1AFA000000, 0x7F1BFA000000), (0x7F197BFFF000, 0x7F1A7C021000)
    for seen, kind in ((maps, SHARED), (driver + maps, CUDA_MAPPED)):
        assert mappings_in(seen, files) == [(*buffers, kind), (*rest, ANONYMOUS)]


def test_waiting_for_the_lock_reads_the_entry_of_one_page() -> None:
    io = Path("/proc/thread-self/io")
    before = io.read_bytes()
    wait_for_lock(os.getpid())
    wait_for_lock(2**22 + 1)  # no such process: no error
    read_before, read = (int(text.split()[1]) for text in (before, io.read_bytes()))
    assert read - read_before == len(before) + 8


@pytest.mark.parametrize(("hidden", "is_known"), [(0.05, True), (0.4, False)])
def test_memory_that_the_kernel_partly_hides_has_an_unknown_place(
    monkeypatch: pytest.MonkeyPatch, hidden: float, is_known: bool
) -> None:
    """Linux 6.1 hides the nodes of pages that NUMA balancing watches."""
    nodes_of_pages = syscalls.nodes_of_pages
    least = 100 * hidden

    def some(pid: int, addresses: "array[int]") -> list[int]:
        nodes = enumerate(nodes_of_pages(pid, addresses))
        return [node if place * 37 % 100 >= least else -errno.ENOENT for place, node in nodes]

    monkeypatch.setattr(syscalls, "nodes_of_pages", some)
    with program(HOLDER) as holder:
        memory = resident_memory(holder.pid)
    assert memory.size > 90 * MIB
    assert bool(memory.nodes) is is_known


def test_an_ended_process_has_no_memory() -> None:
    memory = resident_memory(2**22 + 1)
    assert (memory.size, memory.drawn, memory.part_on({0})) == (0, {}, None)


def test_a_part_is_relative_to_memory_on_all_nodes_or_on_given_nodes() -> None:
    memory = ResidentMemory({}, {(ANONYMOUS, 0): 60, (ANONYMOUS, 1): 20, (SHARED, 8): 120})
    part = [memory.part_on({1}), memory.part_on({1}, of={0, 1}), memory.part_on({1}, of={1})]
    assert part == [0.1, 0.25, None]  # 20 pages are too few
    assert memory.nodes == {0, 1, 8}
    assert memory.pages({0, 8}, [SHARED]) == 120


def test_a_node_has_room_in_free_memory_and_in_files_not_used_lately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meminfo = "Node 0 MemFree: 1024 kB\nNode 0 Active(file): 7 kB\nNode 0 Inactive(file): 1 kB\n"
    files = {"/sys/devices/system/node/node0/meminfo": meminfo}
    monkeypatch.setattr(resident, "text", lambda path: files.get(path, ""))
    assert (room_on(0), room_on(1)) == (1025 * 1024, 0)
