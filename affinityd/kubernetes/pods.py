"""The GPUs and exclusive CPUs that kubelet gave each container, and the container of each process.

kubelet's podresources API is asked once for a scan. It has no pod uid, and a cgroup shows only
the uid: the two are matched by which container has which GPU. A message leaves out NUMA node 0, the
default. `Get` of 1.36 answers for one pod by name, but only `List` tells names here, and it returns
all pods at once.

Sources: Kubernetes staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; ids of GPUs:
NVIDIA/k8s-device-plugin (UUIDs, or indices; `::N` after a shared one), container-engine-
accelerators of GKE (`nvidia0`, `nvidia0/vgpu1`), ROCm/k8s-device-plugin (PCI bus ids), Ascend's
(`Ascend910-0`); of DRA, NVIDIA's (`gpu-0`, N of /dev/nvidiaN) and ROCm/k8s-gpu-dra-driver's
(`gpu-1-129`: card, renderD).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.audit.model import (
    KUBERNETES,
    NO_NAMES,
    AuditedProcess,
    ContainerNames,
    ContainerResources,
    Job,
    NamedPods,
    ProcessFacts,
)
from affinityd.linux import protobuf as grpc
from affinityd.linux.protobuf import Message, Value, messages, number, numbers, read, text, texts
from affinityd.topology.model import Gpu, GpuKey, Topology

MAX_CONTAINERS = 10_000  #: of a node


def list_pods(socket: str, timeout: float = 2.0) -> bytes:
    """Return kubelet's answer. Raises OSError without an answer, ValueError for a malformed one."""
    return grpc.call(socket, "/v1.PodResourcesLister/List", b"", timeout)


def containers(answer: bytes) -> tuple[ContainerResources, ...]:
    """Return the containers of the pods in kubelet's answer. Raises ValueError, one line."""
    try:
        return tuple(_containers(answer))
    except ValueError as error:
        raise ValueError(f"the answer is no list of pods: {error}") from None


def _containers(answer: Value) -> Iterator[ContainerResources]:
    total = 0
    for pod in messages(read(answer), 1):
        containers = messages(pod, 3)
        total += len(containers)
        if total > MAX_CONTAINERS:
            raise ValueError(f"over {MAX_CONTAINERS} containers")
        for container in containers:
            yield _of_container(text(pod, 2), text(pod, 1), container)


def _of_container(namespace: str, pod: str, container: Message) -> ContainerResources:
    devices: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
    nodes: set[int] = set()
    for device in messages(container, 2):
        devices[text(device, 1)] |= frozenset(texts(device, 2))
        for place in messages(device, 3):
            nodes.update(number(node, 1) for node in messages(place, 1))
    claims = set()
    for claim in messages(container, 5):
        for device in messages(claim, 4):
            claims.add(f"{text(device, 2)}/{text(device, 4)}")
    return ContainerResources(
        namespace,
        pod,
        container=text(container, 1),
        devices=devices,
        claims=frozenset(claims),
        cpus=frozenset(numbers(container, 3)),
        nodes=frozenset(nodes),
    )


#: A GPU, and a MIG instance of it; None: the whole GPU, or an unknown instance.
Device = tuple[GpuKey, str | None]

#: RESOURCE/ID or DRIVER/DEVICE → this node's name of the GPU. Other ids are UUIDs and PCI bus ids.
DEVICE_NAMES = (
    (re.compile(r"(nvidia)\.com/[^/]+/(\d+)"), "index of {}: {}"),
    (re.compile(r"nvidia\.com/[^/]+/nvidia(\d+)(?:/.*)?"), "/dev/nvidia{}"),
    (re.compile(r"[^/]+/[^/]+/(GPU(?:-[0-9a-f]+){5})-\d+"), "{}"),  # HAMi's replicas
    (re.compile(r"(huawei)\.com/[^/]+/Ascend.*-(\d+)"), "index of {}: {}"),
    (re.compile(r"gpu\.nvidia\.com/gpu-(\d+)(?:-mig-.*)?"), "/dev/nvidia{}"),
    (re.compile(r"gpu\.amd\.com/gpu-\d+-(\d+)"), "/dev/dri/renderD{}"),
)


def devices(container: ContainerResources, topology: Topology) -> frozenset[Device]:
    """Return which of the node's GPUs, and MIG instances, a container was given."""
    names = {_name(device) for device in container.claims}
    for resource, ids in container.devices.items():
        for device in ids:
            # `::N` ends the id of a replica of a shared device.
            names.add(_name(f"{resource}/{device.partition('::')[0]}"))
    parts: set[Device] = set()
    for gpu in topology.gpus:
        if not names.isdisjoint(_names(gpu)):
            parts.add((gpu.key, None))
        for instance in gpu.mig:
            if instance.uuid in names:
                parts.add((gpu.key, instance.uuid))
    return frozenset(parts)


def _name(device: str) -> str:
    """Return the name in `_names` of the GPU that kubelet calls `device`."""
    for pattern, name in DEVICE_NAMES:
        match = pattern.fullmatch(device)
        if match:
            return name.format(*match.groups())
    return device.rpartition("/")[2]


def _names(gpu: Gpu) -> list[str]:
    names = [f"index of {gpu.vendor}: {gpu.index}"]
    if gpu.minor is not None:
        names.append(f"/dev/nvidia{gpu.minor}")
    if gpu.render_minor is not None:
        names.append(f"/dev/dri/renderD{gpu.render_minor}")
    if gpu.pci_bus_id:
        names.append(gpu.pci_bus_id)
    if gpu.uuid:
        names.append(gpu.uuid)
    return names


