"""The chart as helm renders it: a process renders each choice of values only once.

`python -m tests.e2e.chart.rendering` writes the golden manifests again; review the difference as a
person who installs the chart would. The golden file of an option has only what the option changes.
"""

import difflib
import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from kubernetes_validate import utils

from affinityd import __version__
from tests.e2e.chart import tools
from tests.support.paths import DATA, REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "affinityd"
#: One small file for each option; the files are also examples for users of the chart.
OPTIONS = {it.name.removesuffix("-values.yaml"): it for it in sorted((CHART / "ci").iterdir())}
NAMESPACE = "gpu"

Object = Mapping[str, Any]  #: an object of Kubernetes


def helm(*words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart; `values` are added to the chart's own."""
    command = [str(tools.helm()), *words, f"--namespace={NAMESPACE}"]
    if values is not None:
        command.append("--values=-")
    return subprocess.run(
        command, input=json.dumps(values), capture_output=True, text=True, check=False
    )


def template(*words: str) -> str:
    """Return the manifests of `helm template`, which must succeed."""
    done = helm("template", "affinityd", str(CHART), *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def chosen(text: str) -> list[str]:
    """Return helm's arguments for an option, or for `NAME=VALUE NAME=VALUE`, as after --set."""
    if text in OPTIONS:
        return [f"--values={OPTIONS[text]}"]
    return [f"--set={it}" for it in shlex.split(text.replace("\\", "\\\\"))]


@cache
def rendered(text: str) -> str:
    """Return the chart's manifests with an option, or with `NAME=VALUE …`."""
    return template(*chosen(text))


@cache
def objects(text: str) -> Mapping[str, Object]:
    return by_name(loaded(rendered(text)))


def refusal(text: str) -> str:
    """Return helm's error for these values, which it must refuse."""
    done = helm("template", "affinityd", str(CHART), *chosen(text))
    assert done.returncode != 0, done.stdout
    return done.stderr


def loaded(text: str) -> list[Object]:
    return [it for it in yaml.load_all(text, Loader=yaml.CSafeLoader) if it]


def by_name(documents: Iterable[Object]) -> Mapping[str, Object]:
    """Return objects by KIND/NAME; no two may have the same name."""
    named = [(f"{it['kind']}/{it['metadata']['name']}", it) for it in documents]
    assert len(dict(named)) == len(named)
    return dict(named)


def daemon_set(text: str) -> Object:
    return next(it for it in objects(text).values() if it["kind"] == "DaemonSet")


def pod(text: str) -> Any:  # noqa: ANN401 - YAML
    return daemon_set(text)["spec"]["template"]["spec"]


def container(text: str) -> Any:  # noqa: ANN401 - YAML
    (only,) = pod(text)["containers"]
    return only


# Kubernetes' own schemas of its objects.

#: The oldest and the newest release of Kubernetes that the chart and the examples support.
OLDEST, NEWEST = "1.28", utils.major_minor(utils.latest_version())

# Without a cache the library would read the same megabytes again for each object.
utils.schema_contents = cache(utils.schema_contents)


def validate(objects: Iterable[Object], *versions: str) -> None:
    """Check objects against the schemas of these releases; unknown fields are errors."""
    for document in objects:
        for version in versions:
            assert utils.validate(document, version, strict=True) == version


# Golden manifests.

#: Replaces the dashboards and rules, which the golden manifests leave out.
_files = re.compile(r"^(  [\w-]+\.json: \|\n|  groups:\n)(?: {4}.*\n)+", re.MULTILINE).sub
_places = re.compile(r"^@@ .* @@$", re.MULTILINE).sub
REMAKE = "python -m tests.e2e.chart.rendering re-makes it"


def golden_path(option: str) -> Path:
    suffix = "yaml" if option == "default" else "diff"
    return DATA / "golden" / "chart" / f"{option}.{suffix}"


def looked_at(option: str) -> str:
    """Return the default manifests, or the changes that another option makes to them."""
    plain = (rendered(it).replace(__version__, "VERSION") for it in ("default", option))
    default, changed = (_files(r"\1", it).splitlines() for it in plain)
    lines = difflib.unified_diff(default, changed, "default", option, lineterm="", n=2)
    return "\n".join(default if option == "default" else [_places("@@", it) for it in lines]) + "\n"


if __name__ == "__main__":
    for option in OPTIONS:
        golden_path(option).write_text(looked_at(option), encoding="utf-8")
