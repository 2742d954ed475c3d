"""Every option of the chart, judged by helm, by Kubernetes' schemas and by the operator's CRDs."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from affinityd import __version__
from tests.e2e.chart import crds, golden, tools
from tests.e2e.chart.rendering import CHART, NAMESPACE, OPTIONS, Object, helm, objects, rendered

EVERY_OPTION = pytest.mark.parametrize("option", sorted(OPTIONS))
CUSTOM = "monitoring.coreos.com/v1"


def is_custom(it: Object) -> bool:
    return bool(it["apiVersion"] == CUSTOM)


def judged(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Let Kubernetes' schemas judge a folder of manifests."""
    files = map(str, sorted(folder.iterdir()))
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", *words, *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def faults(custom: Sequence[Object]) -> list[str]:
    """Let the operator's CRDs judge custom resources."""
    return tools.judged(crds.__file__, tools.CRDS, custom)


@EVERY_OPTION
def test_helm_lints_it(option: str) -> None:
    done = helm("lint", "--strict", str(CHART), f"--values={OPTIONS[option]}")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", [("-k", "1.28"), ()], ids=["1.28", "newest"])
def test_kubernetes_knows_every_field(version: Sequence[str], tmp_path: Path) -> None:
    core = {
        option: [it for it in objects(option).values() if not is_custom(it)] for option in OPTIONS
    }
    for option, those in core.items():
        (tmp_path / f"{option}.yaml").write_text(yaml.safe_dump_all(those))
    done = judged(tmp_path, *version)
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(map(len, core.values()))
    assert (done.stdout + done.stderr).count(" passed for ") == count >= 5 * len(OPTIONS)


def test_prometheus_operator_knows_every_field_of_its_custom_resources() -> None:
    custom = [it for option in OPTIONS for it in objects(option).values() if is_custom(it)]
    assert {it["kind"] for it in custom} == {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    assert faults(custom) == []


FAULTY = [
    ("PodMonitor", {"selector": {}, "podMetricsEndpoint": []}, "'podMetricsEndpoint' was unexp"),
    (
        "ServiceMonitor",
        {"selector": {}, "endpoints": [{"intervall": "1m"}]},
        "'intervall' was unexp",
    ),
    ("ServiceMonitor", {"endpoints": []}, "'selector' is a required property"),
    ("PrometheusRule", {"groups": [{"name": "a", "interval": "1x"}]}, "'1x' does not match"),
]


def test_the_operators_schemas_tell_of_a_fault() -> None:
    about = {"apiVersion": CUSTOM, "metadata": {"name": "a"}}
    told = faults([{**about, "kind": kind, "spec": spec} for kind, spec, _ in FAULTY])
    for (kind, _, said), line in zip(FAULTY, told, strict=True):
        assert line.startswith(f"{kind}: ")
        assert said in line


@EVERY_OPTION
def test_an_option_changes_something(option: str) -> None:
    assert (rendered(option) == rendered("default")) == (option == "default")


@EVERY_OPTION
def test_what_belongs_to_the_release_is_labelled_and_in_its_namespace(option: str) -> None:
    elsewhere = {"PodMonitor", "ConfigMap"}  # where Prometheus and Grafana look
    for it in objects(option).values():
        assert it["metadata"]["labels"]["app.kubernetes.io/instance"] == "affinityd"
        assert it["metadata"]["namespace"] == NAMESPACE or it["kind"] in elsewhere


def test_the_chart_is_of_the_packages_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)


def test_a_catalog_of_charts_finds_its_home_its_sources_and_its_icon() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["sources"] == [about["home"]]
    repository = about["home"].replace("//github.com/", "//raw.githubusercontent.com/")
    branch, _, path = about["icon"].removeprefix(f"{repository}/").partition("/")
    assert branch == "main"
    assert ET.parse(CHART.parents[2] / path).getroot().tag.endswith("}svg")  # noqa: S314 - ours


@pytest.mark.parametrize("option", golden.OPTIONS)
def test_the_manifests_are_those_that_were_looked_at(option: str) -> None:
    assert golden.looked_at(option) == golden.path(option).read_text(), golden.REMAKE


def notes_of(*options: str) -> str:
    """Return what Helm says to whoever installs the chart with these options."""
    dry = ("--dry-run=client", "--output=json")
    done = helm("install", "affinityd", str(CHART), *dry, *options)
    return str(json.loads(done.stdout)["info"]["notes"])


def test_the_notes_name_what_is_there() -> None:
    notes = notes_of()
    daemons = f"--namespace {NAMESPACE}"
    for command in (
        f"kubectl {daemons} rollout status daemonset/affinityd",
        f"kubectl {daemons} exec daemonset/affinityd -- affinityd topology",
        f"kubectl {daemons} port-forward daemonset/affinityd 9465 &",
        "curl 'http://127.0.0.1:9465/plan?gpus=all&format=cpulist'",
        f"helm test affinityd {daemons} --logs",
    ):
        assert f"    {command}\n" in notes
    assert f"AFFINITYD_URL=http://affinityd.{NAMESPACE}:9466" in notes


NOT_SEEN = "that takes a RuntimeClass, audit.runtimeClassName."
NOT_READ = "Environments are not read: AFFINITYD=off in a container is not seen"
OF_NO_USE = "enforce.mode is off, and the other values of enforce count for nothing"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], []),
        (["enforce.readEnvironments=true"], [OF_NO_USE]),
        (["hostPID=true", "enforce.mode=observe"], [NOT_SEEN, NOT_READ]),
        (["audit.enabled=true", "enforce.mode=observe"], [NOT_READ]),
        (["hostPID=true", "enforce.mode=pin", "runtimeClassName=nvidia"], [NOT_READ]),
        (["hostPID=true", "enforce.mode=pin", "enforce.readEnvironments=true"], [NOT_SEEN]),
    ],
    ids=["off", "idle values", "observe", "observe with NVML", "pin", "pin and read"],
)
def test_the_notes_say_what_a_daemon_that_enforces_does_not_see(
    values: list[str], said: list[str]
) -> None:
    notes = notes_of(*(word for value in values for word in ("--set", value)))
    assert [it for it in (NOT_SEEN, NOT_READ, OF_NO_USE) if it in notes] == said
    assert ("affinityd enforce" in notes) == ("enforce.mode=" in str(values))


def test_a_package_has_all_that_is_rendered_and_nothing_of_the_tests(tmp_path: Path) -> None:
    assert helm("package", str(CHART), f"--destination={tmp_path}").returncode == 0
    package = tmp_path / f"affinityd-{__version__}.tgz"
    with tarfile.open(package) as tar:
        assert not [name for name in tar.getnames() if "/ci/" in name]
    values = yaml.safe_load(OPTIONS["everything"].read_text())
    done = helm("template", "affinityd", str(package), values=values)
    assert done.stdout == rendered("everything")


def test_a_chart_may_be_a_part_of_another(tmp_path: Path) -> None:
    parent = {"apiVersion": "v2", "name": "site", "version": "1.0.0"}
    dependency = {"name": "affinityd", "version": __version__, "condition": "affinityd.enabled"}
    (tmp_path / "Chart.yaml").write_text(json.dumps({**parent, "dependencies": [dependency]}))
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "affinityd").symlink_to(CHART)
    values = {"global": {"registry": "example.org"}, "affinityd": {"enabled": True}}
    done = helm("template", "site", str(tmp_path), values=values)
    assert done.returncode == 0, done.stderr
    assert "name: site-affinityd\n" in done.stdout
