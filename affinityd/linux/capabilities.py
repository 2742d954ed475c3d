"""What a thread may do beyond its user's rights, capabilities(7)."""

from __future__ import annotations

import errno
import os
import struct

from affinityd.linux.files import lines
from affinityd.linux.processes import PROC

SYS_NICE = 23  #: kernel include/uapi/linux/capability.h

#: What capget(2) takes: its version and a thread (0: the calling one); and the effective, permitted
#: and inheritable capabilities, the lower 32 first.
HEADER, VERSION_3 = struct.Struct("=Ii"), 0x20080522
SETS = struct.Struct("=6I")


def has(capability: int, proc: str = PROC) -> bool:
    """Return whether this process has a capability; not, where its status cannot be read."""
    for line in lines(f"{proc}/self/status"):
        name, _, value = line.partition(b":")
        if name == b"CapEff":
            return bool(int(value, 16) >> capability & 1)
    return False


def lay_down(capability: int) -> None:
    """Take one of the lower 32 capabilities from the calling thread alone.

    It stays permitted, which is what counts where one process asks to look into another, ptrace(2).
    Raises OSError: EPERM (seccomp), ENOSYS (a Python without ctypes).
    """
    try:
        import ctypes  # noqa: PLC0415  whoever lays none down does not wait for it
    except Exception as error:  # noqa: BLE001 - no libffi, or a host that forbids what it does
        raise OSError(errno.ENOSYS, str(error)) from None
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(HEADER.pack(VERSION_3, 0))
    sets = ctypes.create_string_buffer(SETS.size)

    def call(name: str) -> None:
        if getattr(libc, name)(header, sets) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    call("capget")
    effective, *others = SETS.unpack_from(sets)
    sets.raw = SETS.pack(effective & ~(1 << capability), *others)
    call("capset")
