"""A real containerd asks the daemon about the containers that it creates."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.adjusted import (
    CHOSEN,
    OTHER,
    container,
    make_namespaces,
    removed,
    serving,
    started,
)
from tests.e2e.kubernetes.cluster import (
    ONE_CPU,
    POD_RESOURCES,
    Cluster,
    Process,
    device_plugin,
    plugin,
    running,
)
from tests.e2e.kubernetes.two_nodes import restart
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.scanning_node import uuid
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = [needs_cpuset, pytest.mark.usefixtures("pods_end")]

GPUS = {uuid(gpu): gpu // 2 for gpu in range(4)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster, plugin(cluster, GPUS):
        make_namespaces(cluster)
        yield cluster


def test_chosen_containers_with_gpus_are_adjusted(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as node:
        job = started(
            cluster,
            "job",
            container("one"),
            container("wide", limit="2", AFFINITYD_LOCALITY="mine"),
            container("plain", gpus=0),
        )
        one, near = job["one"], (NEAR, FAR)[job["one"].gpu // 2]
        assert one.cpus == near
        assert one.told == {
            "AFFINITYD_CPULIST": near,
            "AFFINITYD_ALLOWED": near,
            "AFFINITYD_LOCALITY": "local",
            "AFFINITYD_NODES": str(job["one"].gpu // 2),
            "AFFINITYD_MEMORY_NODES": str(job["one"].gpu // 2),
            "AFFINITYD_JOB_CPUS": "1",
        }
        assert one.has_socket
        assert job["wide"].cpus == BOTH  # never fewer CPUs than its limit
        assert job["wide"].told["AFFINITYD_LOCALITY"] == "mine"
        plain = job["plain"]
        assert (plain.cpus, plain.told, plain.has_socket) == (BOTH, {}, False)

        apart = started(cluster, "apart", container("other"), namespace=OTHER)["other"]
        assert (apart.cpus, apart.told, apart.has_socket) == (BOTH, {}, False)
        labelled = started(cluster, "labelled", container("own"), namespace=OTHER, affinityd="on")[
            "own"
        ]
        assert labelled.cpus == (NEAR, FAR)[labelled.gpu // 2]
        assert not labelled.has_socket  # the site does not list its namespace
        counted = node.samples("nri_requests_total", "outcome")
        expected = {"pinned": 3, "no_gpu": 1, "not_chosen": 1, "failed": 0, "unknown": 0}
        assert {name: counted[name] for name in expected} == expected
    (tmp_path / "later").mkdir()
    with serving(cluster, tmp_path / "later", f"--reserved-cpus={NEAR}") as node:
        pinned = "it knows its own cpusets again, though it would give others now"
        eventually(lambda: node.samples("nri_containers", "state")["pinned"] == 3, pinned)


def test_a_pod_chooses_by_annotations(cluster: Cluster, tmp_path: Path) -> None:
    """Memory is bound only to nodes that the pod may use: the kernel here has only node 0."""
    with serving(cluster, tmp_path):
        choices = {"affinityd/switch": "on", "affinityd/mode": "socket", "affinityd/memory": "near"}
        containers = [container(f"c{number}") for number in range(len(GPUS))]
        job = started(cluster, "wide", *containers, namespace=OTHER, annotations=choices)
        assert [process.cpus for process in job.values()] == [BOTH] * len(GPUS)
        assert {process.told["AFFINITYD_LOCALITY"] for process in job.values()} == {"mixed"}
        removed(cluster)
        seen = {"affinityd/switch": "observe"}
        (watched,) = started(cluster, "watched", container("c"), annotations=seen).values()
        assert (watched.cpus, [*watched.told]) == (BOTH, ["AFFINITYD_UNPINNED"])


def test_a_pod_level_request_counts_for_a_container_without_a_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    one = {**container("one"), "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    amounts = {"cpu": "1500m", "memory": "64Mi"}
    with serving(cluster, tmp_path):
        spec = {"containers": [one], "resources": {"requests": amounts, "limits": amounts}}
        (pid,) = cluster.start_pod("pod-level", spec, namespace=CHOSEN)
        assert Process(pid).cpus == BOTH
        (process,) = started(cluster, "container-level", one).values()
        assert process.cpus == (NEAR, FAR)[process.gpu // 2]


def test_a_container_started_without_the_daemon_is_placed_later_and_again_after_a_resize(
    cluster: Cluster, tmp_path: Path
) -> None:
    beside = container("beside", gpus=0, NVIDIA_VISIBLE_DEVICES="0")  # as libnvidia-container does
    early = started(cluster, "early", container("one"), container("plain", gpus=0), beside)
    seen = [(process.cpus, process.told, process.has_socket) for process in early.values()]
    assert seen == [(BOTH, {}, False)] * 3
    with serving(cluster, tmp_path) as node:
        near = (NEAR, FAR)[early["one"].gpu // 2]
        eventually(lambda: early["one"].cpus == near, "it runs near its GPU")
        assert [early[name].cpus for name in ("plain", "beside")] == [BOTH, BOTH]
        none = dict.fromkeys(("pinned", "kept", "observed", "left", "missed"), 0)
        assert node.samples("nri_containers", "state") == {**none, "pinned": 1, "left": 1}
        (line,) = node.daemon.says("its spec lists no device file of its GPU")
        assert f"container {CHOSEN}/early/beside: its CPUs stay until it starts again" in line
        more = '{"spec":{"containers":[{"name":"one","resources":{"limits":{"cpu":"2"}}}]}}'
        cluster.run(f"kubectl patch pod early -n {CHOSEN} --subresource resize -p '{more}'")
        eventually(lambda: early["one"].cpus == BOTH, "it has as many CPUs as its limit")
        removed(cluster)
        eventually(lambda: node.samples("nri_containers", "state") == none, "they are forgotten")


def test_a_missed_container_is_placed_once_kubelet_answers(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The container is privileged, and has every device file: only kubelet knows its GPU."""
    resource, kubelet = "file.example.com/gpu", tmp_path / "kubelet.sock"
    amount = {resource: "1"}
    one = {
        **container("one"),
        "resources": {"requests": amount, "limits": amount},
        "securityContext": {"privileged": True},
    }
    with (
        device_plugin(cluster, resource, "file", f"{uuid(2)}=1:/rig/dev/nvidia2:/dev/nvidia2"),
        serving(cluster, tmp_path, f"--pod-resources={kubelet}") as node,
    ):
        (process,) = started(cluster, "missed", one, namespace="default", affinityd="on").values()
        assert (process.cpus, process.told) == (BOTH, {})
        (line,) = node.daemon.says("is not adjusted")
        assert "default/missed/one is not adjusted, and will be tried again: kubelet's" in line
        kubelet.symlink_to(POD_RESOURCES)
        eventually(lambda: process.cpus == FAR, "it runs near its GPU")
        assert node.samples("nri_containers", "state")["pinned"] == 1
        cluster.run("kubectl delete pod missed --now")


