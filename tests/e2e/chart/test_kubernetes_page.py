"""The pages of Kubernetes: one text to install by, commands and values that the chart takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chart.rendering import CHART, by_name, loaded, template
from tests.support.paths import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGE, README = DOCS / "kubernetes.md", CHART / "README.md"
PAGES = [*sorted(DOCS.glob("kubernetes*.md")), DOCS / "monitoring.md", README]
(VALUES,) = loaded((CHART / "values.yaml").read_text())


def section(page: Path, name: str) -> str:
    """Return the text below a heading."""
    (text,) = re.findall(rf"^## {name}\n(.*?)^## ", page.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def test_both_pages_have_one_text_to_install_by() -> None:
    install = section(PAGE, "Install")
    assert "helm install affinityd deploy/helm/affinityd " in install
    own, _, _ = section(README, "Install").partition("\n[The examples]")
    assert install.startswith(own)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command of the pages that gives the chart values: page, and its words."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith(("helm install", "helm upgrade")):
                    yield page.name, shlex.split(line)


@pytest.mark.parametrize(("page", "words"), list(commands()), ids=str)
def test_a_command_is_taken_as_it_is_written(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words[2:6] == ["affinityd", "deploy/helm/affinityd", "--namespace", "affinityd"]
    (tmp_path / "policy.toml").write_text('mode = "node"\n')
    monkeypatch.chdir(tmp_path)
    given = [it for it in words[6:] if it != "--reset-then-reuse-values"]
    made = by_name(loaded(template(*given)))
    assert "DaemonSet/affinityd" in made
    if page == "monitoring.md":
        assert made["ConfigMap/affinityd-dashboards"]
        for name in ("PodMonitor/affinityd", "PrometheusRule/affinityd"):
            assert made[name]["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_each_way_is_written_down_as_a_command() -> None:
    said = [" ".join(words) for _, words in commands()]
    for value in ("image.repository=", "audit.enabled=true", "enforce.mode=observe"):
        assert [it for it in said if value in it], value


def test_pages_name_values_that_there_are() -> None:
    tops = "|".join(it for it in VALUES if isinstance(VALUES[it], dict))
    for page in PAGES:
        for name in re.findall(rf"`((?:{tops})\.(?!json)[\w.]+)", page.read_text()):
            found = VALUES
            for part in name.split("."):
                assert part in found, name
                found = found[part]
