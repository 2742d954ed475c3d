"""The GPUs and exclusive CPUs that kubelet gave each container, and which processes are in it.

kubelet's podresources API is asked once for a scan. It names no pod's uid, and a cgroup has nothing
else: what both know is which container has which GPU. NUMA node 0 is the default, and not in a
message. Its `Get` of 1.36 answers for one pod by its name, which only `List` can tell here, and
that has all pods at once.

Sources: Kubernetes staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; ids of GPUs:
NVIDIA/k8s-device-plugin (UUIDs, or indices; `::N` behind a shared one), container-engine-
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

SERVICE = "/v1.PodResourcesLister"
TIMEOUT = 2.0  #: seconds
MOST = 10_000  #: containers of a node


def list_pods(socket: str, timeout: float = TIMEOUT) -> bytes:
    """Return kubelet's answer about its pods. Raises OSError: none; ValueError: a wrong one."""
    return grpc.call(socket, f"{SERVICE}/List", b"", timeout)


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
        if total > MOST:
            raise ValueError(f"over {MOST} containers")
        for container in containers:
            yield _of_container(text(pod, 2), text(pod, 1), container)


def _of_container(namespace: str, pod: str, container: Message) -> ContainerResources:
    devices = messages(container, 2)
    names: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
    for device in devices:
        names[text(device, 1)] |= frozenset(texts(device, 2))
    return ContainerResources(
        namespace,
        pod,
        container=text(container, 1),
        devices=names,
        claims=frozenset(
            f"{text(device, 2)}/{text(device, 4)}"
            for claim in messages(container, 5)
            for device in messages(claim, 4)
        ),
        cpus=frozenset(numbers(container, 3)),
        nodes=frozenset(
            number(node, 1)
            for device in devices
            for place in messages(device, 3)
            for node in messages(place, 1)
        ),
    )


#: A GPU, and a MIG instance of it; None: all of it, or an unknown one.
Device = tuple[GpuKey, str | None]

REPLICA = "::"  #: before the number of a shared device's replica
UUID = "{}"
INDEX, MINOR, RENDER = "index of {}: {}", "/dev/nvidia{}", "/dev/dri/renderD{}"
#: RESOURCE/ID or DRIVER/DEVICE → the GPU's name here. Other ids are UUIDs and PCI bus ids.
NAMES = {
    re.compile(r"(nvidia)\.com/[^/]+/(\d+)"): INDEX,
    re.compile(r"nvidia\.com/[^/]+/nvidia(\d+)(?:/.*)?"): MINOR,
    re.compile(r"[^/]+/[^/]+/(GPU(?:-[0-9a-f]+){5})-\d+"): UUID,  # HAMi's replicas
    re.compile(r"(huawei)\.com/[^/]+/Ascend.*-(\d+)"): INDEX,
    re.compile(r"gpu\.nvidia\.com/gpu-(\d+)(?:-mig-.*)?"): MINOR,
    re.compile(r"gpu\.amd\.com/gpu-\d+-(\d+)"): RENDER,
}


def devices(container: ContainerResources, topology: Topology) -> frozenset[Device]:
    """Return which of the node's GPUs, and MIG instances, a container was given."""
    by_plugins = (
        f"{resource}/{device.partition(REPLICA)[0]}"
        for resource, ids in container.devices.items()
        for device in ids
    )
    named = {_name(device) for device in (*by_plugins, *container.claims)}
    return frozenset(
        (gpu.key, mig) for gpu in topology.gpus for name, mig in _names(gpu) if name in named
    )


def _name(device: str) -> str:
    matches = ((name, pattern.fullmatch(device)) for pattern, name in NAMES.items())
    whole = (name.format(*match.groups()) for name, match in matches if match)
    return next(whole, device.rpartition("/")[2])


def _names(gpu: Gpu) -> Iterator[tuple[str, str | None]]:
    """Yield the names of a GPU and of its MIG instances, each with the instance."""
    files = {MINOR: gpu.minor, RENDER: gpu.render_minor}
    yield INDEX.format(gpu.vendor, gpu.index), None
    yield from ((name.format(minor), None) for name, minor in files.items() if minor is not None)
    yield from ((name, None) for name in (gpu.pci_bus_id, gpu.uuid) if name)
    yield from ((part.uuid, part.uuid) for part in gpu.mig)


def is_of_pod(process: AuditedProcess) -> bool:
    """Return whether a process is in a container of a pod, and no known daemon."""
    return process.facts.membership.scheduler == KUBERNETES and not process.is_daemon


