"""The manifests of deploy/examples under each policy of kubelet's CPU and Topology Manager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from affinityd.cpuset import CpuSet
from tests.e2e.kubernetes import two_nodes
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.placed import check, created, pods, prepared
from tests.support.cpusets import needs_cpuset
from tests.support.tiny import CPUS

pytestmark = needs_cpuset

POOL, EXCLUSIVE = (frozenset({cpu}) for cpu in CPUS)  #: kubelet's own and the shared ones; the rest


@dataclass(frozen=True)
class Policies:
    """kubelet's policies, and what they come to."""

    cpu: str
    topology: str
    own: CpuSet  #: the cpuset of a Guaranteed pod with a whole CPU
    is_aligned: bool  #: whether its GPU is then near
    is_one_node: bool | None  #: whether it refuses a pod with GPUs of two nodes; None: not tried


TABLE = (
    Policies("none", "none", POOL | EXCLUSIVE, is_aligned=False, is_one_node=False),
    Policies("static", "none", EXCLUSIVE, is_aligned=False, is_one_node=None),
    Policies("static", "best-effort", EXCLUSIVE, is_aligned=True, is_one_node=None),
    Policies("static", "restricted", EXCLUSIVE, is_aligned=True, is_one_node=True),
    Policies("static", "single-numa-node", EXCLUSIVE, is_aligned=True, is_one_node=True),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with prepared(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.parametrize("policies", TABLE, ids=lambda it: f"{it.cpu}-{it.topology}")
def test_a_program_has_the_cpus_near_its_gpu_of_those_that_kubelet_gave_it(
    cluster: Cluster, policies: Policies
) -> None:
    with two_nodes.kubelet(cluster, cpu=policies.cpu, topology=policies.topology):
        for name in ("one-gpu", "restricted", "pytorchjob-pair"):
            for manifest in pods(cluster, name):
                with created(cluster, manifest) as pod:
                    (process,) = pod.processes()
                    check(process)
                    assert pod.now["status"]["qosClass"] == "Guaranteed"
                    assert process.cpuset == policies.own
                    assert process.near == process.cpus or not policies.is_aligned
        (manifest,) = pods(cluster, "burstable-shared-pool")
        with created(cluster, manifest) as pod:
            (process,) = pod.processes()
            check(process)
            assert pod.now["status"]["qosClass"] == "Burstable"
            assert process.cpuset == POOL | EXCLUSIVE  # while no other pod has CPUs of its own
        if policies.is_one_node is None:
            return  # two ranks with cores of their own cannot have one CPU
        (manifest,) = pods(cluster, "torchrun-8gpu")
        with created(cluster, manifest) as pod:
            if policies.is_one_node:
                assert pod.refusal == "TopologyAffinityError"
            else:
                for process in pod.processes(2):
                    check(process)
                    assert process.cpuset == policies.own
                assert pod.now["status"]["qosClass"] == "Guaranteed"
