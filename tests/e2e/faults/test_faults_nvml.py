"""NVML that fails, hangs or crashes in mid-flight: no plan is worse than before it did."""

import signal
from functools import partial
from pathlib import Path

from tests.e2e.faults.checker import LIVE_QUERIES, asking
from tests.support.children import children_of
from tests.support.daemons import eventually
from tests.support.made_nodes import UUID, LiveNode

DOES_NOT_START = "nvmlInitWithFlags 18"
HANGS = "nvmlInitWithFlags hang"
CRASHES = "nvmlDeviceGetCount_v2 crash"
LOSES_ITS_DRIVER = "nvmlDeviceGetCount_v2 9"
HANGS_IN_A_SCAN = "fail nvmlDeviceGetComputeRunningProcesses_v3 hang"


def test_nvml_s_last_answer_stays_for_the_same_driver(tmp_path: Path) -> None:
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
            eventually(partial(daemon.says, "its last answer is used"), "it is told")
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


def test_the_last_scan_stays_while_nvml_hangs_in_a_scan(tmp_path: Path) -> None:
    node = LiveNode(tmp_path)
    with (
        node.running("--scan-interval", "1") as daemon,
        asking(daemon.socket, node.topology, queries=LIVE_QUERIES) as asked,
    ):
        eventually(lambda: daemon.get("/audit").status == 200, "it has looked")
        node.says(of_gpu=HANGS_IN_A_SCAN)
        (scans,) = children_of(daemon.process.pid)
        eventually(lambda: children_of(scans), "it is asked")
        last = daemon.get("/audit").json["time"]
        asked.more()
        assert daemon.get("/audit").json["time"] == last
        assert not asked.refused
        assert daemon.stop() == 0
