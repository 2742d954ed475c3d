"""NVML that fails, hangs or crashes in mid-flight: no plan is worse than before it did."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.e2e.faults.elsewhere import plans, says
from tests.e2e.faults.live import MODEL, UUID, Node
from tests.e2e.faults.test_faults_sysfs import QUERIES
from tests.support.daemons import PATIENCE, eventually

FAULTS = {
    "does not start": "nvmlInitWithFlags 18",
    "crashes": "nvmlDeviceGetCount_v2 crash",
    "loses its driver": "nvmlDeviceGetCount_v2 9",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_nvml_said_before_stands_while_its_driver_is_the_same(
    tmp_path: Path, fault: str
) -> None:
    node = Node(tmp_path)
    with (
        node.running() as daemon,
        asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked,
    ):
        before = daemon.plan("gpus=0")["ranks"]
        node.tell_nvml(fault=FAULTS[fault])
        daemon.signal(signal.SIGHUP)
        eventually(lambda: says(daemon, "what it said before is used"), "it is told")
        assert daemon.plan("gpus=0")["ranks"] == before
        assert before[0]["gpu"]["uuid"] == UUID
        assert daemon.plan("granted=minor:3")["ranks"] == before
        node.tell_nvml()
        daemon.signal(signal.SIGHUP)
        eventually(lambda: daemon.plan("gpus=0")["generation"] == 3, "it answers again")
        assert answered_more(asked)
        assert not asked.refused


def test_what_nvml_said_of_another_driver_is_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node.running() as daemon:
        node.tell_nvml(fault=FAULTS["does not start"])
        (tmp_path / "driver/nvidia/version").write_text("NVRM version: 560.28.03\n")
        eventually(lambda: daemon.get("/plan?gpus=0").status == 404, "its GPUs are not known")
        assert not says(daemon, "what it said before")


def test_an_nvml_that_hangs_while_it_is_asked_again_holds_up_no_answer(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with (
        node.running() as daemon,
        asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked,
    ):
        node.tell_nvml(fault="nvmlInitWithFlags hang")
        for _ in range(20):
            daemon.signal(signal.SIGHUP)
            assert answered_more(asked, 5)
        assert daemon.plan("gpus=0")["generation"] == 1
        assert asked.slowest < PATIENCE / 2
        assert not asked.refused
        assert daemon.stop() == 0


def test_an_nvml_that_hangs_from_the_start_is_waited_for_and_no_plan_is_made_up(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    daemon = node.start(fault="nvmlInitWithFlags hang")
    try:
        eventually(daemon.socket.exists, "it listens")
        for _ in range(20):
            assert daemon.get("/plan?gpus=0").status == 503
        daemon.signal(signal.SIGTERM)
        assert daemon.process.wait(PATIENCE) == 0
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_an_nvml_that_hangs_in_a_scan_leaves_plans_alone_and_the_last_scan(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with (
        node.running(scan_interval="1") as daemon,
        asking(daemon.socket, Truth(node.topology), queries=QUERIES) as asked,
    ):
        eventually(lambda: daemon.get("/audit").status == 200, "it has looked")
        node.tell_nvml(fault="nvmlDeviceGetComputeRunningProcesses_v3 hang")
        time.sleep(2.5)
        assert answered_more(asked)
        assert daemon.get("/audit").status == 200
        assert plans(daemon)
        assert not asked.refused
        assert MODEL in daemon.get("/plan?gpus=0").text
        assert daemon.stop() == 0
