"""`affinityd exec` with daemons that are dead, slow, or worse: the command runs, and in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.processes.linux.test_memory_policy import SECCOMP
from tests.support.daemons import PATIENCE, running
from tests.support.servers import answering, hanging, http, serving
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, exec_, tiny_tree


def test_a_daemon_that_is_gone_leaves_its_node_behind(tmp_path: Path) -> None:
    with running(tmp_path, "--root", str(tiny_tree(tmp_path / "machine"))) as daemon:
        daemon.stop()
    env = {"AFFINITYD_SOCKET": str(daemon.socket)}
    done = exec_("--gpus=1", "--", *LOOK, env=env)
    assert (done.cpus, done.stderr) == (FAR, "")
    daemon.socket.with_name("node.json").write_text("{")
    other = tiny_tree(tmp_path / "other", 1, 0)
    done = exec_("--gpus=1", "--", *LOOK, env={**env, "AFFINITYD_ROOT": str(other)})
    assert (done.cpus, done.stderr) == (NEAR, "")


ELSEWHERE = (
    b"AFFINITYD_CPULIST=4000\nAFFINITYD_LOCALITY=local\nAFFINITYD_ALLOWED=4000\n"
    b"AFFINITYD_MEMORY_NODES=0\nAFFINITYD_THREADS=1\n"
)

BAD = {
    "hangs": hanging,
    "closes": lambda _connection, _over: None,
    "answers garbage": answering(b"\x80garbage\r\n\r\n" * 9),
    "answers another job's CPUs": answering(http("200 OK", ELSEWHERE)),
    "answers an empty plan": answering(http("200 OK", b"")),
    "is in trouble": answering(http("500 Oh", b"no\n")),
    "answers ten megabytes": answering(http("200 OK", b"x" * 10**7)),
}


@pytest.mark.parametrize("kind", BAD)
def test_whatever_the_daemon_does_the_command_runs_in_time(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    machine = tiny_tree(tmp_path / "machine")
    env = {"AFFINITYD_SOCKET": str(path), "AFFINITYD_ROOT": str(machine), "AFFINITYD_TIMEOUT": "6"}
    with serving(path, BAD[kind]):
        start = time.monotonic()
        done = exec_("--gpus=1", "--", *LOOK, env=env)
        took = time.monotonic() - start
    assert done.cpus == FAR
    (said,) = done.lines
    assert said.endswith("; planned from sysfs")
    assert took < PATIENCE


def test_when_there_is_no_time_the_command_runs_unpinned(tmp_path: Path) -> None:
    path = tmp_path / "s"
    env = {"AFFINITYD_SOCKET": str(path), "AFFINITYD_ROOT": str(tiny_tree(tmp_path / "machine"))}
    with serving(path, hanging):
        done = exec_("--gpus=1", "--timeout=0.01", "--", *LOOK, env=env)
    assert done.cpus == BOTH
    (said,) = done.lines
    assert said == (
        f"affinityd exec: finding a place took too long; the daemon at {path} did not answer in "
        "time; the command runs unpinned"
    )


SILENT_KERNEL = (
    SECCOMP
    + """
refuse({"x86_64": 204, "aarch64": 123, "ppc64le": 223}[os.uname().machine], errno.EPERM)
os.execv(sys.executable, [sys.executable, "-m", "affinityd", "exec", *sys.argv[1:]])
"""
)


def test_what_nobody_thought_of_is_no_end_either(here: Mapping[str, str]) -> None:
    """Not even the mask can be read: sched_getaffinity(2) is forbidden."""
    env = {**os.environ, **here}
    for words, status, end in (
        (["--", "sh", "-c", "exit 7"], 7, "the command runs unpinned"),
        (["--fail-closed", "--", "true"], 125, "the command was not started"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", SILENT_KERNEL, *words],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == status
        assert done.stderr == (
            f"affinityd exec: PermissionError: [Errno 1] Operation not permitted; {end}\n"
        )
