"""Clocks that differ: a daemon whose time since the boot is not its clients'. time_namespaces(7).

A clock that is set while it runs is the virtual machine's business.
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e.faults.checker import asking
from tests.e2e.faults.ranks import start_ranks
from tests.support.daemons import Daemon, running
from tests.support.live_node import LiveNode
from tests.support.tiny import tiny, tiny_tree

YEARS = 60 * 365 * 86400
AHEAD = ("unshare", "--time", f"--monotonic={YEARS}", f"--boottime={YEARS}")


def is_in_another_time(daemon: Daemon) -> bool:
    ours, its = (Path(f"/proc/{who}/ns/time") for who in ("self", daemon.process.pid))
    return ours.readlink() != its.readlink()


def test_a_daemon_in_another_time_plans_as_everywhere(tmp_path: Path) -> None:
    tree = str(tiny_tree(tmp_path / "machine"))
    with (
        running(tmp_path, "--root", tree, before=AHEAD) as daemon,
        asking(daemon.socket, tiny()) as asked,
    ):
        assert is_in_another_time(daemon)
        asked.more()
        assert start_ranks(4, daemon.socket) == set()
        assert not asked.refused


def test_a_live_daemon_in_another_time_knows_who_asks(tmp_path: Path) -> None:
    """When a process started is told in the reader's time, proc(5)."""
    with LiveNode(tmp_path).running(at_first=f'exec {" ".join(AHEAD)} "$@"') as daemon:
        assert is_in_another_time(daemon)
        assert daemon.plan("gpus=0")["allowed"]["source"] == "caller"
