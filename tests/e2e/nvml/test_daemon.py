"""The daemon on a live machine, where the tests' libnvidia-ml stands for NVIDIA's driver."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.children import children_of
from tests.support.daemons import eventually, open_files
from tests.support.made_nodes import MODEL, UUID, LiveNode, gpu_address

MIG, OTHER = (f"MIG-{it}0c3e-51aa-9d02-4c1e-0b7de3f1a001" for it in ("5c1b", "0000"))


@pytest.fixture
def node(tmp_path: Path) -> LiveNode:
    return LiveNode(tmp_path)


def test_a_new_mig_instance_is_found(node: LiveNode) -> None:
    with node.running() as daemon:
        gpu = daemon.plan(f"gpus={UUID[:12]}&mode=node")["ranks"][0]["gpu"]
        assert (gpu["index"], gpu["uuid"], gpu["model"]) == (0, UUID, MODEL)
        assert daemon.plan("granted=minor:3")["cpulist"]
        assert node.device not in open_files(daemon.process.pid)
        assert "libnvidia-ml" not in Path(f"/proc/{daemon.process.pid}/maps").read_text()
        node.says(of_gpu=f"mig {MIG}")
        assert daemon.plan(f"visible={MIG}")["ranks"][0]["gpu"]["uuid"] == UUID
        node.says(of_gpu=f"mig {OTHER}")
        refusal = daemon.get(f"/plan?gpus={OTHER}")
        assert (refusal.status, OTHER in refusal.json["detail"]) == (404, True)


@pytest.mark.parametrize("name", [MIG, f"MIG-{UUID}/1/0"])
def test_a_mig_job_is_planned_without_a_daemon_or_told_what_is_missing(
    node: LiveNode, name: str
) -> None:
    env = {"AFFINITYD_SOCKET": "/nonexistent", "CUDA_VISIBLE_DEVICES": name}
    job = (sys.executable, "-m", "affinityd", "exec", "-v", "--timeout=60", "--", "true")
    node.says(of_gpu=f"mig {MIG}")
    planned = node.run(*job, env=env)
    assert (planned.returncode, "GPU 0" in planned.stderr) == (0, True), planned.stderr
    node.says("nvmlInitWithFlags 9")
    lines = node.run(*job, env=env).stderr
    assert "only NVML knows MIG instances: NVML" in lines


def test_no_process_holds_the_driver_between_scans(node: LiveNode) -> None:
    with node.running("--scan-interval", "3600") as daemon:
        eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
        (scanner,) = children_of(daemon.process.pid)
        for pid in (daemon.process.pid, scanner):
            assert node.device not in open_files(pid)
            assert "libnvidia-ml" not in Path(f"/proc/{pid}/maps").read_text()
        assert children_of(scanner) == []


def test_a_daemon_says_why_nvml_fails(node: LiveNode) -> None:
    information = node.driver / f"gpus/{gpu_address()}/information"
    information.parent.mkdir(parents=True)
    information.write_text(f"Model: \t\t {MODEL}\nGPU UUID: \t {UUID}\nDevice Minor: \t 5\n")
    node.says("nvmlInitWithFlags 18")
    with node.running("--scan-interval", "15") as daemon:
        gpu = daemon.plan("granted=minor:5")["ranks"][0]["gpu"]
        assert (gpu["uuid"], gpu["model"]) == (UUID, MODEL)
        eventually(lambda: "version mismatch" in daemon.log.read_text().lower(), "it says why")
        eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")


def test_a_plan_requested_at_once_waits_for_the_first_reading(node: LiveNode) -> None:
    go = node.folder / "go"
    node.says(f"nvmlInitWithFlags until {go}")

    def are_answered() -> bool:
        go.unlink(missing_ok=True)
        with node.started() as daemon, ThreadPoolExecutor(8) as askers:
            eventually(daemon.socket.exists, "it listens")
            assert daemon.get("/healthz").status == 200
            unready = [daemon.get(path) for path in ("/readyz", "/plan?gpus=0")]
            assert [(it.status, it.headers["retry-after"]) for it in unready] == [(503, "1")] * 2
            plans = [askers.submit(daemon.get, "/plan?gpus=0") for _ in range(8)]
            go.touch()
            return {plan.result().status for plan in plans} == {200}

    # On a busy machine the first reading may take longer than a plan waits.
    eventually(are_answered, "the first reading is waited for")
