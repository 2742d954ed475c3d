"""Series as a Prometheus has them: a sample a minute.

As promtool writes them: `1x20` is 1 and 20 times more, `0+6x90` grows by 6, `_` is a gap.
"""

from __future__ import annotations

from collections.abc import Mapping

Series = Mapping[str, str]  #: series → its samples

GPU07 = {"job": "affinityd", "instance": "a", "node": "gpu07"}
GPU08 = {**GPU07, "instance": "b", "node": "gpu08"}

#: Alerts of a fleet: one for each cluster, whose value is a number of nodes.
FLEET = {"AffinitydUnpinned", "AffinitydNumaBalancingIsOn"}


def labels(pairs: Mapping[str, str] | None = None, **more: str) -> str:
    """Return labels as a series has them."""
    both = {**(pairs or {}), **more}
    return "{" + ",".join(f'{name}="{text}"' for name, text in both.items()) + "}"


def series(name: str, **more: str) -> str:
    """Return a series of the node gpu07."""
    return f"{name}{labels(GPU07, **more)}"


def clustered(played: Series, *clusters: str) -> Series:
    """Return series as a Prometheus has them that sees them in each of these clusters."""
    return {
        name.replace("{", f'{{cluster="{cluster}",', 1): samples
        for cluster in clusters
        for name, samples in played.items()
    }


def of_gpu(name: str, gpu: int = 0, **more: str) -> str:
    """Return a series of a GPU of that node."""
    return series(name, gpu=str(gpu), uuid="", pci_bus_id=f"0000:0{gpu}:00.0", **more)


def mismatch(cause: str, gpu: int = 0) -> str:
    """Return the series of a GPU's mismatch."""
    return of_gpu("affinityd_gpu_numa_mismatch", gpu, cause=cause)


def left(reason: str, gpu: int = 0) -> str:
    """Return the series of a GPU's processes that are let alone for a reason."""
    return of_gpu("affinityd_enforce_left_processes", gpu, reason=reason)


def would_pin(cause: str, gpu: int = 0) -> str:
    """Return the series of a GPU's processes that a pin mends."""
    return of_gpu("affinityd_enforce_would_pin_processes", gpu, cause=cause)


REMEDY = "node_gpu_remedy:affinityd_gpu_numa_mismatch:max"


def remedied(remedy: str, gpu: int, node: str = "gpu07") -> str:
    """Return what the rules record of a GPU that runs far."""
    place = {"job": "affinityd", "node": node, "gpu": f"{gpu}", "pci_bus_id": f"0000:0{gpu}:00.0"}
    return f"{REMEDY}{labels(place, remedy=remedy)}"


FAR, TOTAL = (of_gpu(f"affinityd_gpu_{it}cpu_seconds_total") for it in ("remote_", ""))
UNPLACED = of_gpu("affinityd_gpu_cpu_seconds_total", 1)  #: of a GPU whose node is not known


def far_gpu(gpu: int, mismatch: str) -> Series:
    """Return what affinityd says of a GPU as dcgm-exporter names it: a quarter of its time is far.

    Of the labels of both no two are the same.
    """
    named = {"gpu": str(gpu), "uuid": f"GPU-{gpu}a1f", "pci_bus_id": f"0000:e{gpu}:00.0"}
    return {
        series("affinityd_gpu_numa_mismatch", **named, cause="mask"): mismatch,
        series("affinityd_gpu_cpu_seconds_total", **named): "0+40x9",
        series("affinityd_gpu_remote_cpu_seconds_total", **named): "0+10x9",
    }


def util(gpu: int, **more: str) -> str:
    """Return dcgm-exporter's series of that GPU."""
    named = {"gpu": str(gpu), "UUID": f"GPU-{gpu}a1f", "pci_bus_id": f"00000000:E{gpu}:00.0"}
    return f"DCGM_FI_DEV_GPU_UTIL{labels(named, **more)}"
