"""What pinning takes, and what is said where some of it is missing: in real confinement."""

from __future__ import annotations

import subprocess

import pytest

from affinityd.enforce.enforcer import (
    CALL_REFUSED,
    NO_SYS_NICE,
    NOT_ALL_PIDS,
    NOT_ALL_USERS,
    lacking,
)
from tests.support.child_python import SECCOMP, said

EPERM = "EPERM: Operation not permitted"
ASK = "from affinityd.enforce.enforcer import lacking; print(lacking())"

needs_freedom = pytest.mark.skipif(
    lacking() is not None, reason="this process may not pin others itself"
)


@needs_freedom
@pytest.mark.parametrize(
    ("before", "within", "expected"),
    [
        ("", (), "None"),
        ("", ("setpriv", "--bounding-set=-all,+sys_nice"), "None"),
        ("", ("setpriv", "--bounding-set=-sys_nice"), NO_SYS_NICE),
        ("", ("setpriv", "--reuid=65534"), NO_SYS_NICE),
        ("", ("unshare", "--pid", "--fork", "--mount-proc"), NOT_ALL_PIDS),
        ("", ("unshare", "--user", "--map-root-user"), NOT_ALL_USERS),
        (f'{SECCOMP}\nrefuse("sched_setaffinity")', (), CALL_REFUSED.format(error=EPERM)),
    ],
    ids=["root", "one capability", "all but that", "user", "own pids", "own users", "filter"],
)
def test_a_confined_process_lacks_the_privileges(
    before: str, within: tuple[str, ...], expected: str
) -> None:
    if within and subprocess.run([*within, "true"], check=False).returncode != 0:
        pytest.skip(f"{within[0]} is refused here")
    assert said(f"{before}\n{ASK}", within=within) == expected
