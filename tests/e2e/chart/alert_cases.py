"""Series that an alert fires on, and the like that it does not: a sample a minute.

As promtool writes them: `1x20` is 1 and 20 times more, `0+6x90` grows by 6, `_` is a gap.
"""

from __future__ import annotations

from collections.abc import Mapping

Case = tuple[str, Mapping[str, str], int, bool]  #: alert, series → samples, minutes, fires

GPU07 = {"job": "affinityd", "instance": "a", "node": "gpu07"}

#: Alerts of a fleet: one for each cluster, whose value is a number of nodes.
FLEET = {"AffinitydUnpinned", "AffinitydNumaBalancingIsOn"}


def labels(pairs: Mapping[str, str]) -> str:
    """Return labels as a series has them."""
    return "{" + ",".join(f'{name}="{text}"' for name, text in pairs.items()) + "}"


def series(name: str, **more: str) -> str:
    """Return a series of the node gpu07."""
    return f"{name}{labels({**GPU07, **more})}"


def clustered(series: Mapping[str, str], *clusters: str) -> dict[str, str]:
    """Return series as a Prometheus has them that sees them in each of these clusters."""
    return {
        name.replace("{", f'{{cluster="{cluster}",', 1): samples
        for cluster in clusters
        for name, samples in series.items()
    }


def of_gpu(name: str, gpu: int = 0, **more: str) -> str:
    """Return a series of a GPU of that node."""
    return series(name, gpu=str(gpu), uuid="", pci_bus_id=f"0000:0{gpu}:00.0", **more)


def mismatch(cause: str, gpu: int = 0) -> str:
    """Return the series of a GPU's mismatch."""
    return of_gpu("affinityd_gpu_numa_mismatch", gpu, cause=cause)


def plans(**more: str) -> str:
    """Return a series of plans in the mode `node`."""
    return series("affinityd_plans_total", mode="node", **more)


BUILD, GENERATION = series("affinityd_build_info"), series("affinityd_topology_generation")
ELSEWHERE = 'affinityd_topology_generation{job="affinityd",instance="b"}'
GPUS, NO_GPU = series("affinityd_gpus", vendor="amd"), series("affinityd_cpus", state="online")
LOCAL = plans(result="ok", locality="local")
REMOTE = plans(result="ok", locality="remote")
REFUSED = plans(result="404", locality="")

#: What the daemon says of itself and of its plans.
DAEMON: tuple[Case, ...] = (
    ("AffinitydDown", {series("up"): "0x20"}, 6, True),
    ("AffinitydDown", {series("up"): "0x20"}, 4, False),
    ("AffinitydDown", {series("up"): "1x20"}, 6, False),
    ("AffinitydDown", {'up{job="node",instance="a"}': "0x20"}, 6, False),
    ("AffinitydDown", {'up{job="node",instance="a"}': "0x20", BUILD: "1x20"}, 6, False),
    ("AffinitydNotReady", {BUILD: "1x20"}, 6, True),
    ("AffinitydNotReady", {BUILD: "1x20", GENERATION: "1x20", ELSEWHERE: "1x20"}, 6, False),
    ("AffinitydSeesNoGpu", {GENERATION: "1x30"}, 16, True),
    ("AffinitydSeesNoGpu", {GENERATION: "1x30", GPUS: "8x30"}, 16, False),
    ("AffinitydPlansAreRemote", {LOCAL: "0+6x90", REMOTE: "0+1x90"}, 80, True),
    ("AffinitydPlansAreRemote", {LOCAL: "0+20x90", REMOTE: "0+1x90"}, 80, False),
    ("AffinitydPlansAreRemote", {LOCAL: "0+6x90"}, 80, False),
    ("AffinitydPlansAreRemote", {LOCAL: "5x90", REMOTE: "5x90"}, 80, False),
    ("AffinitydRefusesPlans", {LOCAL: "0+1x90", REFUSED: "0+3x90"}, 80, True),
    ("AffinitydRefusesPlans", {LOCAL: "0+3x90", REFUSED: "0+1x90"}, 80, False),
    ("AffinitydTopologyKeepsChanging", {GENERATION: "1+1x20"}, 20, True),
    ("AffinitydTopologyKeepsChanging", {GENERATION: "1x20 2x20"}, 40, False),
)

