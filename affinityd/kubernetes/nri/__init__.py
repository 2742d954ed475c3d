"""The session of a plugin with a runtime: it registers, then answers until the runtime disconnects.

Sources: containerd/nri pkg/adaptation/plugin.go, pkg/stub/stub.go. If an answer has an error, the
runtime does not start the container. So no answer here has an error: after a failure it is empty.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from affinityd.kubernetes.nri.messages import (
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Trunk,
    Ttrpc,
    packed,
)
from affinityd.linux.protobuf import embedded, field, number, read, text

REGISTRATION = 1  #: the stream of the first request
SEND_SECONDS = 2  #: seconds that the runtime may take to read what is sent

Answer = Callable[[bytes], bytes]  #: Answers a method: request to response.


#: Keeps exceptions inside its block.
Guard = Callable[[], AbstractContextManager[None]]
#: Returns the seconds until the next call (or None), and UpdateContainersRequests by container.
Updates = Callable[[], tuple[float | None, Mapping[str, bytes]]]


def serve(
    path: str,
    answers: Mapping[str, Answer],
    guard: Guard,
    updates: Updates,
    refused: Callable[[str], None],
) -> Iterator[None]:
    """Answer the runtime that listens at a socket; yield once it has registered this plugin.

    `refused` is called with each container that the runtime did not update. Ends when the runtime
    closes the connection. Raises OSError if there is no runtime, ValueError if it does not speak
    NRI or refuses the plugin.
    """
    trunk = Trunk()
    stream = REGISTRATION
    sent: dict[int, str] = {}  # stream of an update → container of the update
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SEND_SECONDS)
        connection.connect(path)
        # Index 99 makes this plugin the last. If two plugins set one cpuset, variable or mount, the
        # container fails, and only the later plugin can see what the earlier one has set.
        plugin = field(1, "affinityd") + field(2, "99")
        connection.sendall(_request(stream, "RegisterPlugin", plugin))
        while True:
            seconds, changes = updates()
            for container, update in changes.items():
                stream += 2
                sent[stream] = container
                connection.sendall(_request(stream, "UpdateContainers", update))
            data = _receive(connection, seconds)
            if data == b"":
                return
            for message in trunk.received(data or b""):
                if message.connection == RUNTIME and message.stream == REGISTRATION:
                    _check(message)
                    yield
                elif message.connection == RUNTIME and message.stream in sent:
                    container = sent.pop(message.stream)
                    if _is_failure(message):
                        refused(container)
                elif message.connection == PLUGIN and message.kind == REQUEST:
                    answered = reply(message.data, answers, guard)
                    connection.sendall(packed(Ttrpc(PLUGIN, message.stream, RESPONSE, answered)))


def _receive(connection: socket.socket, seconds: float | None) -> bytes | None:
    """Return the received bytes; None: nothing came within so many seconds."""
    if seconds is not None:
        seconds = max(seconds, 0.01)  # with 0 no request would be received between two attempts
    connection.settimeout(seconds)
    try:
        return connection.recv(65536)
    except TimeoutError:
        return None
    finally:
        connection.settimeout(SEND_SECONDS)


def reply(request: bytes, answers: Mapping[str, Answer], guard: Guard) -> bytes:
    """Return the ttrpc.Response to a ttrpc.Request; it is empty for a request that is not known."""
    payload = b""
    with guard():
        asked = read(request)
        payload_of = asked.get(3, (b"",))[-1]
        answer = answers.get(text(asked, 2))
        if answer is not None and isinstance(payload_of, bytes):
            payload = answer(payload_of)
    return field(2, payload)


def _request(stream: int, method: str, payload: bytes) -> bytes:
    request = field(1, "nri.pkg.api.v1alpha1.Runtime") + field(2, method) + field(3, payload)
    return packed(Ttrpc(RUNTIME, stream, REQUEST, request))


def _check(response: Ttrpc) -> None:
    status = embedded(read(response.data), 1)
    if number(status, 1):
        raise ValueError(f"the runtime refused the plugin: {text(status, 2)}")


def _is_failure(response: Ttrpc) -> bool:
    """Return whether an UpdateContainersResponse has an error, or a container that failed."""
    answered = read(response.data)
    return bool(number(embedded(answered, 1), 1) or embedded(answered, 2))


def configure(_request: bytes) -> bytes:
    """Return a ConfigureResponse: the events that the runtime is to send."""
    events = 1 << 3 | 1 << 4 | 1 << 7 | 1 << 9 | 1 << 10  # create, created, update, stop, remove
    return field(2, events)
