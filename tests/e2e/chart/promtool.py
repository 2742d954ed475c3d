"""The chart's rules, evaluated by promtool."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.chart.rendering import CHART, loaded
from tests.support.tiny import printed

RULES = CHART / "rules" / "affinityd.yaml"
_rules = [rule for group in loaded(RULES.read_text())[0]["groups"] for rule in group["rules"]]
ALERTS = {it["alert"]: it for it in _rules if "alert" in it}
RECORDS = [it["record"] for it in _rules if "record" in it]
_metrics = loaded((CHART / "values.yaml").read_text())[0]["metrics"]
#: The URL of the page that explains the alerts, from the chart's values.
RUNBOOK: str = _metrics["prometheusRule"]["runbookUrl"]

Series = Mapping[str, str]  #: a series → its samples, one a minute, in promtool's notation
Played = Mapping[str, Any]  #: a group of tests, as promtool reads it


def promtool(*words: str) -> str:
    """Run promtool, which must succeed; return its output."""
    return printed("promtool", *words)


def asked(expr: str, series: Series, minutes: int, answers: Mapping[str, float]) -> Played:
    """Return a test: after `minutes` of these series, a query returns these values."""
    samples = [{"labels": its, "value": value} for its, value in answers.items()]
    wanted = {"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}
    return {**played(series), "promql_expr_test": [wanted]}


def alerted(alert: str, series: Series, minutes: int, summaries: Mapping[str, str]) -> Played:
    """Return a test: the alert fires once for each pair of labels, in JSON, and a summary."""
    rule = ALERTS[alert]
    alerts = [
        {
            "exp_labels": {**rule["labels"], **json.loads(its)},
            "exp_annotations": {**rule["annotations"], "summary": summary},
        }
        for its, summary in summaries.items()
    ]
    wanted = {"alertname": alert, "eval_time": f"{minutes}m", "exp_alerts": alerts}
    return {**played(series), "alert_rule_test": [wanted]}


def played(series: Series) -> Played:
    samples = [{"series": name, "values": text} for name, text in series.items()]
    return {"interval": "1m", "input_series": samples}


def play(folder: Path, *tests: Played) -> None:
    """Have promtool run these tests of the rules; all must pass."""
    assert tests
    (folder / "rules.yaml").write_text(RULES.read_text())
    file = folder / "tests.yaml"
    file.write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
    promtool("test", "rules", str(file))


# Series.

GPU07 = {"job": "affinityd", "instance": "a", "node": "gpu07"}
GPU08 = {**GPU07, "instance": "b", "node": "gpu08"}

#: Alerts about a whole cluster: the value of such an alert is a number of nodes.
FLEET = {"AffinitydUnpinned", "AffinitydNumaBalancingIsOn"}


def labels(pairs: Mapping[str, str] | None = None, **more: str) -> str:
    both = {**(pairs or {}), **more}
    return "{" + ",".join(f'{name}="{text}"' for name, text in both.items()) + "}"


def series(name: str, **more: str) -> str:
    return f"{name}{labels(GPU07, **more)}"


def clustered(played: Series, *clusters: str) -> Series:
    """Return series as a Prometheus that scrapes each of these clusters stores them."""
    return {
        name.replace("{", f'{{cluster="{cluster}",', 1): samples
        for cluster in clusters
        for name, samples in played.items()
    }


def of_gpu(name: str, gpu: int = 0, **more: str) -> str:
    return series(name, gpu=str(gpu), uuid="", pci_bus_id=f"0000:0{gpu}:00.0", **more)


def mismatch(cause: str, gpu: int = 0) -> str:
    return of_gpu("affinityd_gpu_numa_mismatch", gpu, cause=cause)


FAR, TOTAL = (of_gpu(f"affinityd_gpu_{it}cpu_seconds_total") for it in ("remote_", ""))
UNPLACED = of_gpu("affinityd_gpu_cpu_seconds_total", 1)  #: GPU 1's NUMA node is not known


def far_gpu(gpu: int, mismatch: str) -> Series:
    """Return affinityd's series of a GPU, with a quarter of the CPU time far.

    The labels match dcgm-exporter's labels in `util`; no two labels have the same value.
    """
    named = {"gpu": str(gpu), "uuid": f"GPU-{gpu}a1f", "pci_bus_id": f"0000:e{gpu}:00.0"}
    return {
        series("affinityd_gpu_numa_mismatch", **named, cause="mask"): mismatch,
        series("affinityd_gpu_cpu_seconds_total", **named): "0+40x9",
        series("affinityd_gpu_remote_cpu_seconds_total", **named): "0+10x9",
    }


def util(gpu: int, **more: str) -> str:
    named = {"gpu": str(gpu), "UUID": f"GPU-{gpu}a1f", "pci_bus_id": f"00000000:E{gpu}:00.0"}
    return f"DCGM_FI_DEV_GPU_UTIL{labels(named, **more)}"
