"""The example manifests: their fields, what they may, and what they say of their cpusets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from affinityd.request.parameters import parse_request
from tests.e2e.chart.pod_security import against_baseline, against_restricted
from tests.e2e.chart.rendering import Object, objects, with_values
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
NAMED = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
GPU = "nvidia.com/gpu"


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def pods(path: Path) -> list[Mapping[str, Any]]:
    return [it["spec"] for it in documents(path) if it["kind"] == "Pod"]


def containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*pod["initContainers"], *pod["containers"]]


def is_guaranteed(pod: Mapping[str, Any]) -> bool:
    """Tell as kubelet does: every container has limits of both, and asks for as much."""
    return all(
        it["resources"]["limits"].get(of) == it["resources"]["requests"].get(of) is not None
        for it in containers(pod)
        for of in ("cpu", "memory")
    )


def test_these_are_the_examples() -> None:
    assert [path.stem for path in EXAMPLES] == [
        *("burstable-shared-pool", "one-gpu", "pytorchjob-pair", "restricted", "torchrun-8gpu"),
    ]


@pytest.mark.parametrize("version", [("-k", "1.28"), ()], ids=["1.28", "newest"])
def test_kubernetes_knows_every_field(version: Sequence[str]) -> None:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", *version]
    command += map(str, EXAMPLES)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(len(documents(path)) for path in EXAMPLES)
    assert (done.stdout + done.stderr).count(" passed for ") == count


@NAMED
def test_it_says_where_its_cpuset_comes_from(path: Path) -> None:
    head = path.read_text().partition("\napiVersion")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "cpuset, by the" in head.replace("\n# ", " ")
    assert "\n#   none    every CPU of the node" in head
    (static,) = (line for line in head.splitlines() if line.startswith("#   static"))
    own = all(is_guaranteed(pod) for pod in pods(path))
    assert ("of its own" in static) == own
    assert ("shared pool" in static) == (not own)
    assert ("is Guaranteed" in head, "is Burstable" in head) == (own, not own)


@NAMED
def test_who_shall_have_cpus_of_its_own_asks_for_whole_ones(path: Path) -> None:
    for pod in pods(path):
        (app,) = pod["containers"]
        assert int(app["resources"]["requests"]["cpu"]) >= 1
        assert app["resources"]["limits"][GPU] == app["resources"]["requests"][GPU] >= 1


@NAMED
def test_the_init_container_is_the_charts_image_and_costs_nothing(path: Path) -> None:
    daemon = objects("default")["DaemonSet/affinityd"]["spec"]["template"]["spec"]
    for pod in pods(path):
        (init,) = pod["initContainers"]
        assert init["image"] == daemon["containers"][0]["image"]
        assert init["args"] == ["init", "--to", "/affinity"]
        assert GPU not in init["resources"]["requests"]
        assert init["resources"]["requests"] == {"cpu": "500m", "memory": "128Mi"}
        for container in containers(pod):
            assert {"name": "affinity", "mountPath": "/affinity"} in container["volumeMounts"]
        (app,) = pod["containers"]
        assert "/affinity/run" in [*app["command"], *app["args"]]


@NAMED
def test_it_says_that_its_image_is_to_be_edited(path: Path) -> None:
    lines = path.read_text().splitlines()
    ours = [number for number, line in enumerate(lines) if "image: localhost/" in line]
    assert len(ours) == len(pods(path))
    for number in ours:
        assert lines[number - 1].strip() == (
            "# To be edited: where you pushed it. The chart's image.repository does not reach jobs."
        )


@NAMED
def test_what_it_chooses_is_what_the_daemon_takes(path: Path) -> None:
    for pod in pods(path):
        said = {it["name"]: it["value"] for it in pod["initContainers"][0].get("env", ())}
        prefix = "AFFINITYD_"
        said.pop(f"{prefix}URL", None)
        pairs = [(name.removeprefix(prefix).lower(), text) for name, text in said.items()]
        assert [getattr(parse_request(pairs).options, name) for name, _ in pairs] == [
            text for _, text in pairs
        ]


@NAMED
def test_it_reaches_the_daemon_by_the_folder_or_by_the_service(path: Path) -> None:
    for pod in pods(path):
        folders = [it["hostPath"] for it in pod["volumes"] if "hostPath" in it]
        variables = {it["name"]: it["value"] for it in pod["initContainers"][0].get("env", ())}
        if path.stem == "restricted":
            assert folders == []
            assert variables["AFFINITYD_URL"] == "http://affinityd.affinityd:9466"
        else:
            assert folders == [{"path": "/run/affinityd", "type": "DirectoryOrCreate"}]
            for container in containers(pod):
                mounts = {it["mountPath"]: it for it in container["volumeMounts"]}
                assert mounts["/run/affinityd"]["readOnly"]


def test_the_url_is_that_of_a_release_in_a_namespace_of_its_name() -> None:
    service = with_values({})["Service/affinityd"]
    (port,) = service["spec"]["ports"]
    url = f"http://{service['metadata']['name']}.affinityd:{port['port']}"
    assert url in (FOLDER / "restricted.yaml").read_text()


@NAMED
def test_what_pod_security_says_of_it(path: Path) -> None:
    for pod in pods(path):
        if path.stem == "restricted":
            assert list(against_restricted(pod)) == []
            assert pod["securityContext"]["runAsUser"] == 1000
            assert all(it["securityContext"]["readOnlyRootFilesystem"] for it in containers(pod))
        else:
            assert list(against_baseline(pod)) == ["hostPath"]


def test_the_namespace_of_the_restricted_pod_enforces_it() -> None:
    namespace, pod = documents(FOLDER / "restricted.yaml")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert pod["metadata"]["namespace"] == namespace["metadata"]["name"]


@NAMED
def test_a_program_keeps_as_many_cpus_as_its_container_asks_for(path: Path) -> None:
    request = {"resourceFieldRef": {"resource": "requests.cpu"}}
    for pod in pods(path):
        (program,) = pod["containers"]
        assert {"name": "AFFINITYD_JOB_CPUS", "valueFrom": request} in program["env"]
        assert program["resources"]["requests"]["cpu"].isdecimal()


def test_the_workers_of_the_pair_find_their_master() -> None:
    service, *both = documents(FOLDER / "pytorchjob-pair.yaml")
    told = [
        {it["name"]: it.get("value") for it in pod["spec"]["containers"][0]["env"]} for pod in both
    ]
    assert [it["RANK"] for it in told] == ["0", "1"]
    assert {it["WORLD_SIZE"] for it in told} == {str(len(both))}
    assert {it["MASTER_ADDR"] for it in told} == {service["metadata"]["name"]}
    assert {it["MASTER_PORT"] for it in told} == {str(service["spec"]["ports"][0]["port"])}
    chosen = [
        service["spec"]["selector"].items() <= it["metadata"]["labels"].items() for it in both
    ]
    assert chosen == [True, False]
