"""Runs Python code, for tests, in a child that lacks some privilege."""

import subprocess
import sys

from tests.support.daemons import PATIENCE
from tests.support.paths import REPOSITORY

#: Code for such a child: `refuse` makes a named system call fail, by seccomp(2). SET_GET has the
#: numbers of sched_setaffinity and sched_getaffinity.
SECCOMP = """
import ctypes, errno, os, struct, sys
from affinityd.linux.syscalls import SYSCALL_NUMBERS

SET_GET = {"x86_64": (203, 204), "aarch64": (122, 123), "ppc64le": (222, 223)}
LOAD, JUMP_IF_EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x50000, 0x7FFF0000
NO_NEW_PRIVS, SECCOMP_ON, FILTER = 38, 22, 2

def refuse(call, error=errno.EPERM):
    machine = os.uname().machine
    affinity = zip(("sched_setaffinity", "sched_getaffinity"), SET_GET[machine])
    number = {**SYSCALL_NUMBERS[machine], **dict(affinity)}[call]
    steps = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, number)]
    steps += [(RETURN, 0, 0, ERRNO | error), (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *it) for it in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    assert prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert prctl(SECCOMP_ON, FILTER, program, 0, 0) == 0
"""


def said(
    code: str, *arguments: str, within: tuple[str, ...] = (), flags: tuple[str, ...] = ()
) -> str:
    """Run Python code, by the command `within` if it is given; return what the code prints."""
    done = subprocess.run(
        [*within, sys.executable, *flags, "-c", code, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")
