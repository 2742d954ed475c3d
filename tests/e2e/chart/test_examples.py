"""The example manifests: their fields, volumes and labels, and the admission policy."""

import re
from pathlib import Path

import pytest

from tests.e2e.chart.rendering import NAMESPACE, NEWEST, OLDEST, Object, loaded, rendered, validate
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
NAMED = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
URL = "http://affinityd.affinityd:9466"


def documents(path: Path) -> list[Object]:
    return loaded(path.read_text())


@NAMED
def test_every_field_of_an_example_is_known_to_kubernetes(path: Path) -> None:
    validate(documents(path), OLDEST, NEWEST)


@NAMED
def test_no_volume_keeps_the_cluster_autoscaler_from_removing_the_node(path: Path) -> None:
    """Local volumes block the removal, except memory and those that the annotation names."""
    for pod in [it for it in documents(path) if it["kind"] == "Pod"]:
        named = pod["metadata"].get("annotations", {}).get(EVICTABLE, "").split(",")
        for volume in pod["spec"]["volumes"]:
            is_memory = volume.get("emptyDir", {}).get("medium") == "Memory"
            assert is_memory or volume["name"] in named


@pytest.mark.parametrize("path", sorted(FOLDER.glob("nri/*.yaml")), ids=lambda path: path.stem)
def test_pods_made_by_controllers_are_placed_by_their_label(path: Path) -> None:
    assert path.read_text().count('affinityd: "on"') == path.read_text().count("nvidia.com/gpu")
    validate([it for it in documents(path) if it["kind"] == "Job"], OLDEST, NEWEST)


def test_the_restricted_pod_is_in_its_namespace_and_asks_the_chart_s_service() -> None:
    namespace, pod = documents(FOLDER / "restricted.yaml")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert pod["metadata"]["namespace"] == namespace["metadata"]["name"]
    url = URL.replace(".affinityd:", f".{NAMESPACE}:")
    assert f"- {url}\n" in rendered("default")  # an argument of the chart's own test


# The example policy: its schema, and which resources it takes for a GPU.

ADMISSION = (FOLDER / "policies" / "mutating-admission-policy.yaml").read_text()


def test_every_field_of_the_admission_policy_is_known_to_kubernetes() -> None:
    for version, api in ((NEWEST, "v1"), ("1.36", "v1"), ("1.35", "v1beta1"), ("1.34", "v1beta1")):
        assert f"admissionregistration.k8s.io/{api}" in ADMISSION  # the file's first lines name it
        validate(loaded(ADMISSION.replace("k8s.io/v1\nkind", f"k8s.io/{api}\nkind")), version)


GPUS = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "amd.com/gpu")
OTHERS = ("nvidia.com/hostdev", "example.org/nvidia.com-gpus", "cpu")


def test_the_admission_policy_recognizes_a_gpu_by_its_resource() -> None:
    patterns = re.findall(r"name\.matches\('(.*?)'\)", ADMISSION)
    assert len(patterns) == 2
    for pattern in patterns:
        plain = pattern.replace(r"\\", "\\")
        assert [name for name in (*GPUS, *OTHERS) if re.search(plain, name)] == [*GPUS]
