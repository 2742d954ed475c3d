"""NVML that fails, hangs or crashes in mid-flight: no plan is worse than before it did."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.e2e.faults.elsewhere import says
from tests.e2e.faults.live import QUERIES, UUID, Node
from tests.support.children import children_of
from tests.support.daemons import PATIENCE, eventually

DOES_NOT_START = "nvmlInitWithFlags 18"
HANGS = "nvmlInitWithFlags hang"
CRASHES = "nvmlDeviceGetCount_v2 crash"
LOSES_ITS_DRIVER = "nvmlDeviceGetCount_v2 9"
HANGS_IN_A_SCAN = "nvmlDeviceGetComputeRunningProcesses_v3 hang"


def test_what_nvml_said_before_stands_while_its_driver_is_the_same(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with (
        node.running() as daemon,
        asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked,
    ):

        def is_of(generation: int) -> bool:
            return bool(daemon.plan("gpus=0")["generation"] == generation)

        before = daemon.plan("gpus=0")["ranks"]
        assert before[0]["gpu"]["uuid"] == UUID
        for number, fault in enumerate((DOES_NOT_START, CRASHES, LOSES_ITS_DRIVER)):
            node.tell_nvml(fault=fault)
            daemon.signal(signal.SIGHUP)
            eventually(partial(is_of, 2 * number + 2), "it is noticed")
            eventually(partial(says, daemon, "its last answer is used"), "it is told")
            daemon.log.write_text("")
            assert daemon.plan("gpus=0")["ranks"] == before
            assert daemon.plan("granted=minor:3")["ranks"] == before
            node.tell_nvml()
            daemon.signal(signal.SIGHUP)
            eventually(partial(is_of, 2 * number + 3), "it answers again")
        node.tell_nvml(fault=HANGS)
        for _ in range(20):
            daemon.signal(signal.SIGHUP)
            assert answered_more(asked, 5)
        assert is_of(7)
        assert asked.slowest < PATIENCE / 2
        assert not asked.refused
        assert daemon.stop() == 0


def test_what_nvml_said_of_another_driver_is_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node.running() as daemon:
        node.tell_nvml(fault=DOES_NOT_START)
        node.tell_driver("560.28.03")
        eventually(lambda: daemon.get("/plan?gpus=0").status == 404, "its GPUs are not known")
        assert not says(daemon, "what it said before")


def test_an_nvml_that_hangs_from_the_start_is_waited_for_and_no_plan_is_made_up(
    tmp_path: Path,
) -> None:
    with Node(tmp_path).started(fault=HANGS) as daemon:
        eventually(daemon.socket.exists, "it listens")
        assert [daemon.get("/plan?gpus=0").status for _ in range(3)] == [503] * 3
        assert daemon.stop() == 0


def test_an_nvml_that_hangs_in_a_scan_leaves_plans_alone_and_the_last_scan(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with (
        node.running("--scan-interval", "1") as daemon,
        asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked,
    ):
        eventually(lambda: daemon.get("/audit").status == 200, "it has looked")
        node.tell_nvml(fault=HANGS_IN_A_SCAN)
        eventually(lambda: children_of(daemon.process.pid), "it is asked")
        last = daemon.get("/audit").json["time"]
        assert answered_more(asked)
        assert daemon.get("/audit").json["time"] == last
        assert not asked.refused
        assert daemon.stop() == 0