ORPHANS = of_gpu("affinityd_gpu_orphan_processes")
OVERLAP, AGE = series("affinityd_pin_overlap_cpus"), series("affinityd_scan_age_seconds")
BALANCING = series("affinityd_numa_balancing")
EVERY = series("affinityd_scan_interval_seconds")
AUDITED = of_gpu("affinityd_gpu_audited")
FAR, TOTAL = (of_gpu(f"affinityd_gpu_{it}cpu_seconds_total") for it in ("remote_", ""))
UNPLACED = of_gpu("affinityd_gpu_cpu_seconds_total", 1)  #: of a GPU whose node is not known

HINDERED = series("affinityd_enforce_hindered")
POLICY_ERROR = series("affinityd_enforce_policy_error")
NOTICES = series("affinityd_enforce_notices")


def left(reason: str, gpu: int = 0) -> str:
    """Return the series of a GPU's processes that are let alone for a reason."""
    return of_gpu("affinityd_enforce_left_processes", gpu, reason=reason)


def would_pin(cause: str, gpu: int = 0) -> str:
    """Return the series of a GPU's processes that a pin mends."""
    return of_gpu("affinityd_enforce_would_pin_processes", gpu, cause=cause)


def remedied(remedy: str, gpu: int, node: str = "gpu07") -> str:
    """Return what the rules record of a GPU that runs far."""
    pairs = {"job": "affinityd", "node": node, "gpu": f"{gpu}", "pci_bus_id": f"0000:0{gpu}:00.0"}
    return f"node_gpu_remedy:affinityd_gpu_numa_mismatch:max{labels({**pairs, 'remedy': remedy})}"


BY_CAUSE = {
    "allocation": "AffinitydAllocationIsRemote",
    "mask": "AffinitydMaskIsRemote",
    "unpinned": "AffinitydUnpinned",
}

#: A node on its first day: nothing is pinned, and the kernel is as the distribution has it.
UNTENDED = {mismatch("unpinned"): "1x90", BALANCING: "1x90", GPUS: "8x90"}

