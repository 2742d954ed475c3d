"""What pinning takes, and what is said where some of it is missing: in real confinement."""

from __future__ import annotations

import os
import subprocess

import pytest

from affinityd.enforce.hindrances import (
    NO_SYS_NICE,
    NOT_ALL_PIDS,
    NOT_ALL_USERS,
    REFUSED,
    lacking,
)
from affinityd.linux.syscalls import SYS_NICE
from tests.support.child_python import SECCOMP, said

ASK = "from affinityd.enforce.hindrances import lacking; print(lacking())"

needs_freedom = pytest.mark.skipif(
    lacking() is not None, reason="this process may not pin others itself"
)


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
def test_where_seccomp_refuses_the_call_it_says_so() -> None:
    expected = REFUSED.format(error="EPERM: Operation not permitted")
    assert said(f'{SECCOMP}\nrefuse("sched_setaffinity")\n{ASK}') == expected


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
