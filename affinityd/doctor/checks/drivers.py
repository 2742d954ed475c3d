"""NVIDIA's driver: its answers, and whether it stays loaded.

Sources: NVML's API reference (nvmlDeviceGetPersistenceMode), NVIDIA's "Driver Persistence".
"""

from __future__ import annotations

from affinityd.audit.sources.driver_maintenance import HOLD
from affinityd.discovery.nvml.report import NvmlGpu
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, NotApplicableError, fail, named, ok, warn
from affinityd.topology.model import Gpu

FORGOTTEN = 86400.0  #: seconds; no work on a driver takes a day

NO_NVIDIA = "there is no NVIDIA GPU"
LOAD = (
    "modprobe nvidia loads NVIDIA's driver, where it is installed; after an upgrade reload it, or "
    "reboot; nvidia-smi says whether it works"
)


def nvml(facts: NodeFacts) -> CheckResults:
    """Judge whether NVML answers, for every GPU, and may be called at all."""
    report = facts.nvml
    if not _nvidia(facts) and not (report and report.gpus):
        raise NotApplicableError(NO_NVIDIA)
    if facts.maintenance is not None:
        if facts.hold_seconds is None or facts.hold_seconds < FORGOTTEN:
            raise NotApplicableError(f"NVML was not asked: {facts.maintenance}")
        yield warn(
            (
                f"{facts.maintenance}, which is {facts.hold_seconds / 3600:.0f} hours old: the "
                "audit does not know which processes use the GPUs"
            ),
            f"rm {HOLD}, if no work on the driver is under way",
            _nvidia(facts),
        )
        return
    if report is None:
        raise NotApplicableError("NVML was not asked: the machine is replayed without its answers")
    if report.gpus is None:
        yield warn(
            f"{report.error}: plans are made from sysfs, without MIG instances",
            report.remedy or LOAD,
            _nvidia(facts),
        )
    for gpu, its in _reports(facts):
        if its.error:
            yield fail(
                f"{named([gpu])} ({gpu.pci_bus_id}): NVML says {its.error}",
                "look for NVRM: Xid in the kernel's log, drain the node, reset the GPU or the "
                "machine",
                [gpu],
            )
    yield ok(f"NVML answers; driver {report.driver_version or 'unknown'}")


def persistence(facts: NodeFacts) -> CheckResults:
    """Judge whether each GPU is kept initialized while it is idle."""
    modes = [(gpu, it.persistence) for gpu, it in _reports(facts) if it.persistence is not None]
    if not modes:
        raise NotApplicableError(
            "NVML does not report persistence mode" if _nvidia(facts) else NO_NVIDIA
        )
    if off := [gpu for gpu, is_on in modes if not is_on]:
        yield warn(
            (
                f"persistence mode of {named(off)} is off: each scan of the audit, and each "
                "start of a job, waits until the driver has initialized each idle GPU again"
            ),
            (
                "systemctl enable --now nvidia-persistenced (if there is none: nvidia-smi -pm "
                "1); else scan less often: --scan-interval 300"
            ),
            off,
        )
    yield ok(f"persistence mode of {named(gpu for gpu, _ in modes)} is on")


def _nvidia(facts: NodeFacts) -> list[Gpu]:
    return [gpu for gpu in facts.topology.gpus if gpu.vendor == "nvidia"]


def _reports(facts: NodeFacts) -> list[tuple[Gpu, NvmlGpu]]:
    """Return the GPUs with NVML's report of each."""
    reports = (facts.nvml.gpus if facts.nvml else None) or ()
    by_index = {it.index: it for it in reports}
    return [(gpu, by_index[gpu.index]) for gpu in _nvidia(facts) if gpu.index in by_index]
