"""What pinning takes, and what is said where some of it is missing: in real confinement."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from affinityd.enforce.hindrances import (
    INITIAL_USERS,
    NO_SYS_NICE,
    NOT_ALL_PIDS,
    NOT_ALL_USERS,
    REFUSED,
    lacking,
)
from affinityd.linux.processes import INITIAL_PIDS
from affinityd.linux.syscalls import SYS_NICE
from tests.processes.linux.test_memory_policy import SECCOMP
from tests.support.child_python import said

ASK = "from affinityd.enforce.hindrances import lacking; print(lacking())"
ALL_CAPABILITIES = "000001ffffffffff"

#: System calls by `uname -m`: sched_setaffinity, capset. Source: see affinityd.linux.syscalls.
NUMBERS = {"x86_64": (203, 126), "aarch64": (122, 91), "ppc64le": (222, 184)}
SET_AFFINITY, CAPSET = NUMBERS.get(os.uname().machine, (0, 0))

is_free = lacking() is None
needs_freedom = pytest.mark.skipif(not is_free, reason="this process may not pin others itself")
needs_numbers = pytest.mark.skipif(not SET_AFFINITY, reason="no system call's number is known")


def made(folder: Path, pids: str | None, users: str | None, status: str | None) -> str:
    """Make a /proc whose self is in these namespaces, and has this status; None: it is not told."""
    namespaces = folder / "self" / "ns"
    namespaces.mkdir(parents=True)
    for name, namespace in (("pid", pids), ("user", users)):
        if namespace is not None:
            (namespaces / name).symlink_to(namespace)
    if status is not None:
        (folder / "self" / "status").write_text(status)
    return os.fspath(folder)


@pytest.mark.parametrize(
    ("pids", "users", "status", "expected"),
    [
        pytest.param(
            *(INITIAL_PIDS, INITIAL_USERS, f"CapEff:\t{ALL_CAPABILITIES}\n", None), id="all of it"
        ),
        pytest.param(
            *(INITIAL_PIDS, INITIAL_USERS, "CapPrm:\t0\nCapEff:\t0000000000800000\nX:\n", None),
            id="just what it takes",
        ),
        pytest.param(
            *(None, None, f"CapEff:\t{ALL_CAPABILITIES}\n", None), id="a kernel without namespaces"
        ),
        pytest.param(
            *("pid:[4026532000]", INITIAL_USERS, f"CapEff:\t{ALL_CAPABILITIES}\n", NOT_ALL_PIDS),
            id="pids of its own",
        ),
        pytest.param(
            *(INITIAL_PIDS, "user:[4026532000]", f"CapEff:\t{ALL_CAPABILITIES}\n", NOT_ALL_USERS),
            id="users of its own",
        ),
        pytest.param(
            *(INITIAL_PIDS, INITIAL_USERS, f"CapPrm:\t{ALL_CAPABILITIES}\nCapEff:\t0\n"),
            NO_SYS_NICE,
            id="permitted is not effective",
        ),
        pytest.param(
            *(INITIAL_PIDS, INITIAL_USERS, "CapEff:\t000001ffff7fffff\n", NO_SYS_NICE),
            id="all but that one",
        ),
        pytest.param(INITIAL_PIDS, INITIAL_USERS, None, NO_SYS_NICE, id="nothing is told"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, pids: str | None, users: str | None, status: str | None, expected: str | None
) -> None:
    assert lacking(made(tmp_path, pids, users, status)) == expected


@needs_freedom
@pytest.mark.parametrize(
    ("within", "expected"),
    [
        ((), "None"),
        (("setpriv", "--bounding-set=-all,+sys_nice"), "None"),
        (("setpriv", "--bounding-set=-sys_nice"), NO_SYS_NICE),
        (("setpriv", "--reuid=65534"), NO_SYS_NICE),
        (("unshare", "--pid", "--fork", "--mount-proc"), NOT_ALL_PIDS),
        (("unshare", "--user", "--map-root-user"), NOT_ALL_USERS),
    ],
    ids=["root", "one capability", "all but that", "another user", "own pids", "own users"],
)
def test_a_process_that_is_really_confined_says_so(within: tuple[str, ...], expected: str) -> None:
    if within and subprocess.run([*within, "true"], check=False).returncode != 0:
        pytest.skip(f"{within[0]} is refused here")
    assert said(ASK, within=within) == expected


@needs_freedom
@needs_numbers
def test_where_seccomp_refuses_the_call_it_says_so() -> None:
    expected = REFUSED.format(error="EPERM: Operation not permitted")
    assert said(f"{SECCOMP}\nrefuse({SET_AFFINITY}, errno.EPERM)\n{ASK}") == expected


@needs_freedom
def test_to_ask_changes_no_mask_of_our_own() -> None:
    before = os.sched_getaffinity(0)
    assert lacking() is None
    assert os.sched_getaffinity(0) == before


@needs_freedom
def test_a_thread_that_lays_a_capability_down_lays_down_its_own_alone() -> None:
    code = """
import threading
from affinityd.linux.syscalls import SYS_NICE, lay_down
def effective(thread):
    return next(it for it in open(f"/proc/{thread}/status") if it.startswith("CapEff"))[7:].strip()
def work():
    lay_down(SYS_NICE)
    lay_down(SYS_NICE)
    seen.append(effective("thread-self"))
seen = [effective("self")]
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*seen, effective("self"))
"""
    before, of_thread, after = said(code).split()
    assert before == after
    assert int(before, 16) - int(of_thread, 16) == 1 << SYS_NICE


@needs_numbers
def test_where_seccomp_refuses_to_lay_one_down_it_is_an_error() -> None:
    code = """
from affinityd.linux.syscalls import SYS_NICE, lay_down
try:
    lay_down(SYS_NICE)
except OSError as error:
    print(error)
"""
    assert (
        said(f"{SECCOMP}\nrefuse({CAPSET}, errno.EPERM)\n{code}")
        == "[Errno 1] Operation not permitted"
    )
