"""A device plugin of the tests: announces GPUs to kubelet, each on a NUMA node, and allocates them.

argv: kubelet's folder of device plugins, the node's folder of device files, then ID=NODE:MINOR for
each GPU: its file is nvidiaMINOR. To kubelet it is what NVIDIA's is
(k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto): a container gets the device files of its
GPUs in /dev, and their ids in NVIDIA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

RESOURCE, ENDPOINT = b"nvidia.com/gpu", b"affinityd-tests.sock"
HIGH = 0x80  #: the bit of a number's bytes that more of them follow


def varint(number: int) -> bytes:
    rest, low = divmod(number, HIGH)
    return bytes([low | HIGH]) + varint(rest) if rest else bytes([low])


def field(number: int, *parts: bytes) -> bytes:
    """Return a field of bytes, as Protocol Buffers writes it."""
    data = b"".join(parts)
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def fields(message: bytes) -> Iterator[bytes]:
    """Yield the values of a message that has fields of bytes only."""
    while message:
        last = next(place for place in range(1, len(message)) if message[place] < HIGH)
        size = sum((byte % HIGH) << 7 * place for place, byte in enumerate(message[1 : last + 1]))
        yield message[last + 1 : last + 1 + size]
        message = message[last + 1 + size :]


@dataclass(frozen=True)
class Plugin(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Answers kubelet."""

    files: str  #: the node's folder of device files
    gpus: Sequence[tuple[str, int, str]]  #: id, NUMA node and device minor

    def service(self, details: Any) -> Any:  # noqa: ANN401 - grpc has no types
        method = details.method.rpartition("/")[2]
        if method == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(self._list)
        answer = self._allocate if method == "Allocate" else lambda _request, _context: b""
        return grpc.unary_unary_rpc_method_handler(answer)

    def _list(self, _request: bytes, _context: object) -> Iterator[bytes]:
        yield b"".join(_device(name, node) for name, node, _ in self.gpus)
        threading.Event().wait()

    def _allocate(self, request: bytes, _context: object) -> bytes:
        asked = ([it.decode() for it in fields(container)] for container in fields(request))
        return b"".join(self._given(ids) for ids in asked)

    def _given(self, ids: Sequence[str]) -> bytes:
        """Return what one container gets."""
        minors = [minor for name, _, minor in self.gpus if name in ids]
        visible = field(1, field(1, b"NVIDIA_VISIBLE_DEVICES"), field(2, ",".join(ids).encode()))
        return field(1, visible, *(self._file(f"nvidia{minor}") for minor in minors))

    def _file(self, name: str) -> bytes:
        inside, outside = f"/dev/{name}".encode(), f"{self.files}/{name}".encode()
        return field(3, field(1, inside), field(2, outside), field(3, b"rw"))


def _device(name: str, node: int) -> bytes:
    topology = field(1, bytes([0x08, node]) if node else b"")
    return field(1, field(1, name.encode()), field(2, b"Healthy"), field(3, topology))


def main() -> None:
    """Serve, register, and wait."""
    folder, files, *devices = sys.argv[1:]
    words = (it.replace(":", "=").split("=") for it in devices)
    plugin = Plugin(files, [(name, int(node), minor) for name, node, minor in words])
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((plugin,))
    server.add_insecure_port(f"unix:{folder}/{ENDPOINT.decode()}")
    server.start()
    register = grpc.insecure_channel(f"unix:{folder}/kubelet.sock").unary_unary(
        "/v1beta1.Registration/Register"
    )
    register(field(1, b"v1beta1") + field(2, ENDPOINT) + field(3, RESOURCE), timeout=30)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
