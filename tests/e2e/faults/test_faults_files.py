"""node.json that is stale, a disk that is full, a log that takes nothing. Real file systems."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from affinityd.config import NODE_FILE
from affinityd.cpuset import parse_list
from affinityd.topology.document import read_node, write_node
from affinityd.topology.model import Node
from tests.e2e.faults.checker import start_ranks
from tests.support.daemons import eventually, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import LOOK, exec_, tiny, tiny_tree

ONLINE = "sys/devices/system/cpu/online"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0755", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def fill(disk: Path) -> Path:
    path = disk / "full"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def test_ranks_pass_over_a_node_file_from_before_a_reboot(tmp_path: Path) -> None:
    path = tmp_path / NODE_FILE
    write_node(path, Node(tiny(1, 0)))  # its GPUs are elsewhere
    stale = {"boot_id": "2b1f9a7e-0000-4000-8000-000000000000"}
    path.write_text(json.dumps(json.loads(path.read_text()) | stale))
    root = tiny_tree(tmp_path / "machine")
    (line,) = start_ranks(2, tmp_path / "affinityd.sock", root=root)
    assert "planned on a replayed machine" in line


def test_offline_cpus_of_a_node_file_are_not_planned(tmp_path: Path) -> None:
    """A rank's own mask is asked of the kernel, which never names what is offline."""
    write_node(tmp_path / NODE_FILE, Node(machine("dgx-a100")))
    env = {"AFFINITYD_SOCKET": f"{tmp_path}/affinityd.sock"}
    done = exec_("--gpus", "7", "--verbose", "--", *LOOK, env=env)
    assert parse_list(done.cpus) <= os.sched_getaffinity(0)


def test_a_full_disk_leaves_the_former_node_file(tmp_path: Path, small_disk: Path) -> None:
    tree = write_tree(machine("dgx-a100"), tmp_path / "root")
    socket, published = small_disk / "s", small_disk / NODE_FILE
    env = {"AFFINITYD_SOCKET": str(socket)}
    with running(tmp_path, "--root", str(tree), env=env) as daemon:
        filler = fill(small_disk)
        (tree / ONLINE).write_text("0-47,50-255\n")
        for _ in range(2):
            assert daemon.plan("gpus=0&mode=node")["cpulist"] == "50-63,176-191"
            daemon.signal(signal.SIGHUP)
        line = "node.json could not be written: No space left on device"
        eventually(lambda: daemon.says(line), "it is told")
        assert read_node(published).topology.online == machine("dgx-a100").online
        assert sorted(file.name for file in small_disk.iterdir()) == ["full", "node.json", "s"]
        filler.unlink()
        published.unlink()
        daemon.signal(signal.SIGHUP)
        eventually(published.exists, "it is written again, as after it was deleted")
        assert read_node(published).generation == 2
        assert len(daemon.says(line)) == 1
        assert daemon.stop() == 0
