"""The chart, linted and rendered by helm itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import yaml

from tests.e2e.chart import tools
from tests.support.paths import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "affinityd"
#: One small file an option; a user of the chart may learn from them, too.
OPTIONS = {path.name.removesuffix("-values.yaml"): path for path in (CHART / "ci").iterdir()}
NAMESPACE = "gpu"

Object = Mapping[str, Any]  #: of Kubernetes


def helm(*words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart, with values besides its own."""
    command = [str(tools.helm()), *words, f"--namespace={NAMESPACE}"]
    if values is not None:
        command.append("--values=-")
    return subprocess.run(
        command, input=json.dumps(values), capture_output=True, text=True, check=False
    )


@cache
def rendered(option: str) -> str:
    """Return the manifests of one of the options, as `helm template` prints them."""
    done = helm("template", "affinityd", str(CHART), f"--values={OPTIONS[option]}")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(option: str) -> dict[str, Object]:
    """Return the objects of one of the options, by KIND/NAME."""
    return by_name(yaml.safe_load_all(rendered(option)))


def with_values(values: Mapping[str, Any]) -> dict[str, Object]:
    """Return the objects that the chart makes of these values."""
    done = helm("template", "affinityd", str(CHART), values=values)
    assert (done.returncode, done.stderr) == (0, "")
    return by_name(yaml.safe_load_all(done.stdout))


def refusal(values: Mapping[str, Any]) -> str:
    """Return what helm says against these values; it must refuse them."""
    done = helm("template", "affinityd", str(CHART), values=values)
    assert done.returncode != 0, done.stdout
    return done.stderr


def by_name(documents: Iterable[Object | None]) -> dict[str, Object]:
    """Return objects by KIND/NAME; no two may have one name."""
    named = [(f"{it['kind']}/{it['metadata']['name']}", it) for it in documents if it]
    assert len(dict(named)) == len(named)
    return dict(named)


def daemon_set(option: str) -> Object:
    """Return the DaemonSet of an option."""
    return next(it for it in objects(option).values() if it["kind"] == "DaemonSet")


def pod(option: str) -> Any:  # noqa: ANN401 - YAML
    """Return the spec of the daemon's pod."""
    return daemon_set(option)["spec"]["template"]["spec"]


def container(option: str) -> Any:  # noqa: ANN401 - YAML
    """Return the daemon's container."""
    (only,) = pod(option)["containers"]
    return only
