"""What NVIDIA's dcgm-exporter answers of the GPUs of `audited_node`, as its documentation has it.

It is scraped by two jobs: as on Kubernetes, where targets have labels of the exporter's own pod,
and as by a plain Prometheus.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.audited_node import pci_bus_id, uuid
from tests.support.made_nodes import DRIVER

HEAD = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
"""
#: Path → GPU → how much it works, in per cent, for a pod. GPU 0, 1 and 3 are far, 4 is near.
ANSWERS: Mapping[str, Mapping[int, tuple[int, str]]] = {
    "/operator": {0: (3, "train-0"), 1: (97, "train-1"), 2: (0, "train-2"), 4: (0, "train-4")},
    "/plain": {3: (0, "train-3")},
}
OF_EXPORTER = {
    "namespace": "gpu-operator",
    "pod": "nvidia-dcgm-exporter-x7k2p",
    "container": "nvidia-dcgm-exporter",
}


def exposition(gpus: Mapping[int, tuple[int, str]]) -> str:
    """Return what is scraped."""
    return HEAD + "".join(_sample(gpu, works, pod) for gpu, (works, pod) in gpus.items())


def _sample(gpu: int, works: int, pod: str) -> str:
    labels = {
        "gpu": str(gpu),
        "UUID": uuid(gpu),
        "pci_bus_id": pci_bus_id(gpu),
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA Test",
        "Hostname": "gpu09",
        "DCGM_FI_DRIVER_VERSION": DRIVER,
        "container": "main",
        "namespace": "team",
        "pod": pod,
    }
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"DCGM_FI_DEV_GPU_UTIL{{{pairs}}} {works}\n"


class _Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = exposition(ANSWERS[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Say nothing."""


@contextmanager
def dcgm_exporter() -> Iterator[Sequence[Mapping[str, Any]]]:
    """Serve it; yield the scrape configurations of both jobs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = {"targets": [f"127.0.0.1:{server.server_port}"]}
        yield [
            {
                "job_name": "nvidia-dcgm-exporter",
                "metrics_path": "/operator",
                "static_configs": [{**at, "labels": OF_EXPORTER}],
            },
            {"job_name": "dcgm", "metrics_path": "/plain", "static_configs": [at]},
        ]
        server.shutdown()
