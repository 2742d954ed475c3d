"""What kubelet changes of running pods: a resize, the shared pool; and audit and enforce see it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from affinityd.linux.cgroup import Cgroups
from tests.e2e.kubernetes import two_nodes
from tests.e2e.kubernetes.cluster import IMAGE, Cluster
from tests.e2e.kubernetes.placed import Pod, created, pods, prepared
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.enforcing_node import enforcing
from tests.support.tiny import CPUS

pytestmark = needs_cpuset

POOL, EXCLUSIVE = (frozenset({cpu}) for cpu in CPUS)  #: kubelet's own and the shared ones; the rest
_, SECOND = two_nodes.GPUS
SECOND_GPU = {SECOND: 1}  #: a node with one GPU, near the CPU that kubelet gives away
UNPINNED = {"name": "AFFINITYD_UNPINNED", "value": "by the test"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with prepared(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def neighbor() -> dict[str, Any]:
    """Return a pod with a CPU of its own."""
    amount = {"cpu": "1", "memory": "64Mi"}
    resources = {"requests": amount, "limits": amount}
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "resources": resources}
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "neighbor"}}
    return {**about, "spec": {"containers": [container]}}


def resize(pod: Pod, **resources: Mapping[str, str]) -> None:
    """Resize the program's container in place."""
    (container,) = (it["name"] for it in pod.now["spec"]["containers"])
    patch = {"spec": {"containers": [{"name": container, "resources": resources}]}}
    words = f"kubectl patch pod {pod.name} --namespace {pod.namespace} --subresource resize"
    pod.cluster.run(f"{words} --patch '{json.dumps(patch)}'")


def condition(pod: Pod, name: str) -> Mapping[str, str]:
    found = pod.now["status"].get("conditions", ())
    return next((it for it in found if it["type"] == name), {})


def requested(pod: Pod) -> str:
    """Return the CPUs that kubelet says the program's container has requested."""
    (status,) = pod.now["status"]["containerStatuses"]
    cpus: str = status["resources"]["requests"]["cpu"]
    return cpus


def test_under_static_a_resize_leaves_cpusets_and_pins(cluster: Cluster) -> None:
    (burstable,) = pods(cluster, "burstable-shared-pool")
    (guaranteed,) = pods(cluster, "one-gpu")
    with (
        two_nodes.kubelet(cluster, topology="single-numa-node"),
        created(cluster, burstable) as shared,
        created(cluster, guaranteed) as own,
    ):
        programs = [*shared.processes(), *own.processes()]
        eventually(lambda: programs[0].cpuset == POOL, "the pool shrinks")
        resize(shared, requests={"cpu": "700m"})
        eventually(lambda: requested(shared) == "700m", "the Burstable pod is resized")
        resize(own, requests={"cpu": "500m"}, limits={"cpu": "500m"})
        eventually(lambda: condition(own, "PodResizePending"), "kubelet answers")
        assert condition(own, "PodResizePending")["reason"] == "Infeasible"
        assert [it.cpuset for it in programs] == [it.cpus for it in programs] == [POOL, EXCLUSIVE]


def test_without_it_a_resize_changes_the_cpu_limit_that_audit_reads_and_no_pin(
    cluster: Cluster,
) -> None:
    (manifest,) = pods(cluster, "one-gpu")
    with two_nodes.kubelet(cluster, cpu="none"), created(cluster, manifest) as pod:
        (process,) = pod.processes()
        assert Cgroups.of(process.pid).cpu_limit() == 1
        resize(pod, requests={"cpu": "1500m"}, limits={"cpu": "1500m"})
        eventually(lambda: Cgroups.of(process.pid).cpu_limit() == 1 + 1, "its limit is larger")
        assert (process.cpuset, process.cpus) == (POOL | EXCLUSIVE, process.near)


@pytest.mark.parametrize("way", ["run", "enforce"])
def test_a_pin_outlasts_kubelets_writing_to_the_pool(cluster: Cluster, way: str) -> None:
    """A kernel from 6.2 on keeps the mask that was set, as far as the pool has it."""
    (manifest,) = pods(cluster, "burstable-shared-pool")
    if way == "enforce":
        (container,) = manifest["spec"]["containers"]
        container["command"].remove("/affinity/run")
        container["env"].append(UNPINNED)
    with two_nodes.kubelet(cluster, gpus=SECOND_GPU), created(cluster, manifest) as pod:
        (process,) = pod.processes()
        with enforcing("pin", users={2: [process.pid]}) as node:
            node.wait_until("fits", process.pid)
            assert process.cpus == EXCLUSIVE
            with created(cluster, neighbor()):
                eventually(lambda: process.cpuset == process.cpus == POOL, "the pool shrinks")
                node.wait_until("allocation", process.pid)
            eventually(lambda: process.cpuset == POOL | EXCLUSIVE, "the pool has its CPU again")
            assert process.cpus == EXCLUSIVE
            node.wait_until("fits", process.pid)
