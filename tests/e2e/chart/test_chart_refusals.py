"""The schema refuses typos; the chart refuses contradictory values, and names a remedy."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from affinityd.kubernetes.nri.choices import CHOICES
from affinityd.planner.modes import MODES
from affinityd.request.environment import NIC_VARIABLES
from tests.e2e.chart.rendering import CHART, OPTIONS, helm, loaded, objects, pod, refusal, rendered
from tests.support.paths import DATA
from tests.support.tables import table

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
(VALUES,) = loaded((CHART / "values.yaml").read_text())


def test_each_typo_is_refused_and_named() -> None:
    rows = table("chart-typos.tsv")
    message = refusal(" ".join(value for value, _ in rows))
    findings = re.findall(r"^ *- at ('.*': (?!validation failed).*)", message, re.MULTILINE)
    shortened = re.sub(r" pattern '.*|, '.*(?=\n)|, false(?=\n)", "", "\n".join(findings) + "\n")
    assert sorted(shortened.splitlines()) == sorted(
        message.removesuffix(", …") for _, message in rows
    )


@pytest.mark.parametrize(("values", "said"), table("chart-contradictions.tsv"))
def test_the_refusal_of_contradictory_values_names_a_remedy(values: str, said: str) -> None:
    assert f": {said}" in refusal(values)


def test_the_chart_passes_only_arguments_that_the_daemon_has() -> None:
    templates = CHART / "templates"
    sets = re.findall(r"^ +- (--[a-z-]+)", (templates / "daemonset.yaml").read_text(), re.MULTILINE)
    remedies = re.findall(r'"(--[a-z-]+)" "[;:] ', (templates / "_own.tpl").read_text())
    assert {*remedies} == {*sets, "--node-name", "--pod-resources", "--socket"}  # set by variables


@pytest.mark.parametrize(
    "values",
    [
        r"""affinity.podAntiAffinity.a= updateStrategy.rollingUpdate.maxUnavailable=100%
        resources.limits.nvidia\.com/gpu=1 resources.limits.memory=1Gi
        extraArgs={--root=/captured,--listening} settings.reservedCpus=0-30:2\,64
        image.repository=registry.example.org:5000/hpc_x/affinity--d
        socket.hostPath=/var/lib/k8s.io/site-affinityd-a
        extraEnv[0].name=NVIDIA_VISIBLE_DEVICES extraEnv[0].value=void
        extraVolumes[0].name=mine extraVolumes[0].emptyDir.medium=
        extraVolumeMounts[0].name=mine extraVolumeMounts[0].mountPath=/run/affinityd-mine
        podLabels.app\.kubernetes\.io/version=a podLabels.team=gpu commonLabels.team=hpc""",
        """gpuNodeLabels=null image.repository=affinityd
        updateStrategy.type=OnDelete updateStrategy.rollingUpdate.maxUnavailable=0""",
    ],
)
def test_unusual_values_are_accepted(values: str) -> None:
    assert "DaemonSet/affinityd" in objects(values)


def test_a_namespace_s_choices_are_those_that_the_daemon_accepts() -> None:
    nri = SCHEMA["properties"]["kubernetes"]["properties"]["nri"]["properties"]
    (namespace,) = nri["namespaces"]["patternProperties"].values()
    choices = namespace["properties"]
    assert tuple(choices) == CHOICES
    assert choices["mode"]["enum"] == [*MODES]
    library = f"({'|'.join(NIC_VARIABLES)})"
    assert choices["nics"]["pattern"] == f"^(none|{library}([,+]{library})*)$"


def names(value: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - YAML of any shape
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{path}/{name}"
        yield from names(inner, f"{path}/{name}")


def properties(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    for name, part in schema.get("properties", {}).items():
        if part == {"$ref": "#/definitions/removed"}:
            continue
        yield f"{path}/{name}"
        yield from properties(part, f"{path}/{name}")


def test_every_value_that_can_be_set_is_in_values_yaml_with_its_default() -> None:
    optional = ("/enabled", "/affinity/", "/seLinuxOptions/", "/nodeSelector/")
    settable = {path for path in properties(SCHEMA) if not path.startswith(optional)}
    free = ("/nodeSelector/", "/resources/", "/dashboards/labels/")
    resources = {"/resources/requests", "/resources/limits"}
    assert settable == {path for path in names(VALUES) if not path.startswith(free)} | resources


def test_every_value_is_used_in_a_values_file_of_ci() -> None:
    tried = {
        path
        for file in OPTIONS.values()
        for text in loaded(file.read_text())
        for path in names(text)
    }
    values = {*names(VALUES)}
    assert values - tried == {"/nodeSelector/kubernetes.io/os"}
    folders = {path.rpartition("/")[0] for path in values}
    assert len(values - folders) <= 70, "leaves"
    assert len(OPTIONS) <= 20


def test_values_that_yaml_would_read_as_comments_or_numbers_are_quoted() -> None:
    values = """kubernetes.nri.enabled=true 'kubernetes.nri.socketFolder=/run/nri #x'
        kubernetes.podResources=true 'kubernetes.kubeletRoot=/kubelet #x'
        'socket.hostPath=/run/affinityd #x' gpuNodeLabels={1e3}"""
    paths = {volume["hostPath"]["path"] for volume in pod(values)["volumes"]}
    assert paths > {"/run/nri #x", "/kubelet #x/pod-resources", "/run/affinityd #x"}
    assert '"key": "1e3"' in json.dumps(pod(values)["affinity"])


def test_values_of_0_2_render_as_today_s_defaults_or_are_refused_in_one_line(
    tmp_path: Path,
) -> None:
    """`--reuse-values` passes the old values to the chart, without new defaults."""
    copy = shutil.copytree(CHART, tmp_path / "chart")
    (earlier,) = loaded((DATA / "chart-values-0.2.yaml").read_text())

    def render(**kubernetes: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401 - YAML
        (copy / "values.yaml").write_text(json.dumps({**earlier, "kubernetes": kubernetes}))
        return helm("template", "affinityd", str(copy))

    assert render(**earlier["kubernetes"]).stdout == rendered("default")
    nri = {**earlier["kubernetes"]["nri"], "enabled": True, "namespaces": ["a", "b"]}
    assert "--nri-namespaces=a,b\n" in render(**{**earlier["kubernetes"], "nri": nri}).stdout
    said = render(podResources=False).stderr.splitlines()[0]
    assert "kubernetes.kubeletRoot has no value: set it; or, " in said
    assert "--reset-then-reuse-values instead" in said
