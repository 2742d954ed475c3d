"""The runtime's side of NRI, as containerd implements it."""

import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from affinityd.kubernetes.nri.messages import (
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Trunk,
    Ttrpc,
    packed,
)
from affinityd.linux import protobuf as wire
from affinityd.linux.protobuf import Message as Fields
from affinityd.linux.protobuf import embedded, messages, read, text
from tests.support.daemons import PATIENCE


def pairs(of: int, values: Mapping[str, str]) -> bytes:
    return b"".join(
        wire.field(of, wire.field(1, key) + wire.field(2, it)) for key, it in values.items()
    )


def created(
    namespace: str = "training",
    labels: Mapping[str, str] | None = None,
    *,
    number: int = 1,
    env: Sequence[str] = (),
    devices: Sequence[str] = ("/dev/nvidia0",),
    mounts: Sequence[str] = ("/proc",),
    annotations: Mapping[str, str] | None = None,
    pod_annotations: Mapping[str, str] | None = None,
    shares: int = 1024,
    quota: int = 0,
    cpus: str = "",
    mems: str = "",
    cgroup: str = "",
    pod_shares: int = 0,
    pod: str = "",
) -> bytes:
    of_pod = wire.field(2, wire.field(2, wire.field(1, wire.field(1, pod_shares))))
    parent = wire.field(8, of_pod + wire.field(3, cgroup))
    pod_id = pod or f"pod-{number}"
    names = wire.field(1, pod_id) + wire.field(2, "job") + wire.field(4, namespace)
    of_all = names + pairs(5, labels or {}) + pairs(6, pod_annotations or {}) + parent
    cpu = wire.field(1, wire.field(1, shares)) + wire.field(6, cpus) + wire.field(7, mems)
    if quota:
        cpu += wire.field(2, wire.field(1, quota)) + wire.field(3, wire.field(1, 100000))
    rest = wire.field(2, "c") + wire.field(3, 195) + wire.field(4, number)
    rest += b"".join(wire.field(of, wire.field(1, 0o666)) for of in (5, 6, 7))
    files = b"".join(wire.field(2, wire.field(1, it) + rest) for it in devices)
    its = wire.field(1, f"container-{number}") + wire.field(2, pod_id)
    its += wire.field(3, "main") + wire.field(4, 3) + pairs(6, annotations or {})
    its += b"".join(wire.field(8, it) for it in env)
    its += b"".join(wire.field(9, wire.field(1, it)) for it in mounts)
    its += wire.field(11, files + wire.field(3, wire.field(2, cpu)))
    return wire.field(1, of_all) + wire.field(2, its)


def resized(request: bytes, cpus: int) -> bytes:
    """Return an UpdateContainerRequest that gives a created container another limit."""
    quota = wire.field(2, wire.field(1, cpus * 100000)) + wire.field(3, wire.field(1, 100000))
    return request + wire.field(3, wire.field(2, quota))


def synchronized(*requests: bytes, more: bool = False) -> bytes:
    """Return a SynchronizeRequest of containers, from the requests that created them."""
    both = [read(request) for request in requests]
    parts = [wire.field(at, whole[at][-1]) for whole in both for at in (1, 2)]
    return b"".join(parts) + (wire.field(3, 1) if more else b"")


def updated(response: wire.Value) -> dict[str, str]:
    """Return container → cpuset from a SynchronizeResponse, or from one or several updates."""
    changes = messages(read(response), 1)
    return {text(it, 1): text(embedded(embedded(embedded(it, 2), 1), 2), 6) for it in changes}


@dataclass(frozen=True)
class Given:
    cpus: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[tuple[str, str], ...] = ()  #: source and destination
    memory_nodes: str = ""
    mark: str = ""


def given(response: bytes) -> Given:
    adjust = embedded(read(response), 1)
    cpu = embedded(embedded(embedded(adjust, 6), 2), 2)
    marks = {text(it, 1): text(it, 2) for it in messages(adjust, 2)}
    assert marks.keys() <= {"affinityd/placed"}
    return Given(
        text(cpu, 6),
        {text(it, 1): text(it, 2) for it in messages(adjust, 4)},
        tuple((text(it, 3), text(it, 1)) for it in messages(adjust, 3)),
        text(cpu, 7),
        marks.get("affinityd/placed", ""),
    )


class Runtime:
    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(PATIENCE)
        self._listener.bind(str(path))
        self._listener.listen()
        self.connection = socket.socket(socket.AF_UNIX)  # for the plugin
        self._stream = -1

    def has_caller(self) -> bool:
        return bool(select.select([self._listener], [], [], 0)[0])

    def accept(self) -> Fields:
        """Accept a plugin; return its registration."""
        self._trunk, self._waiting = Trunk(), list[Ttrpc]()
        self.connection.close()
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(PATIENCE)
        request = self._received(REQUEST)
        assert request.connection == RUNTIME
        self.connection.sendall(packed(Ttrpc(RUNTIME, request.stream, RESPONSE, b"")))
        return embedded(read(request.data), 3)

    def ask(self, *requests: tuple[str, bytes]) -> list[bytes]:
        streams = []
        data = b""
        for method, payload in requests:
            self._stream += 2
            streams.append(self._stream)
            asked = wire.field(1, "nri.pkg.api.v1alpha1.Plugin") + wire.field(2, method)
            asked += wire.field(3, payload) + wire.field(4, 2 * 10**9)
            data += packed(Ttrpc(PLUGIN, self._stream, REQUEST, asked))
        self.connection.sendall(data)
        answers = [self._received(RESPONSE) for _ in requests]
        assert [it.stream for it in answers] == streams
        return [self._payload(it) for it in answers]

    def updated(self, answer: bytes = b"") -> dict[str, str]:
        """Wait for changes of running containers that the plugin requests by itself."""
        request = self._received(REQUEST)
        assert request.connection == RUNTIME
        self.connection.sendall(packed(Ttrpc(RUNTIME, request.stream, RESPONSE, answer)))
        asked = read(request.data)
        assert text(asked, 2) == "UpdateContainers"
        return updated(asked[3][-1])

    def create(self, request: bytes) -> Given:
        (answer,) = self.ask(("CreateContainer", request))
        return given(answer)

    def close(self) -> None:
        """Close the connection; another plugin may connect."""
        self.connection.close()

    def end(self) -> None:
        self.close()
        self._listener.close()

    def _received(self, kind: int) -> Ttrpc:
        while kind not in [message.kind for message in self._waiting]:
            self._waiting += self._trunk.received(self.connection.recv(4096))
        place = [message.kind for message in self._waiting].index(kind)
        return self._waiting.pop(place)

    def _payload(self, response: Ttrpc) -> bytes:
        assert (response.connection, response.kind) == (PLUGIN, RESPONSE)
        answered = read(response.data)
        assert 1 not in answered, "an error would fail the container"
        payload = answered.get(2, (b"",))[-1]
        assert isinstance(payload, bytes)
        return payload
