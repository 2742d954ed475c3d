"""A device plugin, or a DRA driver, of the tests; to kubelet they are as NVIDIA's are.

devices FOLDER FILES ID=NODE:MINOR...: kubelet's folder of device plugins, the node's folder of
device files, and GPUs, each with its NUMA node: a container gets the files nvidiaMINOR in /dev, and
the ids in NVIDIA_VISIBLE_DEVICES.

claims SEEN HERE NAME POOL DEVICE: kubelet's folder as kubelet sees it and as this process does, the
driver's name, its pool and its only device, of which containers get nothing.

Sources: api.proto of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, pluginregistration/v1, dra/v1.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from affinityd.linux.protobuf import field, messages, read, text, texts

RESOURCE, ENDPOINT = "nvidia.com/gpu", "affinityd-tests.sock"
Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Service(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Answers kubelet; any other method is answered with an empty message."""

    methods: Mapping[str, Answer]
    devices: bytes = b""  #: what ListAndWatch sends, once

    def service(self, details: Any) -> Any:  # noqa: ANN401 - grpc has no types
        method = details.method.rpartition("/")[2]
        if method == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(self._list)
        answer = self.methods.get(method, lambda _request: b"")
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: answer(request))  # type: ignore[no-untyped-call]

    def _list(self, _request: bytes, _context: object) -> Iterator[bytes]:
        yield self.devices
        threading.Event().wait()


def serve(service: Service, *sockets: str) -> Any:  # noqa: ANN401 - grpc has no types
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((service,))
    for path in sockets:
        server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def announce_devices(folder: str, files: str, *gpus: str) -> Any:  # noqa: ANN401 - grpc has no types
    places = {name: place.split(":") for name, _, place in (gpu.partition("=") for gpu in gpus)}

    def device(name: str, node: int) -> bytes:
        topology = field(3, field(1, field(1, node)))
        return field(1, field(1, name) + field(2, "Healthy") + topology)

    def device_file(minor: str) -> bytes:
        paths = field(1, f"/dev/nvidia{minor}") + field(2, f"{files}/nvidia{minor}")
        return field(3, paths + field(3, "rw"))

    def allocate(request: bytes) -> bytes:
        answers = []
        for container in messages(read(request), 1):
            ids = texts(container, 1)
            visible = field(1, "NVIDIA_VISIBLE_DEVICES") + field(2, ",".join(ids))
            granted = (device_file(places[name][1]) for name in places if name in ids)
            answers.append(field(1, field(1, visible) + b"".join(granted)))
        return b"".join(answers)

    devices = b"".join(device(name, int(node)) for name, (node, _) in places.items())
    server = serve(Service({"Allocate": allocate}, devices), f"{folder}/{ENDPOINT}")
    register = grpc.insecure_channel(f"unix:{folder}/kubelet.sock").unary_unary(
        "/v1beta1.Registration/Register"
    )
    register(field(1, "v1beta1") + field(2, ENDPOINT) + field(3, RESOURCE), timeout=30)
    return server


def prepare_claims(seen: str, here: str, name: str, pool: str, device: str) -> Any:  # noqa: ANN401
    """Serve until kubelet knows the driver: it deletes a ResourceSlice of an unknown one."""
    registered = threading.Event()

    def info(_request: bytes) -> bytes:
        endpoint = f"{seen}/plugins/{name}/dra.sock"
        named = field(1, "DRAPlugin") + field(2, name) + field(3, endpoint)
        return named + field(4, "v1.DRAPlugin") + field(4, "v1beta1.DRAPlugin")

    def is_registered(_request: bytes) -> bytes:
        registered.set()
        return b""

    def answer_claims(prepared: bytes) -> Answer:
        return lambda request: b"".join(
            field(1, field(1, text(claim, 2)) + field(2, prepared))
            for claim in messages(read(request), 1)
        )

    granted = field(1, "gpu") + field(2, pool) + field(3, device)
    methods = {
        "GetInfo": info,
        "NotifyRegistrationStatus": is_registered,
        "NodePrepareResources": answer_claims(field(1, granted)),
        "NodeUnprepareResources": answer_claims(b""),
    }
    Path(here, "plugins", name).mkdir(parents=True, exist_ok=True)
    sockets = (f"{here}/plugins/{name}/dra.sock", f"{here}/plugins_registry/{name}.sock")
    server = serve(Service(methods), *sockets)
    registered.wait()
    return server


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    running = (announce_devices if kind == "devices" else prepare_claims)(*words)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    running.wait_for_termination()
