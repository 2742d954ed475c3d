"""What NVIDIA's driver says, and whether it stays loaded.

Sources: NVML's API reference (nvmlDeviceGetPersistenceMode), NVIDIA's "Driver Persistence".
"""

from __future__ import annotations

from affinityd.audit.sources.driver_maintenance import HOLD
from affinityd.discovery.nvml.report import NvmlGpu
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, fail, named, not_applicable, ok, warn
from affinityd.topology.model import Gpu

FORGOTTEN = 86400.0  #: seconds; no work on a driver takes a day

NO_NVIDIA = "there is no NVIDIA GPU"
LOAD = (
    "modprobe nvidia loads NVIDIA's driver, where it is installed; after an upgrade reload it, or "
    "reboot; nvidia-smi says whether it works"
)


def nvml(facts: NodeFacts) -> CheckResults:
    """Judge whether NVML answers, for every GPU, and may be asked at all."""
    reports = () if facts.nvml is None else facts.nvml.gpus
    sick = [(gpu, it.error) for gpu, it in _reports(facts) if it.error]
    if not _nvidia(facts) and not reports:
        yield not_applicable(NO_NVIDIA)
    elif facts.maintenance is not None:
        yield _under_maintenance(facts, facts.maintenance)
    elif facts.nvml is None:
        yield not_applicable("nobody asked NVML: the machine is replayed without its answers")
    elif reports is None:
        yield warn(
            f"{facts.nvml.error}: plans are made from sysfs, without MIG instances",
            facts.nvml.remedy or LOAD,
            _nvidia(facts),
        )
    elif not sick:
        yield ok(f"NVML answers; driver {facts.nvml.driver_version or 'unknown'}")
    for gpu, error in sick:
        yield fail(
            f"{named([gpu])} ({gpu.pci_bus_id}): NVML says {error}",
            "look for NVRM: Xid in the kernel's log, drain the node, reset the GPU or the machine",
            [gpu],
        )


def _under_maintenance(facts: NodeFacts, why: str) -> CheckResult:
    """Return why NVML was not asked; it is a fault where that seems to have been forgotten."""
    if facts.hold_seconds is None or facts.hold_seconds < FORGOTTEN:
        return not_applicable(f"NVML was not asked: {why}")
    return warn(
        f"{why}, for {facts.hold_seconds / 3600:.0f} hours by now: the audit does not see who uses "
        "the GPUs",
        f"rm {HOLD}, where nobody works on the driver any more",
        _nvidia(facts),
    )


def persistence(facts: NodeFacts) -> CheckResults:
    """Judge whether each GPU is kept initialised while nobody uses it."""
    modes = [(gpu, it.persistence) for gpu, it in _reports(facts) if it.persistence is not None]
    off = [gpu for gpu, is_on in modes if not is_on]
    if not modes:
        yield not_applicable(
            "NVML says nothing of persistence mode" if _nvidia(facts) else NO_NVIDIA
        )
    elif off:
        yield warn(
            f"persistence mode of {named(off)} is off: whoever asks NVML, as the audit's every "
            "scan, or starts a job, waits until the driver has initialised each idle GPU anew",
            "systemctl enable --now nvidia-persistenced (where there is none: nvidia-smi -pm 1); "
            "else let the audit ask less often: --scan-interval 300",
            off,
        )
    else:
        yield ok(f"persistence mode of {named(gpu for gpu, _ in modes)} is on")


def _nvidia(facts: NodeFacts) -> list[Gpu]:
    return [gpu for gpu in facts.topology.gpus if gpu.vendor == "nvidia"]


def _reports(facts: NodeFacts) -> list[tuple[Gpu, NvmlGpu]]:
    """Return the GPUs with what NVML reported of each."""
    reports = (facts.nvml.gpus if facts.nvml else None) or ()
    by_index = {it.index: it for it in reports}
    return [(gpu, by_index[gpu.index]) for gpu in _nvidia(facts) if gpu.index in by_index]
