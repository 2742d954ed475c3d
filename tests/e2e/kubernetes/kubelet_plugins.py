"""A device plugin and a DRA driver for tests; kubelet treats them like NVIDIA's.

devices FOLDER RESOURCE WAYS ID=NODE:FILE:NAME... announces GPUs to the kubelet that listens in
FOLDER. A GPU has a NUMA node, a device file on the node, and a name of that file in a container.
WAYS say what a container gets: file (device files), variable (ids in NVIDIA_VISIBLE_DEVICES), and
cdi (ids as devices of the CDI kind RESOURCE).

claims SEEN HERE NAME POOL DEVICE [CDI] serves a DRA driver, whose POOL has only this DEVICE. SEEN
and HERE are kubelet's folder as kubelet and as this process sees it. CDI is what a container gets.

Sources: api.proto of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, pluginregistration/v1, dra/v1.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from affinityd.linux.protobuf import field, messages, read, text, texts

Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Service(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Answers kubelet; the answer to a method that is not in `methods` is empty."""

    methods: Mapping[str, Answer]
    devices: bytes = b""  #: the only message of ListAndWatch

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


def announce_devices(folder: str, resource: str, ways: str, *gpus: str) -> Any:  # noqa: ANN401
    places = {name: place.split(":") for name, _, place in (gpu.partition("=") for gpu in gpus)}
    endpoint = f"{resource.replace('/', '-')}.sock"

    def device(name: str, node: int) -> bytes:
        topology = field(3, field(1, field(1, node)))
        return field(1, field(1, name) + field(2, "Healthy") + topology)

    def device_file(name: str) -> bytes:
        _, path, inside = places[name]
        return field(3, field(1, inside) + field(2, path) + field(3, "rw"))

    def granted(ids: Sequence[str]) -> Iterator[bytes]:
        if "variable" in ways:
            yield field(1, field(1, "NVIDIA_VISIBLE_DEVICES") + field(2, ",".join(ids)))
        if "file" in ways:
            yield from map(device_file, ids)
        if "cdi" in ways:
            yield from (field(5, field(1, f"{resource}={name}")) for name in ids)

    def allocate(request: bytes) -> bytes:
        containers = messages(read(request), 1)
        return b"".join(field(1, b"".join(granted(texts(it, 1)))) for it in containers)

    devices = b"".join(device(name, int(node)) for name, (node, *_) in places.items())
    server = serve(Service({"Allocate": allocate}, devices), f"{folder}/{endpoint}")
    register = grpc.insecure_channel(f"unix:{folder}/kubelet.sock").unary_unary(
        "/v1beta1.Registration/Register"
    )
    register(field(1, "v1beta1") + field(2, endpoint) + field(3, resource), timeout=30)
    return server


def prepare_claims(  # noqa: PLR0917 - words of a command line
    seen: str, here: str, name: str, pool: str, device: str, cdi: str = ""
) -> Any:  # noqa: ANN401
    """Return once kubelet knows the driver: kubelet deletes unknown drivers' ResourceSlices."""
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
    granted += field(4, cdi) if cdi else b""
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
