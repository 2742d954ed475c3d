"""The devices and CPUs that kubelet gave a container, and its settings for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from affinityd.audit.facts.holding import GpuKey
from affinityd.cpuset import CpuSet


@dataclass(frozen=True)
class ContainerResources:
    """The devices and CPUs that kubelet gave a container."""

    namespace: str
    pod: str
    container: str
    devices: Mapping[str, frozenset[str]]  #: resource, as nvidia.com/gpu → ids of its devices
    claims: frozenset[str]  #: devices by DRA, with their drivers: gpu.nvidia.com/gpu-0
    cpus: CpuSet  #: exclusive ones; none in the shared pool
    nodes: frozenset[int]  #: the NUMA nodes of its devices, where kubelet knows them
    gpus: tuple[GpuKey, ...] = ()  #: of this node, among its devices
    containers: int = 1  #: of its pod


@dataclass(frozen=True)
class KubeletConfig:
    """The settings by which kubelet chooses a container's CPUs and devices. None: unknown."""

    cpu_policy: str | None = None  #: cpuManagerPolicy: none, static
    cpu_options: Mapping[str, str] | None = None  #: full-pcpus-only … → "true"
    #: topologyManagerPolicy: none, best-effort, restricted, single-numa-node
    topology_policy: str | None = None
    topology_scope: str | None = None  #: container, pod
    topology_options: Mapping[str, str] | None = None  #: prefer-closest-numa-nodes … → "true"
