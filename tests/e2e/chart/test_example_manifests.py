"""The example manifests: their fields, what they may, and what they say of their cpusets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chart.pod_security import against_baseline, against_restricted
from tests.e2e.chart.rendering import NAMESPACE, Object, container, loaded, rendered
from tests.e2e.chart.schemas import NEWEST, OLDEST, validate
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
NAMED = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
GPU = "nvidia.com/gpu"
URL = "http://affinityd.affinityd:9466"


def documents(path: Path) -> list[Object]:
    return loaded(path.read_text())


def pods(path: Path) -> list[Mapping[str, Any]]:
    return [it["spec"] for it in documents(path) if it["kind"] == "Pod"]


def is_guaranteed(pod: Mapping[str, Any]) -> bool:
    """Tell as kubelet does: every container has limits of both, and asks for as much."""
    return all(
        it["resources"]["limits"].get(of) == it["resources"]["requests"].get(of) is not None
        for it in [*pod["initContainers"], *pod["containers"]]
        for of in ("cpu", "memory")
    )


@NAMED
def test_kubernetes_knows_every_field(path: Path) -> None:
    validate(documents(path), OLDEST, NEWEST)


@NAMED
def test_it_says_where_its_cpuset_comes_from(path: Path) -> None:
    head = path.read_text().partition("\napiVersion")[0]
    (static,) = (line for line in head.splitlines() if line.startswith("#   static"))
    own = all(is_guaranteed(pod) for pod in pods(path))
    assert ("of its own" in static, "shared pool" in static) == (own, not own)
    assert ("is Guaranteed" in head, "is Burstable" in head) == (own, not own)


@NAMED
def test_a_program_asks_for_whole_cpus_and_keeps_as_many(path: Path) -> None:
    request = {"resourceFieldRef": {"resource": "requests.cpu"}}
    for pod in pods(path):
        (app,) = pod["containers"]
        assert int(app["resources"]["requests"]["cpu"]) >= 1
        assert app["resources"]["limits"][GPU] == app["resources"]["requests"][GPU] >= 1
        assert {"name": "AFFINITYD_JOB_CPUS", "valueFrom": request} in app["env"]
        assert "/affinity/run" in [*app["command"], *app["args"]]


@NAMED
def test_the_init_container_is_the_charts_image_and_costs_nothing(path: Path) -> None:
    for pod in pods(path):
        (init,) = pod["initContainers"]
        assert init["image"] == container("default")["image"]
        assert init["args"] == ["init", "--to", "/affinity"]
        assert init["resources"]["requests"] == {"cpu": "500m", "memory": "128Mi"}
        for it in (init, *pod["containers"]):
            assert {"name": "affinity", "mountPath": "/affinity"} in it["volumeMounts"]


@NAMED
def test_it_reaches_the_daemon_as_pod_security_lets_it(path: Path) -> None:
    for pod in pods(path):
        folders = [it["hostPath"] for it in pod["volumes"] if "hostPath" in it]
        both = [*pod["initContainers"], *pod["containers"]]
        if path.stem == "restricted":
            assert list(against_restricted(pod)) == folders == []
            assert {"name": "AFFINITYD_URL", "value": URL} in pod["initContainers"][0]["env"]
            assert pod["securityContext"]["runAsUser"] == 1000
            assert all(it["securityContext"]["readOnlyRootFilesystem"] for it in both)
        else:
            assert list(against_baseline(pod)) == ["hostPath"]
            assert folders == [{"path": "/run/affinityd", "type": "DirectoryOrCreate"}]
            mount = {"name": "affinityd", "mountPath": "/run/affinityd", "readOnly": True}
            assert all(mount in it["volumeMounts"] for it in both)


def test_the_restricted_pod_asks_a_release_in_a_namespace_of_its_name() -> None:
    namespace, pod = documents(FOLDER / "restricted.yaml")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert pod["metadata"]["namespace"] == namespace["metadata"]["name"]
    url = URL.replace(".affinityd:", f".{NAMESPACE}:")
    assert f"- {url}\n" in rendered("default")  # an argument of the chart's own test


def test_the_workers_of_the_pair_find_their_master() -> None:
    service, *both = documents(FOLDER / "pytorchjob-pair.yaml")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": service["metadata"]["name"]}
    shared["MASTER_PORT"] = str(service["spec"]["ports"][0]["port"])
    selector = service["spec"]["selector"].items()
    for rank, pod in enumerate(both):
        told = {it["name"]: it.get("value") for it in pod["spec"]["containers"][0]["env"]}
        assert told.items() >= {**shared, "RANK": str(rank)}.items()
        assert (selector <= pod["metadata"]["labels"].items()) == (rank == 0)
    assert len(both) == 2