#: What the audit says of processes. 1200 and 90: CPU seconds a minute are CPUs times 60.
AUDIT: tuple[Case, ...] = (
    *((alert, {mismatch(cause): "1x40"}, 16, True) for cause, alert in BY_CAUSE.items()),
    *((alert, {mismatch(cause): "1x40"}, 14, False) for cause, alert in BY_CAUSE.items()),
    ("AffinitydUnpinned", {mismatch("unpinned"): "0x9 1x40"}, 41, True),
    ("AffinitydUnpinned", {mismatch("unpinned"): "0x9 1x40"}, 38, False),
    ("AffinitydUnpinned", {mismatch("unpinned"): "1x9 0 1x9 0 1x9 0 1x9"}, 38, False),
    *((alert, {mismatch(cause): "0x40"}, 16, False) for cause, alert in BY_CAUSE.items()),
    *((alert, {mismatch("other"): "1x40"}, 16, False) for alert in BY_CAUSE.values()),
    ("AffinitydAllocationIsRemote", {mismatch("allocation"): "1x9 0 1x30"}, 16, False),
    ("AffinitydRemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x90"}, 70, True),
    ("AffinitydRemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+240x90"}, 70, False),
    ("AffinitydRemoteCpuTimeIsHigh", {**UNTENDED, TOTAL: "0+1200x90", FAR: "0+600x90"}, 70, True),
    ("AffinitydRemoteCpuTimeIsHigh", {**UNTENDED, TOTAL: "0+1200x90", FAR: "0x90"}, 70, False),
    (
        "AffinitydRemoteCpuTimeIsHigh",
        {TOTAL: "0+1200x90", FAR: "0+600x90", UNPLACED: "0+9000x90"},
        70,
        True,
    ),
    ("AffinitydRemoteCpuTimeIsHigh", {TOTAL: "0+90x90", FAR: "0+50x90"}, 70, False),
    ("AffinitydRemoteCpuTimeIsHigh", {TOTAL: "7x90", FAR: "7x90"}, 70, False),
    ("AffinitydRemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x20 12000x70"}, 70, False),
    ("AffinitydOrphansHoldGpu", {ORPHANS: "2x20"}, 16, True),
    ("AffinitydOrphansHoldGpu", {ORPHANS: "2x9 0 1x10"}, 16, False),
    ("AffinitydOrphansHoldGpu", {ORPHANS: "0x20"}, 16, False),
    ("AffinitydPinsOverlap", {OVERLAP: "8x20"}, 16, True),
    ("AffinitydPinsOverlap", {OVERLAP: "0x20"}, 16, False),
    ("AffinitydCannotSeeIntoGpus", {AUDITED: "0x20"}, 16, True),
    ("AffinitydCannotSeeIntoGpus", {AUDITED: "1x20"}, 16, False),
    ("AffinitydScanIsOld", {AGE: "0+60x20", EVERY: "15x20"}, 4, True),
    ("AffinitydScanIsOld", {AGE: "0+60x20", EVERY: "300x20"}, 20, False),
    ("AffinitydScanIsOld", {AGE: "14x20", EVERY: "15x20"}, 15, False),
    ("AffinitydScanIsOld", {AGE: "0+60x7 3x20", EVERY: "15x20"}, 15, False),
    ("AffinitydScanIsOld", {AGE: "0+60x20", EVERY: "1x20"}, 4, True),
    ("AffinitydScanIsOld", {AGE: "36x20", EVERY: "1x20"}, 15, False),
    ("AffinitydScanIsOld", {EVERY: "15x20"}, 15, False),
    ("AffinitydHasNotScanned", {EVERY: "15x20"}, 3, True),
    ("AffinitydHasNotScanned", {EVERY: "15x20", AGE: "_ 20x20"}, 5, False),
    ("AffinitydHasNotScanned", {AGE: "15x20"}, 3, False),
    ("AffinitydNumaBalancingIsOn", {BALANCING: "1x90", GPUS: "8x90"}, 61, True),
    ("AffinitydNumaBalancingIsOn", {BALANCING: "0x90", GPUS: "8x90"}, 61, False),
    ("AffinitydNumaBalancingIsOn", {BALANCING: "1x90", NO_GPU: "8x90"}, 61, False),
)

#: What pinning from outside says of itself.
ENFORCE: tuple[Case, ...] = (
    ("AffinitydCannotPin", {HINDERED: "1x20"}, 11, True),
    ("AffinitydCannotPin", {HINDERED: "1x20"}, 9, False),
    ("AffinitydCannotPin", {HINDERED: "1x8 0 1x20"}, 11, False),
    ("AffinitydCannotPin", {HINDERED: "0x20"}, 11, False),
    ("AffinitydPolicyIsBroken", {POLICY_ERROR: "1x20"}, 11, True),
    ("AffinitydPolicyIsBroken", {POLICY_ERROR: "1x8 0x20"}, 11, False),
    ("AffinitydPolicyIsBroken", {POLICY_ERROR: "0x20"}, 11, False),
    ("AffinitydEnforcesBlind", {NOTICES: "2x20"}, 16, True),
    ("AffinitydEnforcesBlind", {NOTICES: "2x20"}, 14, False),
    ("AffinitydEnforcesBlind", {NOTICES: "1x9 0 1x20"}, 16, False),
    ("AffinitydEnforcesBlind", {NOTICES: "0x20"}, 16, False),
    ("AffinitydGaveUpPinning", {left("given_up"): "1x20"}, 16, True),
    ("AffinitydGaveUpPinning", {left("given_up"): "0x20", left("given_up", 1): "2x20"}, 16, True),
    ("AffinitydGaveUpPinning", {left("given_up"): "1x20"}, 14, False),
    ("AffinitydGaveUpPinning", {left("given_up"): "0x20"}, 16, False),
    ("AffinitydGaveUpPinning", {left("waiting"): "1x20"}, 16, False),
)

CASES: tuple[Case, ...] = (*DAEMON, *AUDIT, *ENFORCE)
