"""The queries of Grafana's dashboards, evaluated by promtool."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chart.promtool import (
    FAR,
    GPU07,
    GPU08,
    TOTAL,
    UNPLACED,
    Series,
    asked,
    clustered,
    far_gpu,
    labels,
    of_gpu,
    play,
    util,
)
from tests.e2e.chart.rendering import objects
from tests.e2e.prometheus.server import FOLDER, documents, filled_in, panels

Board = Mapping[str, Any]

BOARDS: Mapping[str, Board] = dict(documents())
FLEET, NODE = BOARDS["fleet"], BOARDS["node"]
EACH = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
#: The dashboards' variables for GPU07, which has no label `cluster`.
CHOSEN = {"cluster": "", **GPU07, "__range": "8m", "__rate_interval": "5m"}


def exprs(board: Board) -> list[str]:
    return [it["expr"] for panel in panels(board) for it in panel.get("targets", ())]


def test_the_chart_has_the_dashboards() -> None:
    kept = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert objects("dashboards")["ConfigMap/affinityd-dashboards"]["data"] == kept


def test_a_gpu_on_an_unknown_node_counts_in_no_percentage(tmp_path: Path) -> None:
    shares = [it for it in exprs(NODE) if "remote_cpu_seconds" in it and "/" in it]
    shares = [filled_in(it, CHOSEN) for it in shares if "DCGM" not in it]
    assert len(shares) == 3
    samples = {TOTAL: "0+120x9", FAR: "0+30x9", UNPLACED: "0+600x9"}
    gpu = labels(gpu="0", pci_bus_id="0000:00:00.0")
    answers = [{gpu if "sum by" in it else "{}": 0.25} for it in shares]
    play(tmp_path, *(asked(it, samples, 8, its) for it, its in zip(shares, answers, strict=True)))


def test_a_far_gpu_that_dcgm_reports_idle_is_shown_with_its_pod(tmp_path: Path) -> None:
    """Pod labels may be as honorLabels keeps them, or renamed by Prometheus, or missing."""
    exporter = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}
    renamed = {**exporter, "exported_namespace": "team", "exported_pod": "train-1"}
    samples = {
        util(0, namespace="team", pod="train-0"): "5x9",
        util(1, **renamed): "0x9",
        util(1, **renamed, GPU_I_ID="7"): "19x9",  # two MIG instances: the busier counts
        util(2, **exporter): "1x9",
        util(3, namespace="team", pod="train-3"): "0x5 90x9",
        util(4, namespace="team", pod="train-4"): "0x9",
        util(5, namespace="team", pod="train-5"): "0x9",
    }
    for gpu, is_far in enumerate((1, 1, 1, 1, 0)):
        samples |= far_gpu(gpu, f"{is_far}x9")
    (table,) = (it for it in panels(NODE) if it["title"].startswith("Which GPUs are far"))
    exprs = (filled_in(it["expr"], CHOSEN) for it in table["targets"])
    pods = [labels(gpu=it, namespace="team", pod=f"train-{it}") for it in ("0", "1")]
    pods.append(labels(gpu="2"))
    answers = (dict(zip(pods, values, strict=True)) for values in ((5, 19, 1), (0.25,) * 3))
    both = zip((f"sum without (pci_bus_id) ({it})" for it in exprs), answers, strict=True)
    play(tmp_path, *(asked(it, samples, 8, its) for it, its in both))


def test_traffic_of_a_gpu_s_nics_is_joined_by_node_device_and_port(tmp_path: Path) -> None:
    """node_exporter's series identify the node by a label, or only by the instance."""
    samples = {
        of_gpu("affinityd_gpu_nic_info", gpu, device=device, port="1", link="PIX"): "1x9"
        for gpu, device in ((0, "mlx5_0"), (0, "mlx5_1"), (1, "mlx5_1"))
    }
    counter = "node_infiniband_port_data_received_bytes_total"
    for device, place in (
        ("mlx5_0", {"instance": "gpu07:9100"}),
        ("mlx5_1", {"instance": "10.0.0.7:9100", "node": "gpu07"}),
        ("mlx5_0", {"instance": "gpu07:9100", "job": "scraped-twice"}),
        ("mlx5_0", {"instance": "gpu08:9100"}),
        ("mlx5_9", {"instance": "gpu07:9100"}),
    ):
        samples[f"{counter}{labels(place, device=device, port='1')}"] = "0+60x9"
    samples[f'{counter}{{cluster="b",node="gpu07",device="mlx5_0",port="1"}}'] = "0+900x9"
    (panel,) = (it for it in panels(NODE) if it["title"] == "What do the NICs of each GPU carry?")
    expr = filled_in(panel["targets"][0]["expr"], CHOSEN)
    gpus = [labels(gpu=f"{gpu}", pci_bus_id=f"0000:0{gpu}:00.0") for gpu in (0, 1)]
    play(tmp_path, asked(expr, samples, 8, dict(zip(gpus, (2.0, 1.0), strict=True))))


