"""Namespaces that enforce a Pod Security Standard, and the policy that changes pods for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.kubernetes import examples, two_nodes
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.placed import check, created, pods, prepared
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually

pytestmark = needs_cpuset


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        prepared(tmp_path_factory.mktemp("cluster")) as cluster,
        two_nodes.kubelet(cluster, cpu="none"),
    ):
        yield cluster


def namespace(cluster: Cluster, standard: str, **labels: str) -> str:
    """Make a namespace that enforces a Pod Security Standard."""
    name = "-".join((standard, *labels))
    labels = {"pod-security.kubernetes.io/enforce": standard, **labels}
    metadata = {"name": name, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    cluster.run(f"until kubectl get serviceaccount default -n {name}; do sleep 0.1; done")
    return name


@pytest.mark.parametrize("standard", ["baseline", "restricted"])
def test_a_standard_refuses_the_folder_and_admits_the_service(
    cluster: Cluster, standard: str
) -> None:
    into = namespace(cluster, standard)
    (by_folder,) = pods(cluster, "one-gpu")
    (by_service,) = pods(cluster, "restricted")
    for it in (by_folder, by_service):
        it["metadata"]["namespace"] = into
    refused = cluster.shell("kubectl create --filename -", json.dumps(by_folder))
    assert f'violates PodSecurity "{standard}:latest"' in refused.stderr
    assert '"affinityd"' in refused.stderr  # its volume
    with created(cluster, by_service) as pod:
        (process,) = pod.processes()
        check(process)


def plain(cluster: Cluster, into: str) -> dict[str, Any]:
    """Return the restricted example without anything of affinityd."""
    (pod,) = pods(cluster, "restricted")
    pod["metadata"]["namespace"] = into
    pod["spec"] = {**pod["spec"], "initContainers": [], "volumes": []}
    (app,) = pod["spec"]["containers"]
    app["command"].remove("/affinity/run")
    del app["volumeMounts"], app["env"]
    return pod


def changed(cluster: Cluster, pod: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a document
    """Return a pod as the API server would have it."""
    words = "kubectl create --dry-run=server --output=json --filename -"
    return json.loads(cluster.run(words, json.dumps(pod)))


@pytest.mark.parametrize("standard", ["privileged", "baseline", "restricted"])
def test_the_admission_policy_has_a_pod_placed_that_says_nothing_of_affinityd(
    cluster: Cluster, standard: str
) -> None:
    policy = examples.FOLDER / "policies/mutating-admission-policy.yaml"
    cluster.run(f"kubectl apply --filename {policy}")
    pod = plain(cluster, namespace(cluster, standard, affinityd="on"))
    eventually(lambda: "initContainers" in changed(cluster, pod)["spec"], "the policy is known")
    with created(cluster, pod) as made:
        (process,) = made.processes()
        check(process)
        spec = made.now["spec"]
        by_folder = any("hostPath" in volume for volume in spec["volumes"])
        assert by_folder == (standard == "privileged")
        assert made.now["status"]["qosClass"] == "Guaranteed"
