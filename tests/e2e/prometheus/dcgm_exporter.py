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

from tests.e2e.prometheus.audited_node import pci_bus_id, uuid
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
OWN = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p", "container": "exporter"}


def _sample(gpu: int, works: int, pod: str) -> str:
    return (
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}",UUID="{uuid(gpu)}",pci_bus_id="{pci_bus_id(gpu)}",'
        f'device="nvidia{gpu}",modelName="NVIDIA Test",Hostname="gpu09",'
        f'DCGM_FI_DRIVER_VERSION="{DRIVER}",container="main",namespace="team",pod="{pod}"}}'
        f" {works}\n"
    )


class _Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        samples = (_sample(gpu, works, pod) for gpu, (works, pod) in ANSWERS[self.path].items())
        self.wfile.write((HEAD + "".join(samples)).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Say nothing."""


@contextmanager
def dcgm_exporter() -> Iterator[Sequence[Mapping[str, Any]]]:
    """Serve it; yield the scrape configurations of both jobs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = {"targets": [f"127.0.0.1:{server.server_port}"]}
        operators = {"metrics_path": "/operator", "static_configs": [{**at, "labels": OWN}]}
        plain = {"metrics_path": "/plain", "static_configs": [at]}
        yield [{"job_name": "nvidia-dcgm-exporter", **operators}, {"job_name": "dcgm", **plain}]
        server.shutdown()