def containers_of(
    candidates: Sequence[Candidate],
    processes: Sequence[AuditedProcess],
    known: Mapping[str, ContainerResources],
) -> Mapping[int, ContainerResources]:
    """Return what kubelet gave the containers of pods' processes, by pid.

    `known`: those of containers that the runtime tells, by id. Of others: where several containers
    fit, or processes of several pods fit one, it is not known.
    """
    names = {container.names for container in known.values()}
    candidates = [some for some in candidates if some.container.names not in names]
    groups: defaultdict[tuple[Job | None, str | None], list[ProcessFacts]] = defaultdict(list)
    for process in filter(is_of_pod, processes):
        member = process.facts.membership
        groups[member.job, member.container].append(process.facts)
    given: dict[int, ContainerResources] = {}
    pods: defaultdict[Candidate, set[Job | None]] = defaultdict(set)
    matches = []
    for (job, container), group in groups.items():
        if container is not None and container in known:
            given.update((facts.pid, known[container]) for facts in group)
        elif match := _match(group, candidates):
            pods[match].add(job)
            matches.append((group, match))
    for group, match in matches:
        if len(pods[match]) == 1:
            given.update((facts.pid, match.container) for facts in group)
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
        """Return those with GPUs."""
        with_devices = ((container, devices(container, topology)) for container in containers)
        return [
            cls(replace(container, gpus=tuple(sorted({gpu for gpu, _ in parts}))), parts)
            for container, parts in with_devices
            if parts
        ]

    def fits(self, facts: ProcessFacts) -> bool:
        """Return whether a process uses no other device than these, and no other CPU."""
        holding = facts.holding
        mig = None if holding is None else holding.mig
        used = ((gpu, mig if gpu == facts.gpu else None) for gpu in facts.gpus)
        cpus, cpuset = self.container.cpus, facts.cpuset
        return all(map(self._has, used)) and (not cpus or cpuset is None or cpuset <= cpus)

    def _has(self, device: Device) -> bool:
        gpu, mig = device
        if mig is None:
            return gpu in self.container.gpus
        return not self.devices.isdisjoint({device, (gpu, None)})


def _match(processes: Sequence[ProcessFacts], candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the only container that fits, one with exclusive CPUs first; None: none or several."""
    fitting = [candidate for candidate in candidates if all(map(candidate.fits, processes))]
    exclusive = [candidate for candidate in fitting if candidate.container.cpus]
    if exclusive and any(facts.cpuset for facts in processes):
        fitting = exclusive
    return fitting[0] if len(fitting) == 1 else None


class KubeletPods:
    """Kubelet's last answer."""

    def __init__(self, path: str | None) -> None:
        """Take kubelet's socket; None if it is not to be asked."""
        self._path = path
        self._jobs: frozenset[Job | None] = frozenset()  # pods that there were at that answer
        self._candidates: Sequence[Candidate] = ()
        self._given: Mapping[tuple[str, str, str], ContainerResources] = {}  # by names

    def name(
        self,
        topology: Topology,
        processes: list[AuditedProcess],
        names: ContainerNames = NO_NAMES,
    ) -> NamedPods:
        """Return the processes, those of pods with what kubelet gave their containers.

        `names`: of containers, by the runtime. Of others, without an answer, the last one counts,
        for the pods of that time: later ones may have been given the same devices. Kubelet is not
        asked if none of the processes is in a pod, and the runtime tells of no container. Of those
        that it tells GPUs are reserved: kubelet lists pods that have ended, too.
        """
        jobs = frozenset(process.facts.membership.job for process in filter(is_of_pod, processes))
        if not jobs and not names:
            return NamedPods(processes)
        notices: list[str] = []
        try:
            if self._path is not None:
                answer = containers(list_pods(self._path))
                self._candidates = Candidate.all_of(answer, topology)
                listed = (*answer, *(some.container for some in self._candidates))
                self._given = {container.names: container for container in listed}
                self._jobs = jobs
        except (OSError, ValueError) as error:
            notices.append(
                f"kubelet's podresources at {self._path}: {error}: pods that began since are not "
                "named; mount kubelet's folder pod-resources there, or set --pod-resources off"
            )
        known = {
            container: self._given.get(its, ContainerResources(*its))
            for container, its in names.items()
        }
        then = [
            process
            for process in processes
            if process.facts.membership.job in self._jobs
            or process.facts.membership.container in known
        ]
        given = containers_of(self._candidates, then, known)
        named = []
        for process in processes:
            resources = given.get(process.facts.pid, process.facts.given)
            named.append(replace(process, facts=replace(process.facts, given=resources)))
        reserved = {
            gpu: f"pod {some.container.namespace}/{some.container.pod}"
            for some in self._candidates
            if some.container.names in names.values()
            for gpu in some.container.gpus
        }
        return NamedPods(named, tuple(notices), reserved)
