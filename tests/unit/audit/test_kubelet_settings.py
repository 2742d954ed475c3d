"""What kubelet gave a container whose CPUs are far, and the settings that prevent it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.model import ContainerResources, KubeletConfig
from affinityd.audit.remedies import BY_DRA, PodPlacement, kubelet_remedy
from affinityd.cpuset import parse_list
from affinityd.topology.model import NumaNode, Topology
from affinityd.topology.nearness import vicinity
from tests.support.machines.by_hand import made

#: Two GPUs, on nodes 0 and 1; two CPUs are a core.
NODE = made({0: "0-3", 1: "4-7"}, gpus=[0, 1], threads=2, siblings="adjacent")
MANY = replace(NODE, nodes=(*NODE.nodes, *map(NumaNode, range(2, 12))))

STATIC: dict[str, Any] = {
    "cpu_policy": "static",
    "cpu_options": {},
    "topology_scope": "pod",
    "topology_options": {},
}
RESTRICTED = KubeletConfig(**STATIC, topology_policy="restricted")
BEST_EFFORT = KubeletConfig(**STATIC, topology_policy="best-effort")
NONE = KubeletConfig(**STATIC, topology_policy="none")
OF_PLUGIN = {"nvidia.com/gpu": frozenset(("GPU-0",))}
GIVEN = ContainerResources(
    "team", "train", "main", OF_PLUGIN, frozenset(), parse_list("4-7"), frozenset((0,))
)
SHARED = replace(GIVEN, cpus=frozenset())
STRICTER = "topologyManagerPolicy: restricted (it is best-effort)"
ALIGNED = "topologyManagerPolicy: single-numa-node (or best-effort)"
FROM_NONE = f"set kubelet's {ALIGNED} (it is none)"
CLOSEST = 'topologyManagerPolicyOptions: prefer-closest-numa-nodes: "true"'
GUARANTEED = "give the pod whole CPUs in the Guaranteed QoS class"


def placed(
    given: ContainerResources | None,
    kubelet: KubeletConfig,
    topology: Topology = NODE,
    gpus: int = 1,
) -> PodPlacement:
    near = vicinity(topology, topology.gpus[:gpus])
    return PodPlacement(topology, near, parse_list("4-7"), given, kubelet)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "its pod was given no CPU"),
        (GIVEN, "kubelet gave team/train the exclusive CPUs 4-7, no CPU"),
        (
            replace(GIVEN, cpus=parse_list("3-5")),
            "kubelet gave team/train the exclusive CPUs 3-5, only 1 CPU",
        ),
        (SHARED, "kubelet gave team/train the shared CPUs 4-7, no CPU"),
    ],
)
def test_who_placed_a_container(given: ContainerResources | None, said: str) -> None:
    assert str(placed(given, RESTRICTED)) == said


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (
            placed(None, KubeletConfig()),
            f"set kubelet's {ALIGNED} and cpuManagerPolicy: static, and {GUARANTEED}",
        ),
        (placed(GIVEN, NONE), FROM_NONE),
        (placed(GIVEN, BEST_EFFORT), f"set kubelet's {STRICTER}"),
        (
            placed(GIVEN, replace(NONE, cpu_policy="none")),
            f"{FROM_NONE} and cpuManagerPolicy: static (it is none)",
        ),
        (placed(SHARED, RESTRICTED), GUARANTEED),
        (
            placed(replace(GIVEN, nodes=frozenset((0, 1))), BEST_EFFORT, gpus=2),
            f"set kubelet's {STRICTER} and {CLOSEST}",
        ),
        (
            placed(replace(GIVEN, containers=2), replace(BEST_EFFORT, topology_scope="container")),
            f"set kubelet's {STRICTER} and topologyManagerScope: pod (it is container)",
        ),
        (
            placed(replace(GIVEN, cpus=parse_list("3-5")), BEST_EFFORT),
            f'set kubelet\'s {STRICTER} and cpuManagerPolicyOptions: full-pcpus-only: "true"',
        ),
        (
            placed(GIVEN, NONE, MANY),
            f'{FROM_NONE} and topologyManagerPolicyOptions: max-allowable-numa-nodes: "12"',
        ),
        (
            placed(GIVEN, replace(NONE, topology_options={"max-allowable-numa-nodes": "16"}), MANY),
            FROM_NONE,
        ),
        (
            placed(replace(GIVEN, nodes=frozenset()), RESTRICTED),
            "have the device plugin tell the NUMA nodes of its GPUs",
        ),
        (
            placed(replace(GIVEN, nodes=frozenset((1,))), RESTRICTED),
            "correct the device plugin, which tells kubelet node 1",
        ),
        (
            placed(replace(GIVEN, devices={}, claims=frozenset(("gpu.nvidia.com/gpu-0",))), NONE),
            BY_DRA,
        ),
        (
            placed(GIVEN, RESTRICTED),
            "start the pod again: its kubelet has the right settings now",
        ),
    ],
)
def test_the_setting_that_prevents_it(placement: PodPlacement, said: str) -> None:
    assert kubelet_remedy(placement) == said