def test_a_container_gets_no_exclusive_cpu_of_another_pod(cluster: Cluster, tmp_path: Path) -> None:
    """Kubelet's shared pool is empty, so kubelet sends no cpuset, but names the exclusive CPUs."""
    strict = {
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"},
        "reservedSystemCPUs": NEAR,
    }
    restart(cluster, strict)
    gpu = {"nvidia.com/gpu": "1"}
    amounts = {**ONE_CPU, **gpu}
    own = {**container("own"), "resources": {"requests": amounts, "limits": amounts}}
    kubelet = f"--pod-resources={POD_RESOURCES}"
    with plugin(cluster, GPUS), serving(cluster, tmp_path, kubelet) as node:
        guaranteed = started(cluster, "guaranteed", own)["own"]
        assert guaranteed.cpus == FAR
        assert guaranteed.told["AFFINITYD_NODES"] == "1", "its own CPUs are not another's"
        resources = {"requests": {"cpu": "0", **gpu}, "limits": {"cpu": "500m", **gpu}}
        one = {**container("one"), "resources": resources}
        burstable = started(cluster, "burstable", one)["one"]
        assert burstable.cpus == BOTH, "as kubelet left it"
        assert "AFFINITYD_CPULIST" not in burstable.told
        counted = node.samples("nri_requests_total", "outcome")
        assert (counted["kept"], counted["pinned"], counted["unknown"]) == (2, 0, 0)
