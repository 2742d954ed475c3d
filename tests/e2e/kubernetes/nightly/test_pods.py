"""Pods of a real kubelet, under its policies, in its shared pool, under Pod Security Standards."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.kubernetes import two_nodes
from tests.e2e.kubernetes.cluster import NODE, ONE_CPU, SLEEPER, Cluster
from tests.e2e.kubernetes.placed import FOLDER, check, created, near, pods, prepared
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.scanning_node import scanning
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = needs_cpuset

EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
POOL, EXCLUSIVE = NEAR, FAR  #: the CPU of kubelet's shared pool, and the CPU that a pod can get


#: kubelet's CPU policy and topology policy; the cpuset of a Guaranteed pod with a whole CPU, and
#: whether its GPU is then near.
TABLE = (
    ("none", "none", BOTH, False),
    ("static", "none", EXCLUSIVE, False),
    ("static", "best-effort", EXCLUSIVE, True),
    ("static", "restricted", EXCLUSIVE, True),
    ("static", "single-numa-node", EXCLUSIVE, True),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with prepared(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.parametrize(("cpu", "topology", "own", "is_aligned"), TABLE)
def test_a_program_has_the_near_cpus_of_its_cpuset(
    cluster: Cluster, *, cpu: str, topology: str, own: str, is_aligned: bool
) -> None:
    with two_nodes.kubelet(cluster, cpu=cpu, topology=topology):
        for name in ("one-gpu", "restricted", "pytorchjob-pair"):
            for manifest in pods(cluster, name):
                with created(cluster, manifest) as pod:
                    (process,) = pod.processes()
                    check(process)
                    assert pod.now["status"]["qosClass"] == "Guaranteed"
                    assert process.cpuset == own
                    assert near(process) == process.cpus or not is_aligned
        (manifest,) = pods(cluster, "burstable-shared-pool")
        with created(cluster, manifest) as pod:
            (process,) = pod.processes()
            check(process)
            assert pod.now["status"]["qosClass"] == "Burstable"
            assert process.cpuset == BOTH  # while no other pod has CPUs of its own


# Kubelet changes the shared pool while pods run, and the audit sees the change.

_, SECOND = two_nodes.GPUS
SECOND_GPU = {SECOND: 1}  #: a node with one GPU, near the CPU that kubelet gives away


def neighbor() -> dict[str, Any]:
    container = {**SLEEPER, "resources": {"requests": ONE_CPU, "limits": ONE_CPU}}
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "neighbor"}}
    return {**about, "spec": {"containers": [container]}}


def test_a_pin_survives_kubelet_s_updates_of_the_pool(cluster: Cluster) -> None:
    """Since 6.2 the kernel keeps those CPUs of a mask that the pool still contains."""
    (manifest,) = pods(cluster, "burstable-shared-pool")
    with two_nodes.kubelet(cluster, gpus=SECOND_GPU), created(cluster, manifest) as pod:
        (process,) = pod.processes()
        with scanning(users={2: [process.pid]}) as node:

            def causes() -> list[str | None]:
                return [it["cause"] for it in node.audit()["processes"]]

            eventually(lambda: causes() == [None], "it is near its GPU")
            assert process.cpus == EXCLUSIVE
            with created(cluster, neighbor()):
                eventually(lambda: process.cpuset == process.cpus == POOL, "the pool shrinks")
                eventually(lambda: causes() == ["allocation"], "the audit sees it")
            eventually(lambda: process.cpuset == BOTH, "the pool has its CPU again")
            assert process.cpus == EXCLUSIVE
            eventually(lambda: causes() == [None], "it is near its GPU again")


# Namespaces that enforce a Pod Security Standard, and the admission policy for pods in them.


@pytest.fixture(scope="module")
def without_static(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster while kubelet has no static CPU policy."""
    with two_nodes.kubelet(cluster, cpu="none"):
        yield cluster


