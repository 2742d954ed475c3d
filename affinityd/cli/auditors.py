"""The auditor of this machine, as the settings have it: of the daemon and of `affinityd audit`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from affinityd.audit.auditor import Auditor, unmeasured, unnamed
from affinityd.audit.sources.holders import HolderSources
from affinityd.config.settings import Settings
from affinityd.cpuset import CpuSet
from affinityd.discovery.nvml import ProcessReport
from affinityd.kubernetes.pods import KubeletPods
from affinityd.measure.document import gpu_ratios


def auditor_by(
    chosen: Settings, query: Callable[[float], ProcessReport], reserved: CpuSet
) -> Auditor:
    """Return the auditor; `query` asks NVML for the processes of its GPUs.

    `reserved`: the CPUs that no plan gives.
    """
    return Auditor(
        HolderSources(query),
        reserved=reserved,
        name_pods=KubeletPods(chosen.pod_resources).name if chosen.pod_resources else unnamed,
        measured=partial(gpu_ratios, chosen.measured) if chosen.measured else unmeasured,
    )
