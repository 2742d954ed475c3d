"""Metrics of enforcement: GPUs by their labels, never a job or a pid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from affinityd.audit.model import GpuKey
from affinityd.config.settings import OBSERVE, PIN
from affinityd.daemon.metrics.families import (
    GPU_LABELS,
    MetricFamily,
    each,
    filled,
    gpu_labels,
    whole,
)
from affinityd.enforce.document import Enforced
from affinityd.enforce.model import (
    CAUSES,
    DRIFTED,
    LEFT,
    PIN_OUTCOMES,
    REASONS,
    Decision,
)

#: One GPU's processes in the wrong place, counted: by cause those that a pin fixes, by reason those
#: that are left alone. No cause is a reason.
GpuDrift = Counter[str]

GPU_FAMILIES: tuple[MetricFamily[GpuDrift], ...] = (
    MetricFamily(
        "affinityd_enforce_would_pin_processes",
        "Processes on the GPU that have drifted, which a pin fixes, by cause; no sample "
        "if the GPU's processes are not known.",
        lambda gpu: each(CAUSES, gpu),
        "cause",
    ),
    MetricFamily(
        "affinityd_enforce_left_processes",
        "Processes on the GPU that run in the wrong place, or may run on far CPUs, and "
        "are left alone, by reason.",
        lambda gpu: each(REASONS, gpu),
        "reason",
    ),
)

FAMILIES: tuple[MetricFamily[Enforced], ...] = (
    MetricFamily(
        "affinityd_enforce_mode",
        "1 for the mode that the daemon is in: observe or pin.",
        lambda enforced: {mode: enforced.does == mode for mode in (OBSERVE, PIN)},
        "mode",
    ),
    MetricFamily(
        "affinityd_enforce_hindered",
        "1 if the daemon was told to pin and can only observe; its log and /enforce say why.",
        lambda enforced: enforced.hindrance is not None,
    ),
    MetricFamily(
        "affinityd_enforce_pins_total",
        "Pins of processes, by outcome.",
        lambda enforced: each(PIN_OUTCOMES, enforced.totals.pins),
        "outcome",
    ),
    MetricFamily(
        "affinityd_enforce_pinned_threads_total",
        "Threads whose mask was set by a pin.",
        lambda enforced: enforced.totals.threads,
    ),
    MetricFamily(
        "affinityd_enforce_resets_total",
        "How often a pinned process was found on other CPUs again.",
        lambda enforced: enforced.totals.resets,
    ),
    MetricFamily(
        "affinityd_enforce_notices",
        "Number of things that enforcement needs and the daemon cannot see or do; "
        "/enforce and the log list them.",
        lambda enforced: len(enforced.notices),
    ),
    MetricFamily(
        "affinityd_enforce_scan_timestamp_seconds",
        "The time, since the epoch, of the scan that the enforcement metrics are about; it "
        "stays if enforcement fails.",
        lambda enforced: enforced.scan.time,
    ),
    MetricFamily(
        "affinityd_enforce_policy_error",
        "1 if the policy file has an error: the last good policy applies, if there was one.",
        lambda enforced: enforced.policy.error is not None,
    ),
    MetricFamily(
        "affinityd_enforce_policy_read_timestamp_seconds",
        "When the policy that applies was read, since the epoch; no sample if there is none.",
        lambda enforced: enforced.policy.read,
    ),
    MetricFamily(
        "affinityd_enforce_unreached_processes",
        "Processes that should have been pinned after the last scan, and were not: the "
        "time limit was reached.",
        lambda enforced: enforced.unreached,
    ),
    MetricFamily(
        "affinityd_enforce_duration_seconds",
        "How long deciding and pinning took after the last scan.",
        lambda enforced: enforced.seconds,
    ),
)


def metrics(enforced: Enforced) -> Iterator[Metric]:
    """Yield every metric of enforcement."""
    drifts = drifts_of(enforced.decisions)
    gpus = [
        (gpu_labels(gpu), drifts.get(gpu.key, GpuDrift()))
        for gpu in enforced.topology.gpus
        if gpu.key not in enforced.scan.unknown
    ]
    yield from filled(GPU_FAMILIES, gpus, GPU_LABELS)
    yield from whole(FAMILIES, enforced)


def drifts_of(decisions: Iterable[Decision]) -> dict[GpuKey, GpuDrift]:
    """Return the counts of each GPU; a process that uses several counts for its first."""
    drifts: defaultdict[GpuKey, GpuDrift] = defaultdict(Counter)
    for decision in decisions:
        counted = None
        if decision.verdict == DRIFTED:
            counted = decision.cause
        elif decision.verdict == LEFT and (decision.cause or decision.process.is_mismatch):
            counted = decision.reason
        drifts[decision.process.facts.gpu].update([counted] if counted else [])
    return drifts
