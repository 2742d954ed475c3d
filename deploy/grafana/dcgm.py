"""Beside NVIDIA's dcgm-exporter: GPUs that are idle while their processes are far, or wait.

Its labels differ from affinityd's: its `UUID` is `uuid` here, and its `pci_bus_id`,
`00000000:E1:00.0`, is `0000:e1:00.0`. A join on labels of the same name finds nothing.
"""

from __future__ import annotations

from deploy.grafana import looks
from deploy.grafana.node_series import BUSY, FAR, WAITED, of
from deploy.grafana.queries import increase, rate, share
from deploy.grafana.tables import Column, table_of

IDLE = 20  #: per cent of the last ten minutes; a GPU that works for less is idle

_EXPORTER = ".*dcgm-exporter-.*"
#: Arguments of `label_replace`, in order: label, value, source, pattern.
_RELABELED = (
    ("uuid", "$1", "UUID", "(.+)"),
    # Of a GPU that no pod has, Prometheus may say that it is the exporter's.
    ("namespace", "", "pod", _EXPORTER),
    ("pod", "", "pod", _EXPORTER),
    # Without honorLabels, `pod` is the exporter's own, and that of the GPU is called so.
    ("namespace", "$1", "exported_namespace", "(.+)"),
    ("pod", "$1", "exported_pod", "(.+)"),
)
_KEYS = {"gpu": "GPU", "pci_bus_id": "PCI bus id", "namespace": "Namespace", "pod": "Pod"}


def _works() -> str:
    """Return how much each GPU works, by its uuid and the pods that have it."""
    expr = "avg_over_time(DCGM_FI_DEV_GPU_UTIL[10m])"
    for label, value, source, pattern in _RELABELED:
        expr = f'label_replace({expr}, "{label}", "{value}", "{source}", "{pattern}")'
    return f"max by (uuid, namespace, pod) ({expr})"


_PLACED = of("affinityd_gpu_numa_mismatch", 'uuid!=""')
_IS_FAR = f"(max by (gpu, pci_bus_id, uuid) ({_PLACED}) == 1)"
_ROWS = f"({_works()} * on (uuid) group_left (gpu, pci_bus_id) {_IS_FAR} < {IDLE})"
_FAR_TIME = share(increase(FAR, "$__range"), increase(BUSY, "$__range"), "uuid")


def _by_row(expr: str) -> str:
    return f"max by ({', '.join(_KEYS)}) ({expr})"


IDLE_GPUS = table_of(
    "Which GPUs are far from their CPUs and idle, by pod?",
    _KEYS,
    [
        Column("GPU busy", _by_row(_ROWS), looks.PERCENT),
        Column(
            "CPU time far",
            _by_row(f"{_ROWS} * 0 + on (uuid) group_left () ({_FAR_TIME})"),
            looks.SHARE,
            looks.SHARE_LEVELS,
        ),
    ],
    about=f"GPUs with a mismatch now that were busy for less than {IDLE} % of the last ten "
    "minutes, by dcgm-exporter's DCGM_FI_DEV_GPU_UTIL: they may wait for their CPUs. A row without "
    "a pod: the process runs outside Kubernetes.",
    sort="CPU time far",
    empty="none, or Prometheus scrapes no dcgm-exporter",
    height=7,
)

#: Seconds a second of all threads from which on a GPU's processes wait.
WAITING = 0.1
_WAIT = f"(sum by (gpu, pci_bus_id, uuid) ({rate(WAITED)}) > {WAITING})"
_WAITING = f"({_works()} * on (uuid) group_left (gpu, pci_bus_id) ({_WAIT} * 0 + 1))"

WAITING_GPUS = table_of(
    "Which GPUs wait for their CPUs, and how busy are they?",
    _KEYS,
    [
        Column("GPU busy", _by_row(_WAITING), looks.PERCENT),
        Column(
            "Waits",
            _by_row(f"{_WAITING} * 0 + on (uuid) group_left () sum by (uuid) ({rate(WAITED)})"),
            looks.CPUS,
        ),
    ],
    about="GPUs whose processes wait for CPUs, and DCGM_FI_DEV_GPU_UTIL of dcgm-exporter over ten "
    "minutes. Little GPU use beside long waits: the CPUs hold it up. Little of both: the job has "
    "no work for it. Waits: seconds in a second, of all threads together.",
    sort="Waits",
    empty="none, or Prometheus scrapes no dcgm-exporter",
    height=7,
)
