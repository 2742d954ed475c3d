"""The GPUs and exclusive CPUs that kubelet gave each container: its podresources API.

Source: Kubernetes staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. NUMA node 0 is the
default, and not in a message; kubelet names no pod's uid. Its `Get` of 1.36
answers for one pod by its name, which only `List` can tell here, and that has all pods at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from affinityd.audit.facts.kubelet import ContainerResources
from affinityd.linux import protobuf as grpc
from affinityd.linux.protobuf import Message, Value, messages, number, numbers, read, text, texts

SERVICE = "/v1.PodResourcesLister"
TIMEOUT = 2.0  #: seconds
MOST = 10_000  #: containers of a node


def list_pods(socket: str, timeout: float = TIMEOUT) -> bytes:
    """Return kubelet's answer about the pods of this node.

    Raises OSError where kubelet does not answer, ValueError, one line, for no answer to that.
    """
    return grpc.call(socket, f"{SERVICE}/List", b"", timeout)


def gives_cpus(socket: str, timeout: float = TIMEOUT) -> bool | None:
    """Return whether kubelet gives exclusive CPUs; None: it does not say, as before 1.28.

    Only the CPU manager's policy none has no CPUs to give. Raises OSError as above.
    """
    try:
        answer = grpc.call(socket, f"{SERVICE}/GetAllocatableResources", b"", timeout)
        return bool(numbers(read(answer), 2))
    except ValueError:
        return None


def containers(answer: bytes) -> tuple[ContainerResources, ...]:
    """Return the containers of the pods in kubelet's answer. Raises ValueError, one line."""
    try:
        return tuple(_containers(answer))
    except ValueError as error:
        raise ValueError(f"the answer is no list of pods: {error}") from None


def _containers(answer: Value) -> Iterator[ContainerResources]:
    total = 0
    for pod in messages(read(answer), 1):
        its = messages(pod, 3)
        total += len(its)
        if total > MOST:
            raise ValueError(f"over {MOST} containers")
        for container in its:
            yield _of_container(text(pod, 2), text(pod, 1), container, len(its))


def _of_container(namespace: str, pod: str, its: Message, containers: int) -> ContainerResources:
    devices = messages(its, 2)
    names: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
    for device in devices:
        names[text(device, 1)] |= frozenset(texts(device, 2))
    return ContainerResources(
        namespace,
        pod,
        container=text(its, 1),
        devices=names,
        claims=frozenset(
            f"{text(device, 2)}/{text(device, 4)}"
            for claim in messages(its, 5)
            for device in messages(claim, 4)
        ),
        cpus=frozenset(numbers(its, 3)),
        nodes=frozenset(
            number(node, 1)
            for device in devices
            for place in messages(device, 3)
            for node in messages(place, 1)
        ),
        containers=containers,
    )
