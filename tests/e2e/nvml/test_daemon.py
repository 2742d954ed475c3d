"""The daemon on a live machine that has NVIDIA's driver, as far as that can be had without one.

The daemon runs on this machine's own `/`; NVML is a real shared library that answers from facts;
`/proc/driver/nvidia` is mounted over in a mount namespace of the daemon's own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.support.daemons import Daemon, Reply, eventually, is_ready, open_files, running, spawn
from tests.support.nvml.shared_object import environment

UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
MIG = "MIG-5c1b0c3e-51aa-9d02-4c1e-0b7de3f1a001"


def address() -> str:
    """Return a PCI device of this machine, which NVML will call its GPU."""
    return min(path.name for path in Path("/sys/bus/pci/devices").iterdir())


def facts(*lines: str, held: Path, before: str = "") -> str:
    gpu = f"gpu\nuuid {UUID}\npci 0000{address()}\nminor 3\nmodel NVIDIA Test"
    return "\n".join(("driver 550.54.15", f"device {held}", before, gpu, *lines, ""))


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Return what the daemon sees as /proc/driver."""
    folder = tmp_path / "driver"
    (folder / "nvidia").mkdir(parents=True)
    (folder / "nvidia/version").write_text("NVRM version: 550.54.15\n")
    return folder


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return the file that the library holds open while it is initialised."""
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


@contextmanager
def live(folder: Path, driver: Path, text: str) -> Iterator[Daemon]:
    with running(folder, env=environment(text, folder), before=_namespace(driver)) as daemon:
        yield daemon


def _namespace(driver: Path) -> list[str]:
    """Return the command that runs another with a /proc/driver of its own."""
    mount = 'mount --bind "$0" /proc/driver && exec "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, os.fspath(driver)]


def test_nvmls_gpu_is_planned_and_no_device_stays_open(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    with live(tmp_path, driver, facts(held=device)) as daemon:
        gpu = daemon.plan(f"gpus={UUID[:12]}&mode=node")["ranks"][0]["gpu"]
        assert (gpu["index"], gpu["uuid"], gpu["model"]) == (0, UUID, "NVIDIA Test")
        assert daemon.plan("granted=minor:3")["cpulist"]
        assert device not in open_files(daemon.process.pid)
        maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
        assert "libnvidia-ml" not in maps


def test_an_unknown_mig_instance_is_looked_for_once_in_a_while(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    with live(tmp_path, driver, facts(held=device)) as daemon:
        (tmp_path / "nvml.facts").write_text(facts(f"mig {MIG}", held=device))
        assert daemon.plan(f"visible={MIG}")["ranks"][0]["gpu"]["uuid"] == UUID
        other = MIG.replace("5c1b", "0000")
        (tmp_path / "nvml.facts").write_text(facts(f"mig {other}", held=device))
        refusal = daemon.get(f"/plan?gpus={other}")
        assert refusal.status == 404
        assert other in refusal.json["detail"]


def test_a_driver_that_goes_is_noticed_and_not_asked(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    with live(tmp_path, driver, facts(held=device)) as daemon:
        (driver / "nvidia/version").unlink()
        eventually(lambda: daemon.get("/plan?gpus=0").status == 404, "the GPU is gone")
        notices = daemon.get("/topology").json["topology"]["notices"]
        assert any("driver is not loaded" in notice for notice in notices)
        (driver / "nvidia/version").write_text("NVRM version: 560.28.03\n")
        eventually(lambda: daemon.get("/plan?gpus=0").status == 200, "the GPU is back")


def test_an_nvml_that_fails_leaves_a_daemon_that_says_why(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    (driver / f"nvidia/gpus/{address()}").mkdir(parents=True)
    (driver / f"nvidia/gpus/{address()}/information").write_text(
        f"Model: \t\t NVIDIA Test\nGPU UUID: \t {UUID}\nDevice Minor: \t 5\n"
    )
    text = facts(held=device, before="fail nvmlInitWithFlags 18")
    with live(tmp_path, driver, text) as daemon:
        gpu = daemon.plan("granted=minor:5")["ranks"][0]["gpu"]
        assert (gpu["uuid"], gpu["model"]) == (UUID, "NVIDIA Test")
        assert any("version mismatch" in line.lower() for line in daemon.lines)
        eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
        scraped = daemon.get("/metrics").text.splitlines()
        assert 'affinityd_nvml_failures_total{question="topology"} 1.0' in scraped
        assert 'affinityd_nvml_failures_total{question="processes"} 1.0' in scraped
        assert "affinityd_scan_failures_total 0.0" in scraped


@contextmanager
def starting(folder: Path, driver: Path, text: str) -> Iterator[Daemon]:
    """Run a daemon from the moment on when it listens."""
    daemon = spawn(folder, env=environment(text, folder), before=_namespace(driver))
    try:
        eventually(daemon.socket.exists, "it listens")
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_a_plan_that_is_asked_for_at_once_waits_for_the_first_reading(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    ask = tmp_path / "ask"
    text = facts(held=device, before=f"fail nvmlInitWithFlags until {ask}")

    def are_answered() -> bool:
        ask.unlink(missing_ok=True)
        with starting(tmp_path, driver, text) as daemon, ThreadPoolExecutor(8) as askers:
            plans = [askers.submit(daemon.get, "/plan?gpus=0") for _ in range(8)]
            unready = daemon.get("/readyz")
            ask.touch()
            statuses = {plan.result().status for plan in plans}
            assert (unready.status, unready.headers["retry-after"]) == (503, "1")
            eventually(lambda: is_ready(daemon), "it is ready")
            return statuses == {200}

    # A machine that is busy enough may take longer to read than a plan waits.
    eventually(are_answered, "the first reading is waited for")


def test_nvml_is_asked_while_the_daemon_is_imported(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    asked = tmp_path / "asked"
    text = facts(held=device, before=f"fail nvmlInitWithFlags note {asked}")
    with starting(tmp_path, driver, text) as daemon:
        listens = daemon.socket.stat().st_ctime_ns
        eventually(lambda: is_ready(daemon), "it is ready")
        assert asked.stat().st_mtime_ns < listens
        asked.unlink()
        assert daemon.get("/plan?gpus=0").status == 200
        assert not asked.exists(), "it was asked once"


def test_while_nvml_is_silent_at_the_start_it_lives_and_is_not_ready(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    ask = tmp_path / "ask"
    text = facts(held=device, before=f"fail nvmlInitWithFlags until {ask}")
    with starting(tmp_path, driver, text) as daemon:
        assert daemon.get("/healthz").status == 200
        unready = daemon.get("/readyz"), daemon.get("/plan?gpus=0")
        assert [reply.status for reply in unready] == [503, 503]
        assert [reply.headers["retry-after"] for reply in unready] == ["1", "1"]
        ask.touch()
        eventually(lambda: is_ready(daemon), "it is ready")
        assert daemon.get("/plan?gpus=0").status == 200


def test_a_request_that_is_under_way_at_sigterm_is_answered(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    with live(tmp_path, driver, facts(held=device)) as daemon:
        slow = facts(f"mig {MIG}", held=device, before="fail nvmlInitWithFlags slow")
        (tmp_path / "nvml.facts").write_text(slow)
        replies: list[Reply] = []
        asker = Thread(target=lambda: replies.append(daemon.get(f"/plan?gpus={MIG}")))
        asker.start()
        time.sleep(0.5)
        assert replies == []
        assert daemon.stop() == 0
        asker.join()
        assert [reply.status for reply in replies] == [200]


def test_an_nvml_that_hangs_holds_up_neither_answers_nor_the_end(
    tmp_path: Path, driver: Path, device: Path
) -> None:
    with live(tmp_path, driver, facts(held=device)) as daemon:
        hang = facts(held=device, before="fail nvmlInitWithFlags hang")
        (tmp_path / "nvml.facts").write_text(hang)
        daemon.signal(signal.SIGHUP)
        time.sleep(0.5)
        assert daemon.get("/plan?gpus=0&mode=single").status == 200
        assert daemon.stop() == 0
