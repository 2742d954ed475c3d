"""A GPU as affinityd and NVIDIA's dcgm-exporter say it: of its labels no two are the same."""

from __future__ import annotations

from collections.abc import Mapping

from tests.e2e.chart.alert_cases import labels, series


def far_gpu(gpu: int, mismatch: str) -> Mapping[str, str]:
    """Return what affinityd says of a GPU: a quarter of its CPU time is far."""
    named = {"gpu": str(gpu), "uuid": f"GPU-{gpu}a1f", "pci_bus_id": f"0000:e{gpu}:00.0"}
    return {
        series("affinityd_gpu_numa_mismatch", **named, cause="mask"): mismatch,
        series("affinityd_gpu_cpu_seconds_total", **named): "0+40x9",
        series("affinityd_gpu_remote_cpu_seconds_total", **named): "0+10x9",
    }


def util(gpu: int, **more: str) -> str:
    """Return dcgm-exporter's series of that GPU."""
    named = {"gpu": str(gpu), "UUID": f"GPU-{gpu}a1f", "pci_bus_id": f"00000000:E{gpu}:00.0"}
    return f"DCGM_FI_DEV_GPU_UTIL{labels({**named, **more})}"