@EACH
def test_a_count_over_zeros_is_0_and_a_count_without_series_is_missing(
    board: Board, tmp_path: Path
) -> None:
    stats = [panel for panel in panels(board) if panel["type"] == "stat"]
    asking = [filled_in(panel["targets"][0]["expr"], CHOSEN) for panel in stats]
    counting = [it for it in asking if "mismatch" in it or "orphan" in it]
    near = {
        of_gpu("affinityd_gpu_orphan_processes"): "0x9",
        of_gpu("affinityd_gpu_numa_mismatch", cause="mask"): "0x9",
    }
    assert len(counting) >= 2
    play(tmp_path, *(asked(it, near, 8, {"{}": 0}) for it in counting))
    elsewhere = {of_gpu("affinityd_gpu_audited"): "0x9"}
    play(tmp_path, *(asked(it, elsewhere, 8, {}) for it in asking))


@EACH
def test_each_query_has_the_chosen_cluster_and_scrape_jobs(board: Board) -> None:
    for expr in exprs(board):
        selected = re.findall(r"(?:[\w:]*affinityd[\w:]*|\bup)\b({[^}]*})?", expr)
        assert selected, expr
        assert all(it.startswith('{cluster="$cluster",job=~"$job",node') for it in selected), expr
    variables = {it["name"]: it for it in board["templating"]["list"]}
    assert list(variables)[:4] == ["datasource", "cluster", "job", "node"]
    assert variables["cluster"]["query"]["query"] == "label_values(affinityd_build_info, cluster)"
    # The variable offers only scrape jobs whose targets are daemons.
    jobs = 'label_values(affinityd_build_info{cluster="$cluster"}, job)'
    assert (variables["job"]["query"]["query"], variables["job"]["multi"]) == (jobs, True)
    assert "allValue" not in variables["job"]  # it would match `up` of every job
    asking = [target for panel in panels(board) for target in panel.get("targets", ())]
    asking += [it for it in variables.values() if it["type"] == "query"]
    prometheus = {"type": "prometheus", "uid": "${datasource}"}
    assert [it["datasource"] for it in asking] == [prometheus] * len(asking)


@EACH
def test_links_lead_to_existing_dashboards(board: Board) -> None:
    urls = re.findall(r'"url": "([^"]*)"', json.dumps(board))
    chosen = "?${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}"
    assert all(chosen in url for url in urls)
    uids = {f"/d/{it['uid']}" for it in BOARDS.values()}
    assert set() < {url.partition("?")[0] for url in urls} <= uids


# The GPU-hours of the fleet dashboard's table of jobs, played by promtool.

WINDOW, NOW = 7200, 80  #: the seconds of the window, and the minute of the query
SLURM = {"scheduler": "slurm", "job_id": "4711"}
POD = {"scheduler": "kubernetes", "job_id": "8a1f", "namespace": "team", "pod": "train-0"}
GOOD = {"scheduler": "slurm", "job_id": "4712"}
HOUR = "0+60x60 3600x5 stale"  #: an hour on one GPU; five minutes later the daemon forgets the job


def daemon_series(
    place: Mapping[str, str], job: Mapping[str, str], held: str, **far: str
) -> Series:
    """Return a daemon's series of a job: the seconds on GPUs, and the far seconds by cause."""
    name, names = "affinityd_job_{}gpu_seconds_total", {**place, **job}
    by_cause = {cause: far.get(cause, "0x65 stale") for cause in ("allocation", "mask")}
    return {f"{name.format('')}{labels(names)}": held} | {
        f"{name.format('mismatched_')}{labels(names, cause=cause)}": text
        for cause, text in by_cause.items()
    }


#: A job on two nodes. After half an hour GPU08's daemon restarts, and has a new address.
SPANS = {
    **daemon_series(GPU07, SLURM, "0+120x60 7200x5 stale", allocation="0+120x60 7200x5 stale"),
    **daemon_series(GPU08, SLURM, "0+60x30 stale", mask="0+60x30 stale"),
    **daemon_series(
        {**GPU08, "instance": "c"},
        SLURM,
        "_x31 0+60x30 1800x5 stale",
        mask="_x31 0+60x30 1800x5 stale",
    ),
}
#: A job whose daemon restarts at the same address; the job's second half hour is near.
RESTARTS = daemon_series(GPU07, POD, "0+60x30 0+60x30 1800x5 stale", mask="0+60x30 0x36 stale")
PLAYED = {**SPANS, **RESTARTS, **daemon_series(GPU08, GOOD, HOUR)}


def test_gpu_hours_survive_restarts_and_new_addresses(tmp_path: Path) -> None:
    chosen = {"$cluster": "", "$job": "affinityd", "$node": ".*", "$__range": f"{WINDOW}s"}
    (table,) = (it for it in panels(FLEET) if it["title"].startswith("Which jobs were placed far"))
    rows = [
        labels(SLURM, cause="allocation"),
        labels(SLURM, cause="mask"),
        labels(POD, cause="mask"),
    ]
    answers = ((2, 1, 0.5), (0.7, 0.3, 0.5), (1, 1, 1))  # hours, their share, nodes
    both_clusters, tests = {**PLAYED, **clustered(PLAYED, "east")}, []
    for target, values in zip(table["targets"], answers, strict=True):
        expr = target["expr"].replace("$job_id", ".*")
        for name, value in chosen.items():
            expr = expr.replace(name, value)
        expected = dict(zip(rows, values, strict=True))
        tests.append(asked(f"round({expr}, 0.1)", both_clusters, NOW, expected))
    play(tmp_path, *tests)
