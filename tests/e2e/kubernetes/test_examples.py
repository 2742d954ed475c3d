"""The manifests of deploy/examples under kubelet's static CPU manager and single-numa-node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from affinityd.linux.cgroup import Cgroups
from tests.e2e.kubernetes import two_nodes
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.placed import check, created, pods, prepared
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.tiny import CPUS

pytestmark = needs_cpuset

POOL, EXCLUSIVE = (frozenset({cpu}) for cpu in CPUS)  #: kubelet's own and the shared ones; the rest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        prepared(tmp_path_factory.mktemp("cluster")) as cluster,
        two_nodes.kubelet(cluster, topology="single-numa-node"),
    ):
        yield cluster


def test_a_restricted_pod_has_its_exclusive_cpu_near_its_gpu(cluster: Cluster) -> None:
    (manifest,) = pods(cluster, "restricted")
    with created(cluster, manifest) as pod:
        (process,) = pod.processes()
        check(process)
        assert pod.now["status"]["qosClass"] == "Guaranteed"
        assert process.cpuset == process.near == EXCLUSIVE


def test_an_exclusive_cpu_is_taken_from_the_pool_and_returned(cluster: Cluster) -> None:
    (burstable,) = pods(cluster, "burstable-shared-pool")
    (guaranteed,) = pods(cluster, "one-gpu")
    with created(cluster, burstable) as shared:
        (program,) = shared.processes()
        check(program)
        assert shared.now["status"]["qosClass"] == "Burstable"
        assert (program.cpuset, program.cpus) == (POOL | EXCLUSIVE, program.near)
        with created(cluster, guaranteed) as whole:
            (other,) = whole.processes()
            check(other)
            assert whole.now["status"]["qosClass"] == "Guaranteed"
            eventually(lambda: program.cpuset == POOL, "the pool shrinks")
            assert (other.cpus, program.cpus) == (EXCLUSIVE, POOL)
            limits = [Cgroups.of(it.pid).cpu_limit() for it in (other, program)]
            assert limits == [1, None]  # kubelet sets none for exclusive CPUs either
        eventually(lambda: program.cpuset == POOL | EXCLUSIVE, "the pool has its CPU again")
        assert program.cpus == program.near


def test_topology_manager_refuses_gpus_of_two_nodes(cluster: Cluster) -> None:
    (manifest,) = pods(cluster, "torchrun-8gpu")
    with created(cluster, manifest) as pod:
        assert pod.refusal == "TopologyAffinityError"
