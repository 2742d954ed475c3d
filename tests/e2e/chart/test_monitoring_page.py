"""docs/monitoring.md: its questions are answered as it says, its alerts are those there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.e2e.chart.alert_cases import FLEET, GPU07, labels, mismatch, of_gpu
from tests.e2e.chart.dcgm_series import far_gpu, util
from tests.e2e.chart.promtool import RULES, RUNBOOK, promtool, rules, try_rules
from tests.e2e.chart.rendering import CHART, by_name, helm

ROOT = CHART.parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
QUESTIONS = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)

UID = "8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
GPU08 = {**GPU07, "instance": "b", "node": "gpu08"}
POD = {"pod": "dcgm-exporter-x7k2p", "exported_pod": "train-0"}
START = "affinityd_gpu_numa_mismatch_start_timestamp_seconds"


def job(name: str, node: Mapping[str, str], scheduler: str, job_id: str) -> str:
    pairs = {**node, "scheduler": scheduler, "job_id": job_id}
    return f"affinityd_job_{name}_seconds_total{labels(pairs)}"


def refused(instance: str, reason: str) -> str:
    pairs = labels({"instance": instance, "reason": reason})
    return f"affinityd_refused_connections_total{pairs}"


@pytest.mark.parametrize(
    ("number", "series", "answer", "value"),
    [
        (
            0,
            {
                job("cpu", GPU07, "slurm", "4711"): "0+60x70",
                job("cpu", GPU08, "slurm", "4711"): "0+40x70",
                job("remote_cpu", GPU07, "slurm", "4711"): "0+12x70",
                job("remote_cpu", GPU08, "slurm", "4711"): "0x70",
                job("remote_cpu", GPU08, "slurm", "4712"): "0+9x70",
            },
            '{job_id="4711"}',
            0.12,
        ),
        (
            1,
            {
                job("remote_cpu", GPU07, "kubernetes", UID): "0+120x70",
                job("remote_cpu", GPU07, "slurm", "4711"): "0+12x70",
                f'kube_pod_info{{namespace="team",pod="train-0",uid="{UID}",node="gpu07"}}': "1x70",
                'kube_pod_info{namespace="team",pod="web",uid="other",node="gpu07"}': "1x70",
            },
            f'{{job_id="{UID}",namespace="team",pod="train-0"}}',
            2,
        ),
        (
            2,
            {
                mismatch("mask", 0): "1x70",
                mismatch("unpinned", 0): "0x70",
                of_gpu(START, 0): "60x70",
                mismatch("mask", 1): "1x70",
                of_gpu(START, 1): "3000x70",
            },
            mismatch("mask", 0),
            1,
        ),
        (
            3,
            {
                refused("a", "caller"): "0+1x70",
                refused("a", "head_size"): "0x70",
                refused("b", "caller"): "5x70",
            },
            '{instance="a",reason="caller"}',
            60,
        ),
        (
            4,
            {
                **far_gpu(0, "1x70"),
                **far_gpu(1, "1x70"),
                **far_gpu(2, "0x70"),
                util(0, **POD): "6x70",
                util(1, **POD): "90x63 0x9",
                util(2, **POD): "0x70",
            },
            labels({"uuid": "GPU-0a1f", **POD}),
            6,
        ),
    ],
    ids=[
        *("a job's share", "pods by name", "far for an hour", "who comes up against limits"),
        "far and idle",
    ],
)
def test_a_question_has_the_answer_that_the_page_says(
    tmp_path: Path, number: int, series: Mapping[str, str], answer: str, value: float
) -> None:
    samples = [{"labels": answer, "value": value}]
    wanted = {"expr": QUESTIONS[number], "eval_time": "65m", "exp_samples": samples}
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})


def test_every_question_is_tested() -> None:
    marks = test_a_question_has_the_answer_that_the_page_says.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == set(range(len(QUESTIONS)))


def test_the_alerts_that_it_names_are_there() -> None:
    named = set(re.findall(r"`(Affinityd\w+)`", PAGE))
    assert {*FLEET} < named <= {it["alert"] for it in rules("alert")}


def test_the_command_for_a_page_of_ones_own_changes_every_runbook(tmp_path: Path) -> None:
    (command,) = re.findall(r"^sed .*?[^\\]$", PAGE, re.MULTILINE | re.DOTALL)
    *words, file = shlex.split(command.replace("\\\n", ""))
    assert ROOT / file == RULES
    copy = shutil.copy(RULES, tmp_path)
    subprocess.run([*words, copy], check=True)
    page = "https://wiki.example.org/gpu/alerts"
    assert Path(copy).read_text() == RULES.read_text().replace(RUNBOOK, page)


def test_the_scrape_configuration_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = re.findall(r"^promtool (.*)$", PAGE, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert "is valid prometheus config file syntax" in promtool(*words.split())


def test_the_helm_command_makes_monitors_rules_and_dashboards_that_are_selected() -> None:
    (command,) = re.findall(r"^helm upgrade (.*?[^\\])$", PAGE, re.MULTILINE | re.DOTALL)
    done = helm(
        "template",
        "affinityd",
        str(CHART),
        *shlex.split(" ".join(re.findall(r"--set \S+", command))),
    )
    assert (done.returncode, done.stderr) == (0, "")
    made = by_name(yaml.safe_load_all(done.stdout))
    for name in ("PodMonitor/affinityd", "PrometheusRule/affinityd"):
        assert made[name]["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert made["ConfigMap/affinityd-dashboards"]
    pod = made["DaemonSet/affinityd"]["spec"]["template"]["spec"]
    assert (pod["hostPID"], pod["runtimeClassName"]) == (True, "nvidia")


def test_slurm_s_page_asks_what_pins_would_have_changed_on_all_nodes(tmp_path: Path) -> None:
    (query,) = re.findall(r"```promql\n(.*?)```", (ROOT / "slurm/README.md").read_text(), re.DOTALL)
    name = "affinityd_observed_plans_total"
    series = {
        f"{name}{labels({**GPU07, 'before': 'remote', 'after': 'local'})}": "0+2x70",
        f"{name}{labels({**GPU08, 'before': 'remote', 'after': 'local'})}": "0+1x70",
        f"{name}{labels({**GPU08, 'before': 'local', 'after': 'local'})}": "0+4x70",
    }
    samples = [
        {"labels": '{after="local",before="remote"}', "value": 195},
        {"labels": '{after="local",before="local"}', "value": 260},
    ]
    wanted = {"expr": query, "eval_time": "65m", "exp_samples": samples}
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})
