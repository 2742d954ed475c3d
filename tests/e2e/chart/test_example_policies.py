"""The example policies: their schemas, which pods they change, and what they add."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.chart import crds, jmespaths, tools
from tests.e2e.chart.pod_security import against_baseline, against_restricted
from tests.e2e.chart.rendering import CHART, Object

EXAMPLES = CHART.parents[1] / "examples"
ADMISSION = EXAMPLES / "policies" / "mutating-admission-policy.yaml"
KYVERNO = EXAMPLES / "policies" / "kyverno.yaml"

POLICY, BINDING = yaml.safe_load_all(ADMISSION.read_text())
CLUSTER_POLICY = yaml.safe_load(KYVERNO.read_text())
BY_FOLDER, BY_SERVICE = CLUSTER_POLICY["spec"]["rules"]
EXPRESSIONS = {it["name"]: it["expression"] for it in POLICY["spec"]["variables"]}
CONDITIONS = {it["name"]: it["expression"] for it in POLICY["spec"]["matchConditions"]}
ONE_GPU = yaml.safe_load((EXAMPLES / "one-gpu.yaml").read_text())["spec"]

EACH_RULE = pytest.mark.parametrize("rule", [BY_FOLDER, BY_SERVICE], ids=lambda it: it["name"])


def added(rule: Mapping[str, Any]) -> Any:  # noqa: ANN401 - YAML
    """Return the part of a pod's spec that a rule of Kyverno's merges into it."""
    return rule["mutate"]["foreach"][1]["patchStrategicMerge"]["spec"]


def conditions(rule: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return all conditions of a rule: those of the pod, then those of its containers."""
    of_containers = (it["preconditions"]["all"] for it in rule["mutate"]["foreach"])
    return [*rule["preconditions"]["all"], *(it for those in of_containers for it in those)]


def selected(rule: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    (it,) = rule["match"]["any"]
    expressions: list[Mapping[str, Any]] = it["resources"]["namespaceSelector"]["matchExpressions"]
    return expressions


@pytest.mark.parametrize(
    ("version", "api"), [("1.36", "v1"), ("1.35", "v1beta1"), ("1.34", "v1beta1")]
)
def test_kubernetes_knows_every_field_of_the_admission_policy(
    version: str, api: str, tmp_path: Path
) -> None:
    text = ADMISSION.read_text().replace("k8s.io/v1\nkind", f"k8s.io/{api}\nkind")
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr).count(" passed for ") == 2, done.stdout + done.stderr
    assert f"admissionregistration.k8s.io/{api}" in ADMISSION.read_text()


def faults(document: Object) -> list[str]:
    return tools.judged(crds.__file__, tools.CRDS, [document])


def test_kyverno_knows_every_field_of_its_policy() -> None:
    assert faults(CLUSTER_POLICY) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("mutate", {"forEach": []}), ("match", {"any": [{"resource": {}}]}), ("precondition", {})],
)
def test_kyvernos_schema_tells_of_a_fault(name: str, wrong: Mapping[str, Any]) -> None:
    spec = {**CLUSTER_POLICY["spec"], "rules": [{**BY_FOLDER, name: wrong}]}
    (fault,) = faults({**CLUSTER_POLICY, "spec": spec})
    assert fault.startswith("ClusterPolicy: $.spec.rules")


@pytest.mark.parametrize(
    ("resource", "is_gpu"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("amd.com/gpu", True),
        ("gpu.example.org/gpu", True),
        ("nvidia.com/hostdev", False),
        ("example.org/nvidia.com-gpus", False),
        ("cpu", False),
        ("memory", False),
    ],
)
def test_both_know_a_gpu_by_the_name_of_its_resource(resource: str, is_gpu: bool) -> None:
    for expression in (CONDITIONS["asks-for-a-gpu"], EXPRESSIONS["programs"]):
        (pattern,) = re.findall(r"name\.matches\('(.*?)'\)", expression)
        assert (re.search(pattern.replace(r"\\", "\\"), resource) is not None) == is_gpu
    wanted = [it["value"] for it in conditions(BY_FOLDER) if it["operator"] == "AnyIn"]
    assert all(any(fnmatchcase(resource, it) for it in names) == is_gpu for names in wanted)


GPU_POD: Mapping[str, Any] = {
    "containers": [
        {"name": "side", "volumeMounts": [{"mountPath": "/data"}]},
        {"name": "app", "command": ["a"], "resources": {"limits": {"amd.com/gpu": 1, "cpu": 2}}},
        {"name": "idle", "resources": {"requests": {"cpu": 1}}},
    ],
    "volumes": [{"name": "data"}],
}


def evaluated(keys: Sequence[str], document: object) -> list[object]:
    """Return what Kyverno's variables are."""
    pairs = [(key.removeprefix("{{").removesuffix("}}"), document) for key in keys]
    return [json.loads(it) for it in tools.judged(jmespaths.__file__, tools.JMESPATH, pairs)]


@EACH_RULE
def test_kyvernos_conditions_of_a_pod_are_of_its_resources_names_and_mounts(
    rule: Mapping[str, Any],
) -> None:
    keys = [it["key"] for it in rule["preconditions"]["all"]]
    request = {"request": {"object": {"spec": GPU_POD}}}
    assert evaluated(keys, request) == [["amd.com/gpu", "cpu"], ["data"], ["/data"]]
    bare = {"request": {"object": {"spec": {"containers": [{"name": "app"}]}}}}
    assert evaluated(keys, bare) == [[], [], []]


