"""Clocks that differ: a daemon whose time since the boot is not its clients'. time_namespaces(7).

A clock that is set while it runs is the virtual machine's business.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.e2e.faults.elsewhere import plans
from tests.e2e.faults.live import Node
from tests.e2e.faults.ranks import environment, start_many
from tests.support.daemons import Daemon, eventually, running
from tests.support.tiny import tiny, tiny_tree

YEAR = 365 * 86400


def is_in_another_time(daemon: Daemon) -> bool:
    ours, its = (Path(f"/proc/{who}/ns/time") for who in ("self", daemon.process.pid))
    return ours.readlink() != its.readlink()


@pytest.mark.parametrize("ahead", [YEAR, 60 * YEAR])
def test_a_daemon_in_another_time_plans_as_everywhere(tmp_path: Path, ahead: int) -> None:
    tree = str(tiny_tree(tmp_path / "machine"))
    clocks = (f"--monotonic={ahead}", f"--boottime={ahead}")
    with (
        running(tmp_path, "--root", tree, before=("unshare", "--time", *clocks)) as daemon,
        asking(daemon.socket, Truth(tiny())) as asked,
    ):
        assert is_in_another_time(daemon)
        assert answered_more(asked)
        ranks = start_many(4, environment(daemon.socket))
        assert (ranks.pinned, ranks.wrong, ranks.said) == (4, [], [])
        assert not asked.refused


def test_a_live_daemon_in_another_time_knows_who_asks(tmp_path: Path) -> None:
    """When a process started is told in the reader's time, proc(5)."""
    ahead = f"--monotonic={YEAR} --boottime={YEAR}"
    daemon = Node(tmp_path).start(at_first=f'exec unshare --time {ahead} "$@"')
    try:
        eventually(lambda: plans(daemon), "it plans")
        assert is_in_another_time(daemon)
        assert daemon.plan("gpus=0")["allowed"]["source"] == "caller"
    finally:
        daemon.process.kill()
        daemon.process.wait()
