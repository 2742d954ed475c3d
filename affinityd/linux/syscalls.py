"""System calls that Python has no function for: memory policies, pages' nodes, parent-death signal.

Modes and nodes are as the kernel takes them. A failure is an OSError, also on machines and Pythons
that cannot make the call at all.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from array import array

#: The number of each call, by `uname -m`. Source: kernel include/uapi/asm-generic/unistd.h and the
#: syscall tables of arch/x86 and arch/powerpc. All of these machines are little-endian.
SYSCALL_NUMBERS = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279, "prctl": 157},
    "aarch64": {"set_mempolicy": 237, "get_mempolicy": 236, "move_pages": 239, "prctl": 167},
    "ppc64le": {"set_mempolicy": 261, "get_mempolicy": 260, "move_pages": 301, "prctl": 171},
}

MAX_NODES = 1024  #: the most of any kernel: CONFIG_NODES_SHIFT is at most 10
MASK_BYTES = MAX_NODES // 8
MASK_BITS = MAX_NODES + 1  #: the kernel reads one bit less than maxnode
MODE_FLAGS = 0b111 << 13  #: flags: MPOL_F_STATIC_NODES, _RELATIVE_, _NUMA_BALANCING
PREFERRED_MANY = 5  #: mode number, since Linux 5.15
NO_SUCH_NODE = "nonexistent, without memory, or outside Mems_allowed"

NO_PAGE = -9999  #: a page's status before the kernel has set one; no errno

PR_SET_PDEATHSIG = 1  #: prctl(2)


def set_mempolicy(mode: int, nodes: frozenset[int]) -> None:
    """Set the calling thread's policy: an MPOL_* mode; without nodes there is no mask.

    The kernel silently leaves out nodes without memory and those outside Mems_allowed. Raises
    OSError: EPERM (seccomp), EINVAL (no node is left, or the kernel has no such mode).
    """
    if not nodes.issubset(range(MAX_NODES)):
        raise OSError(errno.EINVAL, NO_SUCH_NODE)
    mask = bytearray(sum(1 << node for node in nodes).to_bytes(MASK_BYTES, "little"))
    try:
        _call("set_mempolicy", mode, mask if nodes else 0, MASK_BITS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        or_old = "; or the kernel is too old for it" if mode == PREFERRED_MANY else ""
        raise OSError(errno.EINVAL, f"{NO_SUCH_NODE}{or_old}") from None


def get_mempolicy() -> tuple[int, frozenset[int]]:
    """Return the calling thread's MPOL_* mode, without flags, and its nodes. Raises OSError."""
    mode = bytearray(4)
    mask = bytearray(MASK_BYTES)
    _call("get_mempolicy", mode, mask, MASK_BITS, 0, 0)
    bits = int.from_bytes(mask, "little")
    nodes = frozenset(node for node in range(MAX_NODES) if bits >> node & 1)
    return int.from_bytes(mode, "little") & ~MODE_FLAGS, nodes


def nodes_of_pages(pid: int, addresses: array[int]) -> memoryview[int]:
    """Return the node of each page by move_pages(2), negative for no page. Raises OSError."""
    status = bytearray(array("i", [NO_PAGE]) * len(addresses))
    _call("move_pages", pid, len(addresses), bytearray(addresses), 0, status, 0)
    return memoryview(status).cast("i")


def end_with(parent: int) -> None:
    """End this process when its parent ends, even while a call hangs. Raises OSError."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before this call
        os._exit(0)


def _call(name: str, *arguments: int | bytearray) -> int:
    """Make a system call, which may fill the arrays among its arguments. Raises OSError."""
    machine = os.uname().machine
    is_32_bit = sys.maxsize < 1 << 32  # 32-bit system calls have other numbers
    if machine not in SYSCALL_NUMBERS or is_32_bit:
        known = f"is known on {machine}, only on 64-bit {', '.join(SYSCALL_NUMBERS)}"
        raise OSError(errno.ENOSYS, f"no number of {name} {known}")
    try:
        import ctypes  # noqa: PLC0415 - Python without libffi lacks it
    except Exception as error:  # noqa: BLE001 - or a host that forbids it
        raise OSError(errno.ENOSYS, str(error)) from None
    words = [
        ctypes.c_ulong(word)
        if isinstance(word, int)
        else (ctypes.c_char * len(word)).from_buffer(word)
        for word in arguments
    ]
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    result: int = syscall(ctypes.c_long(SYSCALL_NUMBERS[machine][name]), *words)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
