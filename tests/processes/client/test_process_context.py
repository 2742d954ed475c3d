"""What is known of a process that a plan is for: of this one, of others, and in a tree."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.client.process_context import ProcessContext
from affinityd.linux.processes import stat_of
from tests.support.children import program, sleeping
from tests.support.paths import REPOSITORY


def test_this_process_knows_its_mask_and_what_its_cgroup_allows() -> None:
    mine = os.sched_getaffinity(0)
    code = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])});"
        "from affinityd.client.process_context import ProcessContext;"
        "own = ProcessContext.of_self();"
        "print(sorted(own.mask), sorted(os.sched_getaffinity(0)), *sorted(own.cpuset))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(min(mine))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    mask, now, *cpuset = done.stdout.split()
    assert mask == now == f"[{min(mine)}]"
    assert mine <= set(map(int, cpuset))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes the cgroups away")
def test_where_no_cgroup_is_to_be_seen_its_cpuset_is_what_its_mask_can_be_widened_to() -> None:
    code = (
        "import os; mine = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(mine)});"
        "from affinityd.client.process_context import ProcessContext;"
        "print(ProcessContext.of_self().cpuset == mine, len(os.sched_getaffinity(0)))"
    )
    hidden = 'umount -l /sys/fs/cgroup && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", hidden, sys.executable, code]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1"]


def test_another_process_is_known_by_its_own_environment_and_its_parents() -> None:
    with sleeping() as child:
        stat = stat_of(child.pid)
        assert stat is not None
        found = ProcessContext.of(stat)
        assert found.pid == child.pid
        assert found.mask == os.sched_getaffinity(0)
        assert found.environ is not None
        assert found.environ["PATH"] == os.environ["PATH"]
        assert found.parent_environ is not None
        assert found.parent_environ["PATH"] == os.environ["PATH"]
        assert found.devices == ProcessContext.of_self().devices


def test_this_process_by_its_pid_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment as it is now, and not as the process was started with it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    stat = stat_of(os.getpid())
    assert stat is not None
    assert ProcessContext.of(stat).visible == "3"


IN_A_CONTAINER = """
import os, sys
os.chroot(sys.argv[1])
print("ready", flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may chroot")
def test_a_process_in_a_container_has_the_devices_of_its_own_dev(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia2").touch()
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    with program(IN_A_CONTAINER, f"{tmp_path}", env=environ) as child:
        stat = stat_of(child.pid)
        assert stat is not None
        found = ProcessContext.of(stat)
    assert (found.visible, found.devices) == ("1", "minor:2")
    question, *_ = found.questions({"mode": "even"}, frozenset({4}))
    granted = {"visible": "1", "granted": "minor:2"}
    assert {name: question.get(name) for name in granted} == granted


def test_of_a_process_whose_environment_cannot_be_read_nothing_is_visible() -> None:
    stat = stat_of(os.getpid())
    assert stat is not None
    found = ProcessContext.of(replace(stat, number=2**22 + 1, parent=2**22 + 1))
    assert (found.environ, found.visible, found.devices) == (None, None, None)
