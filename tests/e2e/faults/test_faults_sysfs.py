"""sysfs that fails, is not there, or changes: on this machine's own, and on a written one."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from affinityd.discovery import discover, open_tree
from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.e2e.faults.elsewhere import plans, says
from tests.e2e.faults.live import Node, break_file, inside, uncover
from tests.support.daemons import eventually, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

NODE_CPUS = "/sys/devices/system/node/node0/cpulist"
ONLINE = "sys/devices/system/cpu/online"
#: Without a cpuset a caller is planned on its own CPUs, which tests may have fewer of.
QUERIES = tuple(
    f"{query}&cpuset={','.join(map(str, sorted(os.sched_getaffinity(0))))}"
    for query in ("gpus=0&mode=node", "gpus=all&mode=even")
)


@pytest.mark.parametrize("path", [NODE_CPUS, "/sys/devices/system/cpu/online"])
def test_a_file_that_fails_leaves_the_last_topology_and_is_named_once(
    tmp_path: Path, path: str
) -> None:
    node = Node(tmp_path)
    with node.running() as daemon, asking(daemon.socket, Truth(node.topology), queries=QUERIES):
        break_file(daemon, path)
        for _ in range(3):
            daemon.signal(signal.SIGHUP)
            time.sleep(0.4)
        (told,) = says(daemon, "could not be read")
        assert f"{path}: Input/output error" in told
        assert daemon.plan("gpus=0")["generation"] == 1
        uncover(daemon, path)
        daemon.signal(signal.SIGHUP)
        eventually(lambda: says(daemon, "nothing has changed"), "it is read again")


def test_a_file_that_fails_from_the_start_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    node = Node(tmp_path)
    daemon = node.start(at_first=f"mount --bind /proc/$$/mem {NODE_CPUS}")
    try:
        eventually(lambda: plans(daemon), "it plans")
        notices = daemon.get("/topology").json["topology"]["notices"]
        assert f"{NODE_CPUS} could not be read: Input/output error" in notices
        uncover(daemon, NODE_CPUS)
        daemon.signal(signal.SIGHUP)
        eventually(lambda: daemon.plan("gpus=0")["generation"] == 2, "it is read again")
        with asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked:
            assert answered_more(asked)
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_sysfs_that_goes_leaves_the_last_topology(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with (
        node.running() as daemon,
        asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked,
    ):
        inside(daemon, "mount", "-t", "tmpfs", "tmpfs", "/sys")
        daemon.signal(signal.SIGHUP)
        eventually(lambda: says(daemon, "has no online CPU"), "it is told")
        assert answered_more(asked)
        assert daemon.plan("gpus=0")["generation"] == 1
        assert not asked.refused


def test_without_sysfs_it_refuses_until_that_is_mounted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    daemon = node.start(at_first="mount -t tmpfs tmpfs /sys")
    try:
        eventually(lambda: says(daemon, "has no online CPU"), "it is told")
        assert [daemon.get(f"/{path}").status for path in ("plan", "readyz", "healthz")] == [
            *(503, 503),
            200,
        ]
        inside(daemon, "umount", "/sys")
        eventually(lambda: plans(daemon), "it plans")
        with asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked:
            assert answered_more(asked)
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_cpus_that_come_and_go_in_a_storm_are_in_answers_only_while_they_are_there(
    tmp_path: Path,
) -> None:
    tree = write_tree(machine("dgx-a100"), tmp_path / "root")
    all_of_them = discover(open_tree(str(tree)), None)
    (tree / ONLINE).write_text("0-47,50-255\n")
    fewer = discover(open_tree(str(tree)), None)
    assert fewer.online == all_of_them.online - {48, 49}
    truth = Truth(fewer)
    with (
        running(tmp_path, "--root", str(tree)) as daemon,
        asking(daemon.socket, truth, clients=8) as asked,
    ):
        for times in range(20):
            topology, text = ((all_of_them, "0-255\n"), (fewer, "0-47,50-255\n"))[times % 2]
            with truth.becoming(topology):
                (tree / ONLINE).write_text(text)
            assert answered_more(asked, 20)
        assert not asked.refused


def test_when_no_more_files_can_be_opened_the_last_topology_stands_and_all_is_well_after(
    tmp_path: Path,
) -> None:
    """The limit is lowered while it runs, below what it has open already."""
    tree = write_tree(machine("mi250x"), tmp_path / "root")
    truth = Truth(discover(open_tree(str(tree)), None))
    with running(tmp_path, "--root", str(tree)) as daemon, ExitStack() as idle:
        pid = daemon.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, hard))
        for _ in range(100):
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(1)
            with suppress(OSError):
                connection.connect(os.fspath(daemon.socket))
        for _ in range(3):
            daemon.signal(signal.SIGHUP)
            time.sleep(0.3)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        idle.close()
        with asking(daemon.socket, truth) as asked:
            assert answered_more(asked)
        assert daemon.plan("gpus=0")["generation"] == 1
        daemon.signal(signal.SIGHUP)
        eventually(lambda: says(daemon, "nothing has changed"), "it is read again")
        assert len(says(daemon, "Too many open files")) <= 2
