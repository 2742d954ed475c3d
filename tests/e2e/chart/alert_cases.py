"""Series that an alert fires on, and the like that it does not."""

from __future__ import annotations

from tests.e2e.chart.promtool import (
    FAR,
    TOTAL,
    UNPLACED,
    Series,
    left,
    mismatch,
    of_gpu,
    series,
)

Case = tuple[str, Series, int, bool]  #: alert without `Affinityd`, samples, minutes, fires

BUILD, GENERATION = series("affinityd_build_info"), series("affinityd_topology_generation")
ELSEWHERE = 'affinityd_topology_generation{job="affinityd",instance="b"}'
GPUS, NO_GPU = series("affinityd_gpus", vendor="amd"), series("affinityd_cpus", state="online")
LOCAL, REMOTE, REFUSED = (
    series("affinityd_plans_total", mode="node", result=result, locality=locality)
    for result, locality in (("ok", "local"), ("ok", "remote"), ("404", ""))
)
NRI = series("affinityd_nri_connected")
OTHER_UP = 'up{job="node",instance="a"}'

#: Alerts of one series, which fire when it was above 0 for so many minutes.
ABOVE_ZERO = (
    ("AllocationIsRemote", mismatch("allocation"), 15),
    ("MaskIsRemote", mismatch("mask"), 15),
    ("Unpinned", mismatch("unpinned"), 15),
    ("OrphansHoldGpu", of_gpu("affinityd_gpu_orphan_processes"), 15),
    ("PinsOverlap", series("affinityd_pin_overlap_cpus"), 15),
    ("CannotPin", series("affinityd_enforce_hindered"), 10),
    ("PolicyIsBroken", series("affinityd_enforce_policy_error"), 10),
    ("EnforcesBlind", series("affinityd_enforce_notices"), 15),
    ("GaveUpPinning", left("given_up"), 15),
)
#: Samples, minutes more than that, and whether it fires.
ABOVE = (("2x40", 1, True), ("2x40", -1, False), ("2x9 0 2x40", 1, False), ("0x40", 1, False))

#: What the daemon says of itself and of its plans.
DAEMON: tuple[Case, ...] = (
    ("Down", {series("up"): "0x20"}, 6, True),
    ("Down", {series("up"): "0x20"}, 4, False),
    ("Down", {series("up"): "1x20"}, 6, False),
    ("Down", {OTHER_UP: "0x20"}, 6, False),
    ("Down", {OTHER_UP: "0x20", BUILD: "1x20"}, 6, False),
    ("NotReady", {BUILD: "1x20"}, 6, True),
    ("NotReady", {BUILD: "1x20", GENERATION: "1x20", ELSEWHERE: "1x20"}, 6, False),
    ("SeesNoGpu", {GENERATION: "1x30"}, 16, True),
    ("SeesNoGpu", {GENERATION: "1x30", GPUS: "8x30"}, 16, False),
    ("PlansAreRemote", {LOCAL: "0+6x90", REMOTE: "0+1x90"}, 80, True),
    ("PlansAreRemote", {LOCAL: "0+20x90", REMOTE: "0+1x90"}, 80, False),
    ("PlansAreRemote", {LOCAL: "5x90", REMOTE: "5x90"}, 80, False),
    ("RefusesPlans", {LOCAL: "0+1x90", REFUSED: "0+3x90"}, 80, True),
    ("RefusesPlans", {LOCAL: "0+3x90", REFUSED: "0+1x90"}, 80, False),
    ("TopologyKeepsChanging", {GENERATION: "1+1x20"}, 20, True),
    ("TopologyKeepsChanging", {GENERATION: "1x20 2x20"}, 40, False),
    ("NriIsLost", {NRI: "0x20"}, 6, True),
    ("NriIsLost", {NRI: "0x3 1 0x20"}, 6, False),
    ("NriIsLost", {NRI: "1x20", BUILD: "1x20"}, 6, False),
)

AGE, EVERY = series("affinityd_scan_age_seconds"), series("affinityd_scan_interval_seconds")
BALANCING, AUDITED = series("affinityd_numa_balancing"), of_gpu("affinityd_gpu_audited")

#: A node on its first day: nothing is pinned, and the kernel is as the distribution has it.
UNTENDED = {mismatch("unpinned"): "1x90", BALANCING: "1x90", GPUS: "8x90"}

#: What the audit says of processes. 1200 and 90: CPU seconds a minute are CPUs times 60.
AUDIT: tuple[Case, ...] = (
    *((alert, {mismatch("other"): "1x40"}, 16, False) for alert, *_ in ABOVE_ZERO[:3]),
    ("Unpinned", {mismatch("unpinned"): "0x9 1x40"}, 41, True),
    ("Unpinned", {mismatch("unpinned"): "0x9 1x40"}, 38, False),
    ("Unpinned", {mismatch("unpinned"): "1x9 0 1x9 0 1x9 0 1x9"}, 38, False),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x90"}, 70, True),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+240x90"}, 70, False),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x90", UNPLACED: "0+9000x90"}, 70, True),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+90x90", FAR: "0+50x90"}, 70, False),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x20 12000x70"}, 70, False),
    ("CannotSeeIntoGpus", {AUDITED: "0x20"}, 16, True),
    ("CannotSeeIntoGpus", {AUDITED: "1x20"}, 16, False),
    ("ScanIsOld", {AGE: "0+60x20", EVERY: "15x20"}, 4, True),
    ("ScanIsOld", {AGE: "0+60x20", EVERY: "300x20"}, 20, False),
    ("ScanIsOld", {AGE: "0+60x7 3x20", EVERY: "15x20"}, 15, False),
    ("ScanIsOld", {AGE: "36x20", EVERY: "1x20"}, 15, False),
    ("HasNotScanned", {EVERY: "15x20"}, 3, True),
    ("HasNotScanned", {EVERY: "15x20", AGE: "_ 20x20"}, 5, False),
    ("HasNotScanned", {AGE: "15x20"}, 3, False),
    ("NumaBalancingIsOn", {BALANCING: "1x90", GPUS: "8x90"}, 61, True),
    ("NumaBalancingIsOn", {BALANCING: "0x90", GPUS: "8x90"}, 61, False),
    ("NumaBalancingIsOn", {BALANCING: "1x90", NO_GPU: "8x90"}, 61, False),
)

CASES: tuple[Case, ...] = (
    *DAEMON,
    *AUDIT,
    ("GaveUpPinning", {left("waiting"): "1x20"}, 16, False),
    *(
        (alert, {name: samples}, minutes + more, fires)
        for alert, name, minutes in ABOVE_ZERO
        for samples, more, fires in ABOVE
    ),
)
