"""The daemon on a live machine that has NVIDIA's driver, as far as that can be had without one.

The daemon runs on this machine's own `/`; NVML is a real shared library that answers from facts;
`/proc/driver/nvidia` is mounted over in a mount namespace of the daemon's own. An NVML that hangs,
and a driver that goes, are among the faults and the audit's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, eventually, is_ready, open_files, spawn
from tests.support.nvml.shared_object import environment

UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
MIG, OTHER = (f"MIG-{it}0c3e-51aa-9d02-4c1e-0b7de3f1a001" for it in ("5c1b", "0000"))


def address() -> str:
    """Return a PCI device of this machine, which NVML will call its GPU."""
    return min(path.name for path in Path("/sys/bus/pci/devices").iterdir())


class Node:
    """What a daemon finds, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = folder / "driver/nvidia"  #: as /proc/driver/nvidia
        self.device = folder / "nvidiactl"  #: held open while NVML is initialised
        self.begun, self.go = folder / "begun", folder / "go"  #: of an NVML that waits
        self.driver.mkdir(parents=True)
        self.device.touch()
        (self.driver / "version").write_text("NVRM version: 550.54.15\n")
        self.says()

    def says(self, *of_gpu: str, starts: tuple[str, ...] = ()) -> None:
        """Have NVML answer so; `starts`: what it does first."""
        gpu = f"gpu\nuuid {UUID}\npci 0000{address()}\nminor 3\nmodel NVIDIA Test"
        fails = [f"fail nvmlInitWithFlags {action}" for action in starts]
        lines = (f"driver 550.54.15\ndevice {self.device}", *fails, gpu, *of_gpu, "")
        self.env = environment("\n".join(lines), self.folder)

    def waits(self, *of_gpu: str) -> None:
        """Have NVML note that it has begun, and answer once it may go on."""
        self.says(*of_gpu, starts=(f"note {self.begun}", f"until {self.go}"))

    @contextmanager
    def starting(self, scan: str = "off") -> Iterator[Daemon]:
        """Run a daemon from the moment on when it listens; by default only plans ask NVML."""
        mount = 'mount --bind "$0" /proc/driver && exec "$@"'
        before = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount]
        env = {**self.env, "AFFINITYD_SCAN_INTERVAL": scan}
        daemon = spawn(self.folder, env=env, before=[*before, os.fspath(self.driver.parent)])
        try:
            eventually(daemon.socket.exists, "it listens")
            yield daemon
        finally:
            daemon.process.kill()
            daemon.process.wait()

    @contextmanager
    def live(self, scan: str = "off") -> Iterator[Daemon]:
        with self.starting(scan) as daemon:
            eventually(lambda: is_ready(daemon), "it is ready")
            yield daemon


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_nvmls_gpu_is_planned_and_an_unknown_mig_instance_looked_for_once_in_a_while(
    node: Node,
) -> None:
    with node.live() as daemon:
        gpu = daemon.plan(f"gpus={UUID[:12]}&mode=node")["ranks"][0]["gpu"]
        assert (gpu["index"], gpu["uuid"], gpu["model"]) == (0, UUID, "NVIDIA Test")
        assert daemon.plan("granted=minor:3")["cpulist"]
        assert node.device not in open_files(daemon.process.pid)
        assert "libnvidia-ml" not in Path(f"/proc/{daemon.process.pid}/maps").read_text()
        node.says(f"mig {MIG}")
        assert daemon.plan(f"visible={MIG}")["ranks"][0]["gpu"]["uuid"] == UUID
        node.says(f"mig {OTHER}")
        refusal = daemon.get(f"/plan?gpus={OTHER}")
        assert (refusal.status, OTHER in refusal.json["detail"]) == (404, True)


def test_an_nvml_that_fails_leaves_a_daemon_that_says_why(node: Node) -> None:
    information = node.driver / f"gpus/{address()}/information"
    information.parent.mkdir(parents=True)
    information.write_text(f"Model: \t\t NVIDIA Test\nGPU UUID: \t {UUID}\nDevice Minor: \t 5\n")
    node.says(starts=("18",))
    with node.live(scan="15") as daemon:
        gpu = daemon.plan("granted=minor:5")["ranks"][0]["gpu"]
        assert (gpu["uuid"], gpu["model"]) == (UUID, "NVIDIA Test")
        eventually(lambda: "version mismatch" in daemon.log.read_text().lower(), "it says why")
        eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
        scraped = daemon.get("/metrics").text.splitlines()
        assert 'affinityd_nvml_failures_total{question="topology"} 1.0' in scraped
        assert 'affinityd_nvml_failures_total{question="processes"} 1.0' in scraped
        assert "affinityd_scan_failures_total 0.0" in scraped


def test_a_plan_that_is_asked_for_at_once_waits_for_the_first_reading(node: Node) -> None:
    node.waits()

    def are_answered() -> bool:
        node.go.unlink(missing_ok=True)
        with node.starting() as daemon, ThreadPoolExecutor(8) as askers:
            assert daemon.get("/healthz").status == 200
            unready = [daemon.get(path) for path in ("/readyz", "/plan?gpus=0")]
            assert [(it.status, it.headers["retry-after"]) for it in unready] == [(503, "1")] * 2
            plans = [askers.submit(daemon.get, "/plan?gpus=0") for _ in range(8)]
            node.go.touch()
            return {plan.result().status for plan in plans} == {200}

    # A machine that is busy enough may take longer to read than a plan waits.
    eventually(are_answered, "the first reading is waited for")


def test_nvml_is_asked_while_the_daemon_is_imported(node: Node) -> None:
    node.says(starts=(f"note {node.begun}",))
    with node.starting() as daemon:
        listens = daemon.socket.stat().st_ctime_ns
        eventually(lambda: is_ready(daemon), "it is ready")
        assert node.begun.stat().st_mtime_ns < listens
        assert daemon.get("/plan?gpus=0").status == 200
        assert node.begun.read_text() == "+", "it was asked once"


def test_a_request_that_is_under_way_at_sigterm_is_answered(node: Node) -> None:
    with node.live() as daemon, ThreadPoolExecutor(1) as asker:
        node.waits(f"mig {MIG}")
        plan = asker.submit(daemon.get, f"/plan?gpus={MIG}")
        eventually(node.begun.exists, "NVML is asked")
        daemon.signal(signal.SIGTERM)
        node.go.touch()
        assert plan.result().status == 200
        assert daemon.process.wait() == 0
