"""node.json that is stale, a disk that is full, a log that takes nothing. Real file systems."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from affinityd.config import NODE_FILE
from affinityd.topology.document import read_node
from tests.support.daemons import eventually, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

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
