"""The messages of NRI that a plugin needs, and the bytes on its socket. Pure.

No library, because: neither NRI nor ttrpc has one for Python. If containerd's authors wrote one,
it would be used. `linux/protobuf` has figures about libraries of Protocol Buffers.

Sources: containerd/nri pkg/api/api.proto, whose field numbers these are, and
pkg/net/multiplex/mux.go (frames: two connections in one); containerd/ttrpc PROTOCOL.md (messages).
A field that is not set is empty, 0 or None here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

from affinityd.linux.protobuf import Message, embedded, field, messages, number, read, text, texts

CREATED = 5  #: a container's event, by its number in a StateChangeEvent
REMOVED = 11
CPU_SHARES = 1024  #: shares for each requested CPU
MOUNT_POINT = "/run/affinityd"  #: folder in which programs look for the daemon's socket


@dataclass(frozen=True)
class Pod:
    """The facts of a pod that are needed here."""

    id: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    cgroup: str  #: parent of its containers' cgroups; with systemd only the slice's name
    asked: int  #: the CPUs of the pod's own request or limit, or the sum of its containers'


@dataclass(frozen=True)
class Container:
    """A container as the runtime describes it, including the changes of other plugins."""

    id: str
    pod: str  #: the id of its pod
    name: str
    environment: Mapping[str, str]
    annotations: Mapping[str, str]
    mounts: tuple[str, ...]  #: destinations of the mounts
    devices: tuple[str, ...]  #: device files
    cdi_devices: tuple[str, ...]  #: names of CDI devices; older runtimes do not send them
    shares: int  #: cpu.shares of its request, CPU_SHARES for each CPU; 0: no request
    limit: int | None  #: CPUs, rounded up
    cpus: str  #: its cpuset; empty: the runtime sets none
    memory_nodes: str  #: NUMA nodes of its cpuset; empty: not set
    is_stopped: bool = False

    @property
    def requested(self) -> int | None:
        """The number of CPUs that it requested, rounded up."""
        return -(-self.shares // CPU_SHARES) or None

    @property
    def asked(self) -> int:
        """The number of CPUs that it needs: the larger of request and limit; 0: neither is set."""
        return max(self.requested or 0, self.limit or 0)


def created(request: bytes) -> tuple[Pod, Container]:
    """Return the pod and container of a CreateContainerRequest. Raises ValueError otherwise."""
    whole = read(request)
    return _pod(embedded(whole, 1)), _container(embedded(whole, 2))


def updating(request: bytes) -> tuple[Pod, Container]:
    """Return the pod of an UpdateContainerRequest, and its container with the update."""
    pod, container = created(request)
    resources = _resources(embedded(read(request), 3))
    changes = {name: value for name, value in resources.items() if value}
    return pod, replace(container, **changes)


def has_more(request: bytes) -> bool:
    """Return whether another SynchronizeRequest follows, with other containers."""
    return bool(number(read(request), 3))


def listed(requests: Sequence[bytes]) -> Iterator[tuple[Pod, Container]]:
    """Read the living containers of SynchronizeRequests and their pods; hundreds take seconds."""
    for whole in map(read, requests):
        pods = {text(pod, 1): _pod(pod) for pod in messages(whole, 1)}
        for message in whole.get(2, ()):
            container = _container(read(message))
            if container.pod in pods and not container.is_stopped:
                yield pods[container.pod], container


def changed(event: bytes) -> tuple[int, str]:
    """Return the number of a StateChangeEvent, and the id of its container."""
    whole = read(event)
    return number(whole, 1), text(embedded(whole, 3), 1)


def _pod(pod: Message) -> Pod:
    linux = embedded(pod, 8)
    resources = _resources(embedded(linux, 2))
    return Pod(
        id=text(pod, 1),
        namespace=text(pod, 4),
        name=text(pod, 2),
        labels=_mapping(pod, 5),
        annotations=_mapping(pod, 6),
        cgroup=text(linux, 3),
        asked=max(-(-resources["shares"] // CPU_SHARES), resources["limit"] or 0),
    )


def _container(container: Message) -> Container:
    linux = embedded(container, 11)
    return Container(
        id=text(container, 1),
        pod=text(container, 2),
        is_stopped=number(container, 4) == 4,  # CONTAINER_STOPPED  # noqa: PLR2004
        name=text(container, 3),
        environment=dict(pair.partition("=")[::2] for pair in texts(container, 8)),
        annotations=_mapping(container, 6),
        mounts=tuple(text(read(mount, until=1), 1) for mount in container.get(9, ())),
        devices=tuple(text(read(device, until=1), 1) for device in linux.get(2, ())),
        cdi_devices=tuple(text(device, 1) for device in messages(container, 20)),
        **_resources(embedded(linux, 3)),
    )


def _resources(resources: Message) -> dict[str, Any]:
    cpu = embedded(resources, 2)
    shares = number(embedded(cpu, 1), 1)
    if shares <= 2:  # noqa: PLR2004 - the kernel's least, of a container without a request
        shares = 0
    quota = number(embedded(cpu, 2), 1)
    period = number(embedded(cpu, 3), 1)
    limit = None
    if 0 < quota < 1 << 63 and period:  # negative numbers, read as unsigned, are larger: no quota
        limit = -(-quota // period)
    return {
        "shares": shares,
        "limit": limit,
        "cpus": text(cpu, 6),
        "memory_nodes": text(cpu, 7),
    }


def _mapping(message: Message, number: int) -> dict[str, str]:
    return {text(pair, 1): text(pair, 2) for pair in messages(message, number)}


def adjusted(
    environment: Mapping[str, str],
    folder: str | None,
    cpus: str,
    memory_nodes: str = "",
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """Return a CreateContainerResponse. Values that are empty or None change nothing."""
    changes = b""
    for name, value in (annotations or {}).items():
        changes += field(2, _pair(name, value))
    if folder is not None:  # a folder of the node
        mount = field(1, MOUNT_POINT) + field(2, "bind") + field(3, folder)
        for option in ("rbind", "ro", "nosuid", "nodev", "noexec"):
            mount += field(4, option)
        changes += field(3, mount)
    for name, value in sorted(environment.items()):
        changes += field(4, _pair(name, value))
    cpuset = b""
    if cpus:
        cpuset += field(6, cpus)
    if memory_nodes:
        cpuset += field(7, memory_nodes)
    if cpuset:
        changes += field(6, field(2, field(2, cpuset)))
    return field(1, changes) if changes else b""


def _pair(name: str, value: str) -> bytes:
    return field(1, name) + field(2, value)


def updates(cpus_of: Mapping[str, str], *, more: bool = False, may_fail: bool = True) -> bytes:
    """Return new cpusets of containers; `more`: others follow; `may_fail`: report no refusals."""
    response = b""
    for container, cpus in cpus_of.items():
        cpuset = field(2, field(1, field(2, field(6, cpus))))
        response += field(1, field(1, container) + cpuset + field(3, may_fail))
    if more:
        response += field(2, 1)
    return response


PLUGIN = 1  #: number of a connection: on PLUGIN the plugin answers, on RUNTIME the runtime
RUNTIME = 2
REQUEST = 1  #: kinds of messages
RESPONSE = 2

FRAME = Struct(">II")  #: head of each part of a message: connection, and length of the part
HEAD = Struct(">IIBB")  #: head of a message: length of its data, stream, kind and flags
MAX_DATA = 4 * 2**20  #: bytes of a message's data
#: Bytes in a frame that is sent. The runtime reads into a buffer of Go's bufio, and closes the
#: connection if a frame is longer.
MAX_PART = 4096


@dataclass(frozen=True)
class Ttrpc:
    """A request, or the response to the request of the same stream."""

    connection: int
    stream: int
    kind: int
    data: bytes


class Trunk:
    """Joins the received parts of messages."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._parts = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def received(self, data: bytes) -> list[Ttrpc]:
        """Return the messages that these bytes complete. Raises ValueError if one is too long."""
        self._received += data
        complete = []
        while (body := _body(self._received, FRAME, MAX_DATA + HEAD.size)) is not None:
            connection, _ = FRAME.unpack_from(self._received)
            del self._received[: FRAME.size + len(body)]
            parts = self._parts.get(connection, bytearray())  # other connections are ignored
            parts += body
            while (payload := _body(parts, HEAD, MAX_DATA)) is not None:
                _, stream, kind, _ = HEAD.unpack_from(parts)
                del parts[: HEAD.size + len(payload)]
                complete.append(Ttrpc(connection, stream, kind, payload))
        return complete


def packed(message: Ttrpc) -> bytes:
    """Return the bytes of a message, which must be sent without other bytes between them."""
    data = HEAD.pack(len(message.data), message.stream, message.kind, 0) + message.data
    frames = b""
    for place in range(0, len(data), MAX_PART):
        part = data[place : place + MAX_PART]
        frames += FRAME.pack(message.connection, len(part)) + part
    return frames


def _body(data: bytearray, head: Struct, most: int) -> bytes | None:
    """Return the bytes after a head that states their length; None: some have not arrived yet."""
    if len(data) < head.size:
        return None
    length_field = data[4:8] if head is FRAME else data[:4]
    length = int.from_bytes(length_field, "big")
    if length > most:
        raise ValueError(f"{length} bytes are too long for NRI: {most} are the most")
    whole = head.size + length
    if len(data) < whole:
        return None
    return bytes(data[head.size : whole])