def namespace(cluster: Cluster, standard: str, **labels: str) -> str:
    name = "-".join((standard, *labels))
    labels = {"pod-security.kubernetes.io/enforce": standard, **labels}
    metadata = {"name": name, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    cluster.run(f"until kubectl get serviceaccount default -n {name}; do sleep 0.1; done")
    return name


@pytest.mark.parametrize("standard", ["baseline", "restricted"])
def test_a_pod_security_standard_admits_only_the_pod_that_uses_the_service(
    without_static: Cluster, standard: str
) -> None:
    into = namespace(without_static, standard)
    (by_folder,) = pods(without_static, "one-gpu")
    (by_service,) = pods(without_static, "restricted")
    for manifest in (by_folder, by_service):
        manifest["metadata"]["namespace"] = into
    refused = without_static.shell("kubectl create --filename -", json.dumps(by_folder))
    assert f'violates PodSecurity "{standard}:latest"' in refused.stderr
    assert '"affinityd"' in refused.stderr  # the name of the refused volume
    with created(without_static, by_service) as pod:
        (process,) = pod.processes()
        check(process)


def plain(cluster: Cluster, into: str) -> dict[str, Any]:
    """Return the restricted example without affinityd's parts."""
    (pod,) = pods(cluster, "restricted")
    pod["metadata"]["namespace"] = into
    pod["spec"] = {**pod["spec"], "initContainers": [], "volumes": []}
    (app,) = pod["spec"]["containers"]
    app["command"].remove("/affinity/run")
    del app["volumeMounts"], app["env"]
    return pod


def changed(cluster: Cluster, pod: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a document
    """Return a pod as the API server would change it."""
    words = "kubectl create --dry-run=server --output=json --filename -"
    return json.loads(cluster.run(words, json.dumps(pod)))


@pytest.mark.parametrize("standard", ["privileged", "baseline", "restricted"])
def test_the_admission_policy_has_a_pod_placed(without_static: Cluster, standard: str) -> None:
    policy = FOLDER / "policies/mutating-admission-policy.yaml"
    without_static.run(f"kubectl apply --filename {policy}")
    pod = plain(without_static, namespace(without_static, standard, affinityd="on"))
    eventually(
        lambda: "initContainers" in changed(without_static, pod)["spec"], "the policy is known"
    )
    with created(without_static, pod) as made:
        (process,) = made.processes()
        check(process)
        spec = made.now["spec"]
        by_folder = any("hostPath" in volume for volume in spec["volumes"])
        assert by_folder == (standard == "privileged")
        assert by_folder == (
            made.now["metadata"].get("annotations", {}).get(EVICTABLE) == "affinityd"
        )
        assert made.now["status"]["qosClass"] == "Guaranteed"


def test_a_drain_asks_only_for_what_the_page_says(without_static: Cluster) -> None:
    (manifest,) = pods(without_static, "one-gpu")
    drain = f"kubectl drain {NODE} --force --ignore-daemonsets --dry-run=server"
    with created(without_static, manifest):
        refused = without_static.shell(drain).stderr
        assert "(use --delete-emptydir-data to override): default/one-gpu" in refused
        assert "default/one-gpu" in without_static.run(f"{drain} --delete-emptydir-data")


GPU = {"nvidia.com/gpu": "1"}
SMALL = {"cpu": "150m", "memory": "96Mi"}


def asking(**spec: Any) -> dict[str, Any]:  # noqa: ANN401 - a document
    """Return a pod with one container, which requests a GPU; fields of `spec` replace the pod's."""
    amounts = {**SMALL, **GPU}
    app = {"name": "app", "image": "app", "command": ["train"], "resources": {"limits": amounts}}
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asking"}}
    return {**about, "spec": {"containers": [app], **spec}}


def test_the_admission_policy_leaves_pods_that_it_could_break(without_static: Cluster) -> None:
    policy = FOLDER / "policies/mutating-admission-policy.yaml"
    without_static.run(f"kubectl apply --filename {policy}")
    into = namespace(without_static, "privileged", affinityd="on", size="small")
    limits = {"limits": [{"type": "Pod", "max": SMALL}]}
    about = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "a", "namespace": into}}
    without_static.apply({**about, "spec": limits})

    def init_containers(pod: dict[str, Any]) -> list[Any]:
        pod["metadata"]["namespace"] = into
        made: list[Any] = changed(without_static, pod)["spec"].get("initContainers", [])
        return made

    eventually(lambda: init_containers(asking()), "the policy is known, and a small pod has room")
    assert init_containers(asking(os={"name": "windows"})) == []
    assert init_containers(asking(nodeSelector={"kubernetes.io/os": "windows"})) == []
    assert init_containers(asking(nodeSelector={"kubernetes.io/os": "linux"})) != []
    assert init_containers(asking(resources={"limits": SMALL})) == []
    plain = {
        "name": "app",
        "image": "app",
        "resources": {"limits": {"cpu": "10m", "memory": "8Mi"}},
    }
    sidecar = {**asking()["spec"]["containers"][0], "name": "sidecar", "restartPolicy": "Always"}
    sidecar["resources"] = {"limits": {"cpu": "10m", "memory": "8Mi", **GPU}}
    ours, theirs = init_containers(asking(containers=[plain], initContainers=[sidecar]))
    assert (ours["name"], theirs["command"]) == ("affinity", ["/affinity/run", "train"])
    assert "/affinity" in [mount["mountPath"] for mount in theirs["volumeMounts"]]