def test_kyvernos_conditions_of_a_container_are_of_its_resources_and_its_command() -> None:
    command, _ = BY_FOLDER["mutate"]["foreach"]
    keys = [it["key"] for it in command["preconditions"]["all"]]
    found = [evaluated(keys, {"element": it}) for it in GPU_POD["containers"]]
    assert found == [[[], 0], [["amd.com/gpu", "cpu"], 1], [[], 0]]


def test_the_pod_gets_what_the_example_with_one_gpu_has() -> None:
    (init,) = added(BY_FOLDER)["initContainers"]
    (its,) = ONE_GPU["initContainers"]
    assert {name: init[name] for name in its} == its
    assert added(BY_FOLDER)["volumes"] == ONE_GPU["volumes"]
    (container,) = added(BY_FOLDER)["containers"]
    assert container["volumeMounts"] == ONE_GPU["containers"][0]["volumeMounts"]


def strings(value: object) -> Iterator[str]:
    """Yield all keys and strings of a document."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from (name, *strings(part))
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize(
    ("variable", "parts"),
    [
        ("volumes", [added(BY_FOLDER)["volumes"]]),
        ("mounts", [added(BY_FOLDER)["containers"][0]["volumeMounts"]]),
        (
            "init",
            [
                {
                    **added(BY_SERVICE)["initContainers"][0],
                    "volumeMounts": None,  # the variable `mounts`
                }
            ],
        ),
    ],
)
def test_both_policies_add_the_same(variable: str, parts: list[object]) -> None:
    assert set(re.findall(r"'(.*?)'", EXPRESSIONS[variable])) == set(strings(parts))


def test_where_a_standard_bars_the_folder_the_service_is_asked() -> None:
    barring = ["baseline", "restricted"]
    key = "pod-security.kubernetes.io/enforce"
    assert {"key": key, "operator": "NotIn", "values": barring} in selected(BY_FOLDER)
    assert {"key": key, "operator": "In", "values": barring} in selected(BY_SERVICE)
    assert all(f"'{it}'" in EXPRESSIONS["hasFolder"] for it in (key, *barring))
    assert list(against_baseline(added(BY_SERVICE))) == []
    (init,) = added(BY_SERVICE)["initContainers"]
    assert list(against_restricted({"containers": [init], "volumes": [{"emptyDir": {}}]})) == []
    _, example = yaml.safe_load_all((EXAMPLES / "restricted.yaml").read_text())
    assert init["env"] == example["spec"]["initContainers"][0]["env"]


@EACH_RULE
def test_both_choose_the_same_pods(rule: Mapping[str, Any]) -> None:
    assert BINDING["spec"]["matchResources"] == {
        "namespaceSelector": {"matchLabels": {"affinityd": "on"}}
    }
    assert {"key": "affinityd", "operator": "In", "values": ["on"]} in selected(rule)
    constraints = POLICY["spec"]["matchConstraints"]
    (by_label, by_namespace) = (it["resources"] for it in rule["exclude"]["any"])
    assert constraints["objectSelector"]["matchExpressions"] == [
        {"key": "affinityd", "operator": "NotIn", "values": ["off"]}
    ]
    assert by_label == {"selector": {"matchLabels": {"affinityd": "off"}}}
    (not_in,) = constraints["namespaceSelector"]["matchExpressions"]
    assert (not_in["operator"], not_in["values"]) == ("NotIn", by_namespace["namespaces"])
    assert "kube-system" in not_in["values"]


@EACH_RULE
def test_a_pod_that_has_it_is_left_alone_by_both(rule: Mapping[str, Any]) -> None:
    _, names, mounts = rule["preconditions"]["all"]
    taken = {*names["value"], *mounts["value"]}
    assert {names["operator"], mounts["operator"]} == {"AllNotIn"}
    assert set(re.findall(r"'(.*?)'", CONDITIONS["has-nothing-of-it"])) == taken
    ours = added(BY_FOLDER)
    both = [*ours["volumes"], *ours["initContainers"]]
    assert {it["name"] for it in both} == set(names["value"])
    assert {it["mountPath"] for it in ours["containers"][0]["volumeMounts"]} == set(mounts["value"])


@EACH_RULE
def test_kyverno_prefixes_commands_before_a_merge_may_move_containers(
    rule: Mapping[str, Any],
) -> None:
    command, merge = rule["mutate"]["foreach"]
    (patch,) = yaml.safe_load(command["patchesJson6902"].replace("{{ elementIndex }}", "7"))
    assert patch == {"op": "add", "path": "/spec/containers/7/command/0", "value": "/affinity/run"}
    assert "patchStrategicMerge" in merge


def test_neither_is_the_reason_that_a_pod_is_refused() -> None:
    assert POLICY["spec"]["failurePolicy"] == "Ignore"
    assert CLUSTER_POLICY["spec"]["failurePolicy"] == "Ignore"
    # One patch is applied whole or not at all.
    assert [it["patchType"] for it in POLICY["spec"]["mutations"]] == ["JSONPatch"]
