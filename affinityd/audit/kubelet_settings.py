"""The CPUs that kubelet gave a container, and the settings that give it near ones. Pure.

Sources: Kubernetes "Control CPU Management Policies on the Node", "Control Topology Management
Policies on a node"; pkg/kubelet/cm/topologymanager: it aligns no device by DRA, and starts on more
than 8 NUMA nodes only with the option max-allowable-numa-nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from affinityd.audit.facts.kubelet import ContainerResources, KubeletConfig
from affinityd.cpuset import CpuSet, several
from affinityd.topology.model import Topology
from affinityd.topology.nearness import Vicinity

MOST_NODES = 8  #: on which the Topology Manager starts
UNKNOWN = KubeletConfig()

#: The next policy of the Topology Manager, for GPUs on one node, and on several.
NEXT = {
    None: ("single-numa-node (or best-effort)", "best-effort"),
    "none": ("single-numa-node (or best-effort)", "best-effort"),
    "best-effort": ("restricted", "restricted"),
}


@dataclass(frozen=True)
class PodPlacement:
    """A container without enough CPUs near its GPUs, and the kubelet that placed it."""

    topology: Topology
    near: Vicinity
    cpuset: CpuSet | None
    given: ContainerResources | None  #: None: not known
    kubelet: KubeletConfig

    def __str__(self) -> str:
        """Return it as a clause: `kubelet gave team/train the exclusive CPUs 0-3, no CPU`."""
        given = self.given
        if given is None:
            return f"its pod was given {self.near.part_of(self.cpuset)}"
        kind, cpus = ("exclusive", given.cpus) if given.cpus else ("shared", self.cpuset)
        its = f"the {kind} {several('CPU', cpus or ())}"
        return f"kubelet gave {given.namespace}/{given.pod} {its}, {self.near.part_of(cpus)}"

    @property
    def is_torn(self) -> bool:
        """Whether it has some CPUs of a core, and not the others."""
        cpus = frozenset[int]() if self.given is None else self.given.cpus
        return any(0 < len(cpus.intersection(it.cpus)) < len(it.cpus) for it in self.topology.cores)

    @property
    def said_nodes(self) -> frozenset[int] | None:
        """The NUMA nodes by its device plugin, if none is right; None: one is, or it has none."""
        given = self.given
        right = {*self.near.nodes, *(gpu.numa_node for gpu in self.near.gpus)}
        is_right = given is None or not given.devices or not given.nodes.isdisjoint(right)
        return None if is_right or given is None else given.nodes


@dataclass(frozen=True)
class KubeletSetting:
    """A setting of kubelet, and when a container lacks it."""

    text: str
    lacks: Callable[[PodPlacement], bool]
    now: Callable[[KubeletConfig], str | None] = lambda _kubelet: None


def _has(options: Mapping[str, str] | None, name: str) -> bool:
    return (options or {}).get(name, "false").lower() == "true"


def _nodes(kubelet: KubeletConfig) -> int:
    """Return on how many NUMA nodes its Topology Manager starts."""
    most = (kubelet.topology_options or {}).get("max-allowable-numa-nodes", "")
    return int(most) if most.isdecimal() else MOST_NODES


SETTINGS = (
    KubeletSetting(
        "topologyManagerPolicy: {policy}",
        lambda it: it.kubelet.topology_policy in NEXT,
        lambda kubelet: kubelet.topology_policy,
    ),
    KubeletSetting(
        'topologyManagerPolicyOptions: max-allowable-numa-nodes: "{nodes}"',
        lambda it: (
            it.kubelet.topology_policy in {None, "none"}
            and len(it.topology.nodes) > _nodes(it.kubelet)
        ),
    ),
    KubeletSetting(
        'topologyManagerPolicyOptions: prefer-closest-numa-nodes: "true"',
        lambda it: (
            len(it.near.nodes) > 1
            and it.kubelet.topology_options is not None
            and not _has(it.kubelet.topology_options, "prefer-closest-numa-nodes")
        ),
    ),
    KubeletSetting(
        "topologyManagerScope: pod",
        lambda it: (
            it.kubelet.topology_scope == "container"
            and it.given is not None
            and it.given.containers > 1
        ),
        lambda kubelet: kubelet.topology_scope,
    ),
    KubeletSetting(
        "cpuManagerPolicy: static",
        lambda it: it.kubelet.cpu_policy != "static",
        lambda kubelet: kubelet.cpu_policy,
    ),
    KubeletSetting(
        'cpuManagerPolicyOptions: full-pcpus-only: "true"',
        lambda it: it.is_torn and not _has(it.kubelet.cpu_options, "full-pcpus-only"),
    ),
)

GUARANTEED = "give the pod whole CPUs in the Guaranteed QoS class"
BY_DRA = (
    "kubelet aligns no CPUs with devices by DRA: claim CPUs by DRA too, with a constraint "
    "matchAttribute that both drivers have"
)
NO_NODE = "have the device plugin tell the NUMA nodes of its GPUs"
OTHER_NODE = "correct the device plugin, which tells kubelet {nodes}"
OLDER = "start the pod again: its kubelet has the right settings now"


def remedy(placement: PodPlacement) -> str:
    """Return how the container gets near CPUs: the settings its kubelet lacks, and more."""
    given, said = placement.given, placement.said_nodes
    if given is not None and given.claims and not given.devices:
        return BY_DRA
    by_pod = given is None or not given.cpus
    lacking = [_text(it, placement) for it in SETTINGS if it.lacks(placement)]
    advice = [
        f"set kubelet's {' and '.join(lacking)}" if lacking else "",
        GUARANTEED if by_pod else "",
        "" if said is None else OTHER_NODE.format(nodes=several("node", said)) if said else NO_NODE,
    ]
    return ", and ".join(filter(None, advice)) or OLDER


def _text(setting: KubeletSetting, placement: PodPlacement) -> str:
    kubelet, is_on_several = placement.kubelet, len(placement.near.nodes) > 1
    policy = NEXT.get(kubelet.topology_policy, NEXT[None])[is_on_several]
    text = setting.text.format(policy=policy, nodes=len(placement.topology.nodes))
    now = setting.now(kubelet)
    return text if now is None else f"{text} (it is {now})"
