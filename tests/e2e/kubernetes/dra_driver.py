"""A DRA driver of the tests: prepares devices for pods, and gives their containers nothing.

argv: kubelet's folder, as kubelet sees it and as this process does, the driver's name, and the pool
and name of its only device. Sources: k8s.io/kubelet/pkg/apis/pluginregistration/v1 and dra/v1,
api.proto.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from affinityd.linux.protobuf import field, messages, read, text


@dataclass(frozen=True)
class Driver(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Answers kubelet."""

    name: str
    endpoint: str
    pool: str
    device: str
    registered: threading.Event = dataclasses.field(default_factory=threading.Event)

    def service(self, details: Any) -> Any:  # noqa: ANN401 - grpc has no types
        method = details.method.rpartition("/")[2]
        answers = {
            "GetInfo": self._info,
            "NodePrepareResources": self._prepare,
            "NodeUnprepareResources": self._unprepare,
        }
        answer = answers.get(method, self._registered)
        return grpc.unary_unary_rpc_method_handler(answer)

    def _info(self, _request: bytes, _context: object) -> bytes:
        named = field(1, "DRAPlugin") + field(2, self.name) + field(3, self.endpoint)
        return named + field(4, "v1.DRAPlugin") + field(4, "v1beta1.DRAPlugin")

    def _prepare(self, request: bytes, _context: object) -> bytes:
        device = field(1, "gpu") + field(2, self.pool) + field(3, self.device)
        return b"".join(
            field(1, field(1, text(claim, 2)) + field(2, field(1, device)))
            for claim in messages(read(request), 1)
        )

    def _unprepare(self, request: bytes, _context: object) -> bytes:
        claims = messages(read(request), 1)
        return b"".join(field(1, field(1, text(it, 2)) + field(2, b"")) for it in claims)

    def _registered(self, _request: bytes, _context: object) -> bytes:
        self.registered.set()
        return b""


def main() -> None:
    """Serve, and wait. A kubelet that knows no driver of a ResourceSlice deletes it."""
    seen, here, name, pool, device = sys.argv[1:]
    folder = Path(here, "plugins", name)
    folder.mkdir(parents=True, exist_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    driver = Driver(name, f"{seen}/plugins/{name}/dra.sock", pool, device)
    server.add_generic_rpc_handlers((driver,))
    server.add_insecure_port(f"unix:{folder}/dra.sock")
    server.add_insecure_port(f"unix:{here}/plugins_registry/{name}.sock")
    server.start()
    driver.registered.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
