"""No plan becomes worse while sysfs or NVML fails, hangs, crashes or changes."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from affinityd.config import NODE_FILE
from affinityd.topology.document import read_node
from tests.e2e.faults.checker import LIVE_QUERIES, asking
from tests.support.children import children_of
from tests.support.daemons import Daemon, eventually, is_ready, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.made_nodes import UUID, LiveNode

NODE_CPUS = "/sys/devices/system/node/node0/cpulist"
CPUS = "/sys/devices/system/cpu/online"
#: Makes each read of a file fail with EIO: no memory is mapped at address 0, proc(5).
BROKEN = ("mount", "--bind", "/proc/{pid}/mem")
FAULTS = {
    NODE_CPUS: (BROKEN, f"{NODE_CPUS}: Input/output error"),
    CPUS: (BROKEN, f"{CPUS}: Input/output error"),
    "/sys": (("mount", "-t", "tmpfs", "tmpfs"), "has no online CPU"),
}


def inside(daemon: Daemon, *command: str) -> None:
    enter = ["nsenter", "--target", str(daemon.process.pid), "--user", "--mount", "--"]
    subprocess.run([*enter, *command], check=True)


def answers(daemon: Daemon, node: LiveNode) -> None:
    with asking(daemon.socket, node.topology, queries=LIVE_QUERIES) as asked:
        asked.more()


def test_the_last_topology_stays_while_sysfs_fails(tmp_path: Path) -> None:
    node = LiveNode(tmp_path)
    with (
        node.running() as daemon,
        asking(daemon.socket, node.topology, queries=LIVE_QUERIES) as asked,
    ):
        for path, (fault, line) in FAULTS.items():
            inside(daemon, *(it.format(pid=daemon.process.pid) for it in fault), path)
            daemon.signal(signal.SIGHUP)
            eventually(partial(daemon.says, line), "the log says so")
            assert daemon.plan("gpus=0")["generation"] == 1
            asked.more()
            daemon.signal(signal.SIGHUP)
            inside(daemon, "umount", "--lazy", path)
            daemon.signal(signal.SIGHUP)
            eventually(partial(daemon.says, "nothing has changed"), "it is read again")
            assert len(daemon.says(line)) == 1
            daemon.log.write_text("")
        assert not asked.refused


def test_requests_are_refused_until_sysfs_is_mounted(tmp_path: Path) -> None:
    node = LiveNode(tmp_path)
    with node.started(at_first="mount -t tmpfs tmpfs /sys") as daemon:
        eventually(lambda: daemon.says("has no online CPU"), "the log says so")
        statuses = [daemon.get(path).status for path in ("/plan", "/readyz", "/healthz")]
        assert statuses == [503, 503, 200]
        inside(daemon, "umount", "--lazy", "/sys")
        eventually(lambda: is_ready(daemon), "it plans")
        answers(daemon, node)


# A disk that is full.


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


def test_a_full_disk_leaves_the_earlier_node_json(tmp_path: Path, small_disk: Path) -> None:
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
        eventually(lambda: daemon.says(line), "the log says so")
        assert read_node(published).topology.online == machine("dgx-a100").online
        assert sorted(file.name for file in small_disk.iterdir()) == ["full", "node.json", "s"]
        filler.unlink()
        published.unlink()
        daemon.signal(signal.SIGHUP)
        eventually(published.exists, "node.json is written again")
        assert read_node(published).generation == 2
        assert len(daemon.says(line)) == 1
        assert daemon.stop() == 0


# NVML fails while the daemon runs.

DOES_NOT_START = "nvmlInitWithFlags 18"
HANGS = "nvmlInitWithFlags hang"
CRASHES = "nvmlDeviceGetCount_v2 crash"
LOSES_ITS_DRIVER = "nvmlDeviceGetCount_v2 9"
HANGS_IN_A_SCAN = "fail nvmlDeviceGetComputeRunningProcesses_v3 hang"


def test_nvml_s_last_answer_is_kept_while_the_driver_is_the_same(tmp_path: Path) -> None:
    node = LiveNode(tmp_path)
    with (
        node.running() as daemon,
        asking(daemon.socket, node.topology, queries=LIVE_QUERIES) as asked,
    ):

        def is_of(generation: int) -> bool:
            return bool(daemon.plan("gpus=0")["generation"] == generation)

        before = daemon.plan("gpus=0")["ranks"]
        assert before[0]["gpu"]["uuid"] == UUID
        for number, fault in enumerate((DOES_NOT_START, CRASHES, LOSES_ITS_DRIVER)):
            node.says(fault)
            daemon.signal(signal.SIGHUP)
            eventually(partial(is_of, 2 * number + 2), "it is noticed")
            eventually(partial(daemon.says, "its last answer is used"), "the log says so")
            daemon.log.write_text("")
            assert daemon.plan("gpus=0")["ranks"] == before
            assert daemon.plan("granted=minor:3")["ranks"] == before
            node.says()
            daemon.signal(signal.SIGHUP)
            eventually(partial(is_of, 2 * number + 3), "it answers again")
        node.says(HANGS)
        for _ in range(20):
            daemon.signal(signal.SIGHUP)
            asked.more(5)
        assert is_of(7)
        assert not asked.refused
        assert daemon.stop() == 0


def test_nvml_s_answer_for_another_driver_is_forgotten(tmp_path: Path) -> None:
    node = LiveNode(tmp_path)
    with node.running() as daemon:
        node.says(DOES_NOT_START)
        node.tell_driver("560.28.03")
        eventually(lambda: daemon.get("/plan?gpus=0").status == 404, "its GPUs are not known")
        assert not daemon.says("its last answer is used")


def test_the_last_scan_is_kept_while_nvml_hangs_in_a_scan(tmp_path: Path) -> None:
    node = LiveNode(tmp_path)
    with (
        node.running("--scan-interval", "1") as daemon,
        asking(daemon.socket, node.topology, queries=LIVE_QUERIES) as asked,
    ):
        eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
        node.says(of_gpu=HANGS_IN_A_SCAN)
        (scans,) = children_of(daemon.process.pid)
        eventually(lambda: children_of(scans), "NVML is asked")
        last = daemon.get("/audit").json["time"]
        asked.more()
        assert daemon.get("/audit").json["time"] == last
        assert not asked.refused
        assert daemon.stop() == 0
