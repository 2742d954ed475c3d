"""What is known of a process that a plan is for: of this one, of others, and in a container."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.client.process_context import ProcessContext
from affinityd.linux.processes import Stat, stat_of
from tests.support.children import program

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root unmounts and changes its root")

#: Narrows its mask, and prints that, what it knows of it, and whether its cpuset is as it was.
NARROW = (
    "import os; mine = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(mine)});"
    "from affinityd.client.process_context import ProcessContext; own = ProcessContext.of_self();"
    "print(own.cpuset >= mine, own.mask == os.sched_getaffinity(0), len(own.mask))"
)
HIDDEN = ("unshare", "--mount", "sh", "-c", 'umount -l /sys/fs/cgroup && exec "$@"', "sh")


@pytest.mark.parametrize("before", [(), pytest.param(HIDDEN, marks=as_root, id="without cgroups")])
def test_this_process_has_its_mask_and_its_cpuset(
    before: tuple[str, ...],
) -> None:
    command = [*before, sys.executable, "-c", NARROW]
    assert subprocess.check_output(command, text=True).split() == ["True", "True", "1"]


def stat(pid: int) -> Stat:
    found = stat_of(pid)
    assert found is not None
    return found


def test_this_process_by_its_pid_has_its_present_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment as it is now, and not as the process was started with it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert ProcessContext.of(stat(os.getpid())).visible == "3"


IN_A_CONTAINER = """
import os, sys
os.chroot(sys.argv[1])
print("ready", flush=True)
input()
"""


@as_root
def test_another_process_has_its_own_environment_dev_and_parent(
    tmp_path: Path,
) -> None:
    """A container has a /dev of its own."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia2").touch()
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    with program(IN_A_CONTAINER, f"{tmp_path}", env=environ) as child:
        found = ProcessContext.of(stat(child.pid))
        assert (found.pid, {*found.mask}) == (child.pid, os.sched_getaffinity(0))
    assert found.environ == environ
    assert (found.parent_environ or {})["PATH"] == os.environ["PATH"]
    query = found.query({"mode": "even"}, frozenset({4}))
    assert {("visible", "1"), ("granted", "minor:2"), ("mode", "even")} <= {*query}


def test_a_process_with_an_unreadable_environment_has_no_visible_gpus() -> None:
    found = ProcessContext.of(replace(stat(os.getpid()), number=2**22 + 1, parent=2**22 + 1))
    assert (found.environ, found.visible, found.devices) == (None, None, None)
