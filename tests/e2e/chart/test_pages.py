"""PromQL on the pages: each query returns what the page promises."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from docs.check.blocks import BLOCKS
from tests.e2e.chart.promtool import (
    ALERTS,
    RULES,
    RUNBOOK,
    Series,
    asked,
    far_gpu,
    labels,
    play,
    promtool,
    util,
)
from tests.e2e.chart.rendering import CHART, by_name, loaded, template
from tests.support.paths import REPOSITORY

MONITORING, SLURM = (
    (REPOSITORY / it).read_text() for it in ("docs/monitoring.md", "slurm/README.md")
)


def read(text: str) -> dict[str, str]:
    return dict(re.split(r" {2,}", f"affinityd_{line}") for line in text.strip().splitlines())


SHARE = read("""
job_cpu_seconds_total{node="gpu07",job_id="4711"}         0+60x70
job_cpu_seconds_total{node="gpu08",job_id="4711"}         0+40x70
job_remote_cpu_seconds_total{node="gpu07",job_id="4711"}  0+12x70
job_remote_cpu_seconds_total{node="gpu08",job_id="4711"}  0x70
job_remote_cpu_seconds_total{node="gpu08",job_id="4712"}  0+9x70
""")
OF_PODS = {
    'kube_pod_info{namespace="team",pod="train-0",uid="8a1f",node="gpu07"}': "1x70",
    'kube_pod_info{namespace="team",pod="web",uid="other",node="gpu07"}': "1x70",
} | read("""
job_remote_cpu_seconds_total{node="gpu07",scheduler="kubernetes",job_id="8a1f"}  0+120x70
job_remote_cpu_seconds_total{node="gpu07",scheduler="slurm",job_id="4711"}       0+12x70
""")
FOR_AN_HOUR = read("""
gpu_numa_mismatch{instance="a",gpu="0",cause="mask"}                 1x70
gpu_numa_mismatch{instance="a",gpu="0",cause="unpinned"}             0x70
gpu_numa_mismatch_start_timestamp_seconds{instance="a",gpu="0"}      60x70
gpu_numa_mismatch{instance="a",gpu="1",cause="mask"}                 1x70
gpu_numa_mismatch_start_timestamp_seconds{instance="a",gpu="1"}      3000x70
""")
REFUSED = read("""
refused_connections_total{instance="a"}  0+1x70
refused_connections_total{instance="b"}  5x70
""")
PLANS = read("""
observed_plans_total{node="gpu07",before="remote",after="local"}  0+2x70
observed_plans_total{node="gpu08",before="remote",after="local"}  0+1x70
observed_plans_total{node="gpu08",before="local",after="local"}   0+4x70
""")
POD = {"pod": "dcgm-exporter-x7k2p", "exported_pod": "train-0"}
IDLE = {util(0, **POD): "6x70", util(1, **POD): "90x63 0x9", util(2, **POD): "0x70"}
IDLE |= {**far_gpu(0, "1x70"), **far_gpu(1, "1x70"), **far_gpu(2, "0x70")}
#: For each query on docs/monitoring.md, in the page's order: the series, and the query's answer.
MONITORED = (
    (SHARE, {labels(job_id="4711"): 0.12}),
    (OF_PODS, {labels(job_id="8a1f", namespace="team", pod="train-0"): 2}),
    (FOR_AN_HOUR, {'affinityd_gpu_numa_mismatch{instance="a",gpu="0",cause="mask"}': 1}),
    (REFUSED, {labels(instance="a"): 60}),
    (IDLE, {labels(POD, uuid="GPU-0a1f"): 6}),
)
OF_PLANS = {labels(after="local", before=it): by for it, by in (("remote", 195), ("local", 260))}


@pytest.mark.parametrize(
    ("page", "questions"),
    [(MONITORING, MONITORED), (SLURM, [(PLANS, OF_PLANS)])],
    ids=["monitoring", "slurm"],
)
def test_each_query_returns_what_the_page_says(
    tmp_path: Path, page: str, questions: tuple[tuple[Series, Mapping[str, float]]]
) -> None:
    exprs = re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    both = zip(exprs, questions, strict=True)
    play(tmp_path, *(asked(expr, series, 65, answers) for expr, (series, answers) in both))


def test_alerts_named_on_pages_exist() -> None:
    named = set(re.findall(r"`(Affinityd\w+)`", MONITORING))
    assert set() < named <= ALERTS.keys()


def test_the_page_s_sed_command_changes_every_runbook_url(tmp_path: Path) -> None:
    (command,) = re.findall(r"^sed .*?[^\\]$", MONITORING, re.MULTILINE | re.DOTALL)
    *words, file = shlex.split(command.replace("\\\n", ""))
    assert REPOSITORY / file == RULES
    copy = shutil.copy(RULES, tmp_path)
    subprocess.run([*words, copy], check=True)
    page = "https://wiki.example.org/gpu/alerts"
    assert Path(copy).read_text() == RULES.read_text().replace(RUNBOOK, page)


def test_the_scrape_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = re.findall(r"^promtool (.*)$", MONITORING, re.MULTILINE)
    monkeypatch.chdir(REPOSITORY)
    assert "is valid prometheus config file syntax" in promtool(*words.split())


# Each alert's runbook_url leads to docs/alerts.md, which says what to look at and what to do.


ALERTS_PAGE = (REPOSITORY / "docs" / "alerts.md").read_text()
SECTIONS = {
    heading: text
    for heading, _, text in (it.partition("\n\n") for it in ALERTS_PAGE.split("\n## ")[1:])
}


def test_each_runbook_url_leads_to_the_heading_of_its_alert() -> None:
    assert list(SECTIONS) == list(ALERTS)
    assert RUNBOOK.endswith("/docs/alerts.md")
    assert len(ALERTS) <= 18
    for name, alert in ALERTS.items():
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"
        assert len(SECTIONS[name].splitlines()) <= 10


def test_the_panels_named_on_a_page_are_on_the_dashboards() -> None:
    boards = "".join(it.read_text() for it in (CHART / "dashboards").iterdir())
    named = re.findall(r"(?<![*\w])\*([A-Za-z][^*]+)\*(?!\*)", ALERTS_PAGE)
    assert len(named) >= 3
    assert [panel for panel in named if f'"{panel}"' not in boards] == []


# The pages about Kubernetes: the chart accepts their commands, and has the values they name.

DOCS = REPOSITORY / "docs"
README = CHART / "README.md"
PAGES = [*sorted(DOCS.glob("kubernetes*.md")), DOCS / "monitoring.md", README]
(VALUES,) = loaded((CHART / "values.yaml").read_text())


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the words of each command that installs or upgrades the chart."""
    for block in BLOCKS:
        if REPOSITORY / block.page in PAGES and block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith(("helm install", "helm upgrade")):
                    yield block.page, shlex.split(line)


@pytest.mark.parametrize(("page", "words"), list(commands()), ids=str)
def test_each_chart_command_is_accepted_as_written(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words[2:6] == ["affinityd", "deploy/helm/affinityd", "--namespace", "affinityd"]
    monkeypatch.chdir(tmp_path)
    options = [it for it in words[6:] if it != "--reset-then-reuse-values"]
    made = by_name(loaded(template(*options)))
    assert "DaemonSet/affinityd" in made
    if page == "docs/monitoring.md":
        assert made["ConfigMap/affinityd-dashboards"]
        for name in ("PodMonitor/affinityd", "PrometheusRule/affinityd"):
            assert made[name]["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_pages_name_only_existing_values() -> None:
    tops = "|".join(it for it in VALUES if isinstance(VALUES[it], dict))
    for page in PAGES:
        for name in re.findall(rf"`((?:{tops})\.(?!json)[\w.]+)", page.read_text()):
            value = VALUES
            for part in name.split("."):
                assert part in value, name
                value = value[part]
