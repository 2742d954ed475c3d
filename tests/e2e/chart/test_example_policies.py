"""The example policies: their schemas, which pods they change, and what they add."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jmespath
import pytest
import yaml

from tests.e2e.chart.pod_security import against_baseline, against_restricted
from tests.e2e.chart.rendering import loaded
from tests.e2e.chart.schemas import NEWEST, validate
from tests.support.paths import REPOSITORY

EXAMPLES = REPOSITORY / "deploy" / "examples"
ADMISSION = (EXAMPLES / "policies" / "mutating-admission-policy.yaml").read_text()

POLICY, BINDING = loaded(ADMISSION)
(CLUSTER_POLICY,) = loaded((EXAMPLES / "policies" / "kyverno.yaml").read_text())
BY_FOLDER, BY_SERVICE = CLUSTER_POLICY["spec"]["rules"]
EXPRESSIONS = {it["name"]: it["expression"] for it in POLICY["spec"]["variables"]}
CONDITIONS = {it["name"]: it["expression"] for it in POLICY["spec"]["matchConditions"]}
(ONE_GPU,) = (it["spec"] for it in loaded((EXAMPLES / "one-gpu.yaml").read_text()))

EACH_RULE = pytest.mark.parametrize("rule", [BY_FOLDER, BY_SERVICE], ids=lambda it: it["name"])


def added(rule: Mapping[str, Any]) -> Any:  # noqa: ANN401 - YAML
    """Return the part of a pod's spec that a rule of Kyverno's merges into it."""
    return rule["mutate"]["foreach"][1]["patchStrategicMerge"]["spec"]


def selected(rule: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    (it,) = rule["match"]["any"]
    expressions: list[Mapping[str, Any]] = it["resources"]["namespaceSelector"]["matchExpressions"]
    return expressions


@pytest.mark.parametrize(
    ("version", "api"), [(NEWEST, "v1"), ("1.36", "v1"), ("1.35", "v1beta1"), ("1.34", "v1beta1")]
)
def test_kubernetes_knows_every_field_of_the_admission_policy(version: str, api: str) -> None:
    assert f"admissionregistration.k8s.io/{api}" in ADMISSION  # it says which release has which
    validate(loaded(ADMISSION.replace("k8s.io/v1\nkind", f"k8s.io/{api}\nkind")), version)


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
    ],
)
def test_both_know_a_gpu_by_the_name_of_its_resource(resource: str, is_gpu: bool) -> None:
    for expression in (CONDITIONS["asks-for-a-gpu"], EXPRESSIONS["programs"]):
        (pattern,) = re.findall(r"name\.matches\('(.*?)'\)", expression)
        assert (re.search(pattern.replace(r"\\", "\\"), resource) is not None) == is_gpu
    of_containers = (it["preconditions"]["all"] for it in BY_FOLDER["mutate"]["foreach"])
    conditions = [
        *BY_FOLDER["preconditions"]["all"],
        *(it for all_ in of_containers for it in all_),
    ]
    wanted = [it["value"] for it in conditions if it["operator"] == "AnyIn"]
    assert all(any(fnmatchcase(resource, it) for it in names) == is_gpu for names in wanted)


GPU_POD: Mapping[str, Any] = {
    "containers": [
        {"name": "side", "volumeMounts": [{"mountPath": "/data"}]},
        {"name": "app", "command": ["a"], "resources": {"limits": {"amd.com/gpu": 1, "cpu": 2}}},
        {"name": "idle", "resources": {"requests": {"cpu": 1}}},
    ],
    "volumes": [{"name": "data"}],
}


def evaluated(conditions: Sequence[Mapping[str, Any]], document: object) -> list[object]:
    """Return what Kyverno's variables are: its language is JMESPath."""
    keys = [it["key"].removeprefix("{{").removesuffix("}}") for it in conditions]
    return [jmespath.search(it, document) for it in keys]


@EACH_RULE
def test_kyvernos_conditions_of_a_pod_are_of_its_resources_names_and_mounts(
    rule: Mapping[str, Any],
) -> None:
    conditions = rule["preconditions"]["all"]
    for spec, found in (
        (GPU_POD, [["amd.com/gpu", "cpu"], ["data"], ["/data"]]),
        ({"containers": [{"name": "app"}]}, [[], [], []]),
    ):
        assert evaluated(conditions, {"request": {"object": {"spec": spec}}}) == found


def test_kyvernos_conditions_of_a_container_are_of_its_resources_and_its_command() -> None:
    conditions = BY_FOLDER["mutate"]["foreach"][0]["preconditions"]["all"]
    found = [evaluated(conditions, {"element": it}) for it in GPU_POD["containers"]]
    assert found == [[[], 0], [["amd.com/gpu", "cpu"], 1], [[], 0]]


def test_the_pod_gets_what_the_example_with_one_gpu_has() -> None:
    (init,), (its,) = added(BY_FOLDER)["initContainers"], ONE_GPU["initContainers"]
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


def test_both_policies_add_the_same() -> None:
    by_folder, (init,) = added(BY_FOLDER), added(BY_SERVICE)["initContainers"]
    for variable, part in {
        "volumes": by_folder["volumes"],
        "mounts": by_folder["containers"][0]["volumeMounts"],
        "init": {**init, "volumeMounts": None},  # the variable `mounts`
    }.items():
        assert set(re.findall(r"'(.*?)'", EXPRESSIONS[variable])) == set(strings(part))


def test_where_a_standard_bars_the_folder_the_service_is_asked() -> None:
    barring = ["baseline", "restricted"]
    key = "pod-security.kubernetes.io/enforce"
    assert {"key": key, "operator": "NotIn", "values": barring} in selected(BY_FOLDER)
    assert {"key": key, "operator": "In", "values": barring} in selected(BY_SERVICE)
    assert all(f"'{it}'" in EXPRESSIONS["hasFolder"] for it in (key, *barring))
    assert list(against_baseline(added(BY_SERVICE))) == []
    (init,) = added(BY_SERVICE)["initContainers"]
    assert list(against_restricted({"containers": [init], "volumes": [{"emptyDir": {}}]})) == []
    _, example = loaded((EXAMPLES / "restricted.yaml").read_text())
    assert init["env"] == example["spec"]["initContainers"][0]["env"]


@EACH_RULE
def test_both_choose_the_same_pods(rule: Mapping[str, Any]) -> None:
    chosen = {"namespaceSelector": {"matchLabels": {"affinityd": "on"}}}
    assert BINDING["spec"]["matchResources"] == chosen
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
    patches = yaml.safe_load(command["patchesJson6902"].replace("{{ elementIndex }}", "7"))
    path = "/spec/containers/7/command/0"
    assert patches == [{"op": "add", "path": path, "value": "/affinity/run"}]
    assert "patchStrategicMerge" in merge


def test_neither_is_the_reason_that_a_pod_is_refused() -> None:
    assert POLICY["spec"]["failurePolicy"] == CLUSTER_POLICY["spec"]["failurePolicy"] == "Ignore"
    # One patch is applied whole or not at all.
    assert [it["patchType"] for it in POLICY["spec"]["mutations"]] == ["JSONPatch"]
