"""A process with memory of one kind on chosen NUMA nodes; it ends when its stdin does.

holding.py KIND NODE=MIB[,NODE=MIB]...
"""

import ctypes
import mmap
import os
import sys
import time

HUGE_PAGE, PIECE = 2 << 20, 64 << 10
WATCHED = 8.0  #: seconds of CPU time
#: include/uapi/asm-generic/mman-common.h, linux/mempolicy.h, and the number of mbind on x86_64.
MAP_HUGETLB, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_PAGEOUT = 0x40000, 14, 15, 21
MPOL_DEFAULT, MPOL_BIND, MPOL_INTERLEAVE, MBIND = 0, 2, 3, 237
IPC_PRIVATE, IPC_RMID = 0, 0
IO_URING_SETUP, IO_URING_REGISTER, REGISTER_BUFFERS = 425, 427, 0

POOL = "/dev/shm/pool"  # noqa: S108 - the guest is ours alone

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = LIBC.shmat.restype = ctypes.c_void_p

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def checked(result: int | None) -> int:
    if result in (None, -1, (1 << 64) - 1):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result or 0)


def mapped(size: int, flags: int, file: int = -1) -> int:
    """Return the address of new memory, at a huge page's boundary."""
    room = size if flags & MAP_HUGETLB else size + HUGE_PAGE
    words = (None, ctypes.c_size_t(room), 3, flags, file, ctypes.c_long(0))
    return -(-checked(LIBC.mmap(*words)) // HUGE_PAGE) * HUGE_PAGE


def of_file(file: int, size: int) -> int:
    os.ftruncate(file, size + HUGE_PAGE)
    return mapped(size, mmap.MAP_SHARED, file)


def of_sysv(size: int) -> int:
    segment = checked(LIBC.shmget(IPC_PRIVATE, ctypes.c_size_t(size), 0o600))
    address = checked(LIBC.shmat(segment, None, 0))
    checked(LIBC.shmctl(segment, IPC_RMID, None))
    return address


def advised(address: int, size: int, advice: int) -> int:
    checked(LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice))
    return address


def taken(kind: str, size: int) -> int:
    if kind == "hugetlb":
        return mapped(size, PRIVATE | MAP_HUGETLB)
    if kind == "memfd":
        return of_file(os.memfd_create("pool"), size)
    if kind == "shm" and os.path.exists(POOL):  # noqa: PTH110 - pathlib is slow to import here
        os.unlink(POOL)  # noqa: PTH108
    if kind == "shm":
        return of_file(os.open(POOL, os.O_RDWR | os.O_CREAT), size)
    if kind == "sysv":
        return of_sysv(size)
    huge = MADV_HUGEPAGE if kind == "thp" else MADV_NOHUGEPAGE
    return advised(mapped(size, PRIVATE), size, huge)


def bind(address: int, size: int, mode: int, nodes: list[int]) -> None:
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    place = (ctypes.c_void_p(address), ctypes.c_ulong(size))
    checked(LIBC.syscall(MBIND, *place, mode, ctypes.byref(mask), ctypes.c_ulong(64), 0))


def pinned(address: int, size: int) -> None:
    """Have the kernel pin memory, as a buffer of io_uring."""
    ring = checked(LIBC.syscall(IO_URING_SETUP, 4, ctypes.create_string_buffer(120)))
    buffer = (ctypes.c_size_t * 2)(address, size)
    checked(LIBC.syscall(IO_URING_REGISTER, ring, REGISTER_BUFFERS, buffer, 1))


def main() -> None:
    kind, listed = sys.argv[1:3]
    words = (part.partition("=") for part in listed.split(","))
    parts = [(int(node), int(mib) << 20) for node, _, mib in words]
    size = sum(part for _, part in parts)
    address = start = taken(kind, size)
    if kind == "interleaved":
        bind(start, size, MPOL_INTERLEAVE, [node for node, _ in parts])
    else:
        for node, part in parts:
            bind(address, part, MPOL_BIND, [node])
            address += part
    ctypes.memset(start, 1, size)
    bind(start, size, MPOL_DEFAULT, [])
    if kind == "watched":  # the kernel looks at a task from its first second on
        while time.process_time() < WATCHED:
            ctypes.memset(start, 1, size)
    if kind == "fragmented":  # every second piece of 64 KiB has another protection: a mapping each
        for place in range(start, start + size, 2 * PIECE):
            checked(LIBC.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(PIECE), mmap.PROT_READ))
    if kind == "mlocked":
        checked(LIBC.mlock(ctypes.c_void_p(start), ctypes.c_size_t(size)))
    if kind == "pinned":
        pinned(start, size)
    if kind == "swapped":
        advised(start, size // 2, MADV_PAGEOUT)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
