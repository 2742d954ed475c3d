"""The daemon learns from a real kubelet which pod has which GPUs and CPUs."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.kubernetes import cluster as of_cluster
from tests.e2e.kubernetes import two_nodes
from tests.e2e.kubernetes.chart import installed
from tests.e2e.kubernetes.cluster import KUBELET, POD_RESOURCES, Cluster, kubelet_plugin, running
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually, free_port
from tests.support.scanning_node import ScanningNode, scanning, uuid
from tests.support.tiny import CPUS

pytestmark = needs_cpuset

SHARED, EXCLUSIVE = CPUS  #: the CPU of kubelet's shared pool, and the CPU that kubelet gives a pod
FAR_GPU, DRA_GPU = 0, 2  #: of tests/support/scanning_node: 0 is near SHARED, 2 near EXCLUSIVE
REMEDY = (
    f"GPU {FAR_GPU} is on node {SHARED}, near CPUs {SHARED}, and kubelet gave default/far the "
    f"exclusive CPU {EXCLUSIVE}, no CPU there: set kubelet's topologyManagerPolicy: "
    "single-numa-node (or restricted), and start the pod again"
)
DRIVER, POOL = "gpu.nvidia.com", "gpus"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a cluster whose only device-plugin GPU is far from the CPUs that kubelet gives."""
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        two_nodes.mount(cluster)
        with two_nodes.kubelet(cluster, topology="best-effort", gpus={uuid(FAR_GPU): 0}):
            yield cluster


@pytest.fixture(scope="module")
def far(cluster: Cluster) -> int:
    """Run a pod on the CPU that is far from its GPU; return its process."""
    amount = {**of_cluster.ONE_CPU, "nvidia.com/gpu": "1"}
    return created(cluster, "far", {"requests": amount, "limits": amount})


@pytest.fixture(scope="module")
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def node(address: str) -> Iterator[ScanningNode]:
    words = ("--pod-resources", str(POD_RESOURCES), "--job-series", "5")
    with scanning(*words, listen=address) as node:
        yield node


def created(cluster: Cluster, name: str, resources: Mapping[str, Any], **more: object) -> int:
    container = {**of_cluster.SLEEPER, "resources": resources}
    return cluster.start_pod(name, {"containers": [container], **more})[0]


def named_process(node: ScanningNode, pid: int) -> Any:  # noqa: ANN401 - a document
    """Return the process's entry in /audit, once its pod is known."""
    processes: list[Any] = []

    def is_named() -> bool:
        processes[:] = [it for it in node.audit()["processes"] if it["pid"] == pid and it["pod"]]
        return bool(processes)

    eventually(is_named, f"process {pid} has its pod")
    return processes[0]


def test_a_pod_that_kubelet_placed_far_has_a_remedy(far: int, node: ScanningNode) -> None:
    node.say({FAR_GPU: [far]})
    process = named_process(node, far)
    assert process["pod"] == {
        "namespace": "default",
        "name": "far",
        "container": "main",
        "exclusive_cpus": f"{EXCLUSIVE}",
    }
    assert process["cause"] == "allocation"
    assert process["remedy"] == REMEDY


def test_a_pod_with_a_gpu_by_dra_is_named(cluster: Cluster, node: ScanningNode) -> None:
    driver = ("/var/lib/kubelet", KUBELET, DRIVER, POOL, f"gpu-{DRA_GPU}")
    with kubelet_plugin("claims", *driver):
        cluster.claim_device(DRIVER, POOL, f"gpu-{DRA_GPU}", "default")
        claims = [{"name": "gpu", "resourceClaimName": "one"}]
        try:
            resources = {"claims": [{"name": "gpu"}]}
            more = {"resourceClaims": claims, "terminationGracePeriodSeconds": 1}
            pid = created(cluster, "by-dra", resources, **more)
            node.say({DRA_GPU: [pid]})
            assert named_process(node, pid)["pod"]["name"] == "by-dra"
        finally:  # without its driver the pod could not end
            cluster.run("kubectl delete pod by-dra --wait")


def test_the_runtime_names_pods_that_share_a_gpu(cluster: Cluster) -> None:
    """Kubelet knows neither these pods' GPU, nor which pod has which time slice of the GPU."""
    pids = {name: created(cluster, name, {}) for name in ("slice-a", "slice-b")}
    runtime = f"--nri={cluster.root}/run/nri/nri.sock"
    words = ("--pod-resources", str(POD_RESOURCES), runtime)
    with scanning(*words, users={DRA_GPU: [*pids.values()]}) as node:
        for name, pid in pids.items():
            named = named_process(node, pid)["pod"].items()
            assert named >= {"namespace": "default", "name": name, "container": "main"}.items()
    cluster.run("kubectl delete pod slice-a slice-b --now")


ASKS = """
import os
from affinityd.kubernetes.pods import containers, list_pods
found = containers(list_pods("/var/lib/kubelet/pod-resources/kubelet.sock"))
print(os.getuid(), *(it.pod for it in found))
"""

#: Only with SYS_PTRACE may a process look at the memory of a process with other capabilities.
LOOKS = """
from affinityd.linux.resident import resident_memory
print(sum(resident_memory({pid}).drawn.values()) > 0)
"""


@pytest.mark.parametrize(
    ("audit", "capabilities"),
    [({}, "0000000000000000"), ({"hostMemory": True}, "0000000000080000")],
)
def test_the_chart_s_daemon_asks_kubelet_and_samples_memory_if_it_may(
    cluster: Cluster, far: int, audit: Mapping[str, bool], capabilities: str
) -> None:
    assert far
    values = {"audit": {"enabled": True, "runtimeClassName": "", **audit}, **two_nodes.VALUES}
    with installed(cluster, {**values, "kubernetes": {"podResources": True}}) as chart:
        name = chart.pod()["metadata"]["name"]
        inside = f"kubectl exec -n {chart.namespace} {name} -c affinityd -i --"
        uid, *pods = cluster.run(f"{inside} python3 -", ASKS).split()
        assert (uid, "far" in pods) == ("0", True)
        assert f"CapEff:\t{capabilities}" in cluster.run(f"{inside} cat /proc/self/status")
        assert cluster.run(f"{inside} python3 -", LOOKS.format(pid=far)) == f"{bool(audit)}\n"