def is_of_pod(process: AuditedProcess) -> bool:
    """Return whether a process is in a container of a pod, and is no known daemon."""
    return process.facts.membership.scheduler == KUBERNETES and not process.is_daemon


def containers_of(
    candidates: Sequence[Candidate],
    processes: Sequence[AuditedProcess],
    known: Mapping[str, ContainerResources],
) -> Mapping[int, ContainerResources]:
    """Return pid → what kubelet gave the process's container, for processes in pods.

    `known`: the containers that the runtime names, by id. For other processes: if several
    containers fit, or processes of several pods fit one, the container is not known.
    """
    named = {container.names for container in known.values()}
    unnamed = [candidate for candidate in candidates if candidate.container.names not in named]
    groups: defaultdict[tuple[Job | None, str | None], list[ProcessFacts]] = defaultdict(list)
    for process in processes:
        if is_of_pod(process):
            membership = process.facts.membership
            groups[membership.job, membership.container].append(process.facts)
    given: dict[int, ContainerResources] = {}
    pods: defaultdict[Candidate, set[Job | None]] = defaultdict(set)
    matches = []
    for (job, container), group in groups.items():
        if container is not None and container in known:
            for facts in group:
                given[facts.pid] = known[container]
            continue
        match = _match(group, unnamed)
        if match:
            pods[match].add(job)
            matches.append((group, match))
    for group, match in matches:
        if len(pods[match]) == 1:
            for facts in group:
                given[facts.pid] = match.container
    return given


@dataclass(frozen=True, eq=False)
class Candidate:
    """A container that kubelet gave GPUs of this node."""

    container: ContainerResources
    devices: frozenset[Device]

    @classmethod
    def all_of(
        cls, containers: Iterable[ContainerResources], topology: Topology
    ) -> Sequence[Candidate]:
        """Return those containers that have GPUs."""
        candidates = []
        for container in containers:
            parts = devices(container, topology)
            if parts:
                gpus = tuple(sorted({gpu for gpu, _ in parts}))
                candidates.append(cls(replace(container, gpus=gpus), parts))
        return candidates

    def fits(self, facts: ProcessFacts) -> bool:
        """Return whether this container has all devices and CPUs that a process uses."""
        for gpu in facts.gpus:
            mig = None
            if facts.holding is not None and gpu == facts.gpu:
                mig = facts.holding.mig
            if not self._has((gpu, mig)):
                return False
        cpus = self.container.cpus
        return not cpus or facts.cpuset is None or facts.cpuset <= cpus

    def _has(self, device: Device) -> bool:
        gpu, mig = device
        if mig is None:
            return gpu in self.container.gpus
        return not self.devices.isdisjoint({device, (gpu, None)})


def _match(processes: Sequence[ProcessFacts], candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the container that fits, if only one does; those with exclusive CPUs go first."""
    fitting = list(candidates)
    for facts in processes:
        fitting = [candidate for candidate in fitting if candidate.fits(facts)]
    exclusive = [candidate for candidate in fitting if candidate.container.cpus]
    if exclusive and any(facts.cpuset for facts in processes):
        fitting = exclusive
    return fitting[0] if len(fitting) == 1 else None


class KubeletPods:
    """Asks kubelet, and keeps its last answer."""

    def __init__(self, path: str | None) -> None:
        """Take kubelet's socket; None: kubelet is not asked."""
        self._path = path
        self._jobs: frozenset[Job | None] = frozenset()  # the pods at the last answer
        self._candidates: Sequence[Candidate] = ()
        self._given: dict[tuple[str, str, str], ContainerResources] = {}  # by names

    def name(
        self,
        topology: Topology,
        processes: list[AuditedProcess],
        names: ContainerNames = NO_NAMES,
    ) -> NamedPods:
        """Return the processes; those of pods have what kubelet gave their containers.

        `names`: the runtime's names of containers. For others, if kubelet does not answer,
        its last answer counts, but only for pods of that time: later pods may have been given the
        same devices. Kubelet is not asked if no process is in a pod, and the runtime names no
        container. Only GPUs of named containers are reserved: kubelet also lists ended pods.
        """
        jobs = frozenset(
            process.facts.membership.job for process in processes if is_of_pod(process)
        )
        if not jobs and not names:
            return NamedPods(processes)
        notices: list[str] = []
        try:
            if self._path is not None:
                answer = containers(list_pods(self._path))
                self._candidates = Candidate.all_of(answer, topology)
                self._given = {container.names: container for container in answer}
                for candidate in self._candidates:
                    self._given[candidate.container.names] = candidate.container
                self._jobs = jobs
        except (OSError, ValueError) as error:
            notices.append(
                f"kubelet's podresources at {self._path}: {error}: pods that began since are not "
                "named; mount kubelet's folder pod-resources there, or set --pod-resources off"
            )
        known = {}
        for container, its_names in names.items():
            known[container] = self._given.get(its_names, ContainerResources(*its_names))
        listed = []
        for process in processes:
            membership = process.facts.membership
            if membership.job in self._jobs or membership.container in known:
                listed.append(process)
        given = containers_of(self._candidates, listed, known)
        named = []
        for process in processes:
            resources = given.get(process.facts.pid, process.facts.given)
            named.append(replace(process, facts=replace(process.facts, given=resources)))
        return NamedPods(named, tuple(notices), self._reserved(names))

    def _reserved(self, names: ContainerNames) -> dict[GpuKey, str]:
        reserved = {}
        for candidate in self._candidates:
            container = candidate.container
            if container.names in names.values():
                for gpu in container.gpus:
                    reserved[gpu] = f"pod {container.namespace}/{container.pod}"
        return reserved
