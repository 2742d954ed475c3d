"""The metrics, as Prometheus itself reads and judges them."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.model import CpuTime, GpuKey, Job
from affinityd.metrics import Metrics
from affinityd.scanner import Audit
from tests.daemons import PATIENCE, eventually, running
from tests.scans import MACHINE, process, scan

pytestmark = pytest.mark.prometheus


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes a target every second; yield its address."""
    config = folder / "prometheus.yml"
    job = {"job_name": "affinityd", "static_configs": [{"targets": [target]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def query(server: str, expression: str) -> list[dict[str, Any]]:
    target = f"{server}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(target, timeout=PATIENCE) as answer:  # noqa: S310 - ours
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return result


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
        prometheus(tmp_path, f"127.0.0.1:{port}") as server,
    ):
        for _ in range(5):
            daemon.plan("gpus=0,1&mode=node")
        plans = 'affinityd_plans_total{mode="node",result="ok",locality="local"} == 5'
        eventually(lambda: query(server, plans), "five plans are counted")
        on_node = query(server, "count by (gpu) (affinityd_gpu_numa_node == 3)")
        assert sorted(row["metric"]["gpu"] for row in on_node) == ["0", "1"]
        assert query(server, "affinityd_build_info * on () affinityd_topology_generation == 1")
