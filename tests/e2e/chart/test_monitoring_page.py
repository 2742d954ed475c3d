"""What pages say of Prometheus: their questions have the answers that they promise."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.chart.promtool import ALERTS, RULES, RUNBOOK, asked, play, promtool
from tests.e2e.chart.series import (
    FLEET,
    GPU07,
    GPU08,
    Series,
    far_gpu,
    labels,
    left,
    mismatch,
    of_gpu,
    remedied,
    util,
)
from tests.support.paths import REPOSITORY

MONITORING, ENFORCE, SLURM = (
    (REPOSITORY / it).read_text()
    for it in ("docs/monitoring.md", "docs/enforce.md", "slurm/README.md")
)

UID = "8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
POD = {"pod": "dcgm-exporter-x7k2p", "exported_pod": "train-0"}
START = "affinityd_gpu_numa_mismatch_start_timestamp_seconds"


def job(name: str, node: Mapping[str, str], job_id: str, scheduler: str = "slurm") -> str:
    pairs = labels(node, scheduler=scheduler, job_id=job_id)
    return f"affinityd_job_{name}_seconds_total{pairs}"


def refused(instance: str, reason: str) -> str:
    return f"affinityd_refused_connections_total{labels(instance=instance, reason=reason)}"


def plans(node: Mapping[str, str], before: str) -> str:
    return f"affinityd_observed_plans_total{labels(node, before=before, after='local')}"


WEEK = {
    remedied("pin", 0): "1x9 _x90",
    remedied("pin", 1): "_x50 1x9",
    remedied("allocation", 1): "1x9",
    remedied("pin", 0, "gpu08"): "1x99",
    remedied("neither", 2): "1x99",
}

Question = tuple[Series, int, Mapping[str, float]]  #: samples, minutes, answers

#: The questions of each page, in their order.
OF_MONITORING: tuple[Question, ...] = (
    (  # a job's share
        {
            job("cpu", GPU07, "4711"): "0+60x70",
            job("cpu", GPU08, "4711"): "0+40x70",
            job("remote_cpu", GPU07, "4711"): "0+12x70",
            job("remote_cpu", GPU08, "4711"): "0x70",
            job("remote_cpu", GPU08, "4712"): "0+9x70",
        },
        65,
        {labels(job_id="4711"): 0.12},
    ),
    (  # pods by name
        {
            job("remote_cpu", GPU07, UID, "kubernetes"): "0+120x70",
            job("remote_cpu", GPU07, "4711"): "0+12x70",
            f'kube_pod_info{{namespace="team",pod="train-0",uid="{UID}",node="gpu07"}}': "1x70",
            'kube_pod_info{namespace="team",pod="web",uid="other",node="gpu07"}': "1x70",
        },
        65,
        {labels(job_id=UID, namespace="team", pod="train-0"): 2},
    ),
    (  # far for an hour
        {
            mismatch("mask", 0): "1x70",
            mismatch("unpinned", 0): "0x70",
            of_gpu(START, 0): "60x70",
            mismatch("mask", 1): "1x70",
            of_gpu(START, 1): "3000x70",
        },
        65,
        {mismatch("mask", 0): 1},
    ),
    (  # limits
        {
            refused("a", "caller"): "0+1x70",
            refused("a", "head_size"): "0x70",
            refused("b", "caller"): "5x70",
        },
        65,
        {labels(instance="a", reason="caller"): 60},
    ),
    (  # far and idle
        {
            **far_gpu(0, "1x70"),
            **far_gpu(1, "1x70"),
            **far_gpu(2, "0x70"),
            util(0, **POD): "6x70",
            util(1, **POD): "90x63 0x9",
            util(2, **POD): "0x70",
        },
        65,
        {labels(POD, uuid="GPU-0a1f"): 6},
    ),
)
OF_ENFORCE: tuple[Question, ...] = (
    (
        WEEK,
        99,
        {labels(remedy=it): 3 if it == "pin" else 1 for it in ("pin", "allocation", "neither")},
    ),
    (WEEK, 99, {labels(node="gpu07"): 2, labels(node="gpu08"): 1}),
    (
        {
            left("allocation"): "0x9 2x9 0x80",
            left("allocation", 1): "1x99",
            left("orphan"): "0x9 1 0x80",
            left("policy"): "0x99",
            left("young"): "3x99",
            left("waiting"): "1x99",
        },
        99,
        {labels(reason="allocation"): 2, labels(reason="orphan"): 1},
    ),
)
OF_SLURM: tuple[Question, ...] = (
    (
        {
            plans(GPU07, "remote"): "0+2x70",
            plans(GPU08, "remote"): "0+1x70",
            plans(GPU08, "local"): "0+4x70",
        },
        65,
        {labels(after="local", before="remote"): 195, labels(after="local", before="local"): 260},
    ),
)


@pytest.mark.parametrize(
    ("page", "questions"),
    [(MONITORING, OF_MONITORING), (ENFORCE, OF_ENFORCE), (SLURM, OF_SLURM)],
    ids=["monitoring", "enforce", "slurm"],
)
def test_each_question_has_the_answer_that_the_page_says(
    tmp_path: Path, page: str, questions: tuple[Question, ...]
) -> None:
    exprs = re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    play(tmp_path, *(asked(it, *question) for it, question in zip(exprs, questions, strict=True)))


def test_the_alerts_that_pages_name_are_there() -> None:
    named = [set(re.findall(r"`(Affinityd\w+)`", page)) for page in (MONITORING, ENFORCE)]
    assert {*FLEET} < named[0] <= ALERTS.keys()
    assert named[1] == {name for name, it in ALERTS.items() if "affinityd_enforce_" in it["expr"]}


def test_the_command_for_a_page_of_ones_own_changes_every_runbook(tmp_path: Path) -> None:
    (command,) = re.findall(r"^sed .*?[^\\]$", MONITORING, re.MULTILINE | re.DOTALL)
    *words, file = shlex.split(command.replace("\\\n", ""))
    assert REPOSITORY / file == RULES
    copy = shutil.copy(RULES, tmp_path)
    subprocess.run([*words, copy], check=True)
    page = "https://wiki.example.org/gpu/alerts"
    assert Path(copy).read_text() == RULES.read_text().replace(RUNBOOK, page)


def test_the_scrape_configuration_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = re.findall(r"^promtool (.*)$", MONITORING, re.MULTILINE)
    monkeypatch.chdir(REPOSITORY)
    assert "is valid prometheus config file syntax" in promtool(*words.split())
