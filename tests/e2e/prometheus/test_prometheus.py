"""The metrics, as Prometheus itself reads and judges them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from affinityd.audit.model import CpuTime, GpuKey, Job
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.scanner import Audit
from tests.support.daemons import eventually, running
from tests.support.ports import free_port
from tests.support.prometheus import running_prometheus
from tests.support.scans import MACHINE, process, scan


def test_promtool_has_nothing_to_say_about_the_metrics(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        daemon.plan("gpus=0")
        daemon.get("/plan?gpus=99")
        scraped = daemon.get("/metrics").text
    assert judged(scraped) == (0, "")


def test_promtool_has_nothing_to_say_about_the_metrics_of_a_scan() -> None:
    job = Job("slurm", "1")
    far = process(1, job=job, cause="mask", placement="remote")
    since: dict[GpuKey | Job, float] = {far.facts.gpu: 1700000000.0, job: 1700000000.0}
    metrics = Metrics(lambda: None, job_series=1)
    metrics.scanned(Audit(MACHINE, scan(far, job_time={job: CpuTime(2.0, 1.0)}, since=since)))
    scraped = metrics.exposition("")[0].decode()
    assert scraped.count("# TYPE affinityd_gpu_") == 8
    assert scraped.count("# TYPE affinityd_job_") == 5
    assert judged(scraped) == (0, "")


def judged(scraped: str) -> tuple[int, str]:
    """Return promtool's exit status and what it says of a scrape."""
    command = ("promtool", "check", "metrics")
    done = subprocess.run(command, input=scraped, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_prometheus_finds_plans_and_gpus(tmp_path: Path) -> None:
    port = free_port()
    with (
        running(tmp_path, "--machine", "dgx-a100", listen=f"127.0.0.1:{port}") as daemon,
        running_prometheus(tmp_path, [{"targets": [f"127.0.0.1:{port}"]}]) as server,
    ):
        for _ in range(5):
            daemon.plan("gpus=0,1&mode=node")
        plans = 'affinityd_plans_total{mode="node",result="ok",locality="local"} == 5'
        eventually(lambda: server.query(plans), "five plans are counted")
        on_node = server.query("count by (gpu) (affinityd_gpu_numa_node == 3)")
        assert sorted(row["metric"]["gpu"] for row in on_node) == ["0", "1"]
        assert server.query("affinityd_build_info * on () affinityd_topology_generation == 1")
