"""Scans for tests: processes on the two GPUs of a machine with two nodes."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from affinityd.audit.model import AuditedProcess, CpuTime, Job, Membership, Scan
from affinityd.config.settings import Settings
from affinityd.cpuset import CpuSet
from affinityd.daemon.scanning import Scanning
from affinityd.daemon.state.scans import ScanResult
from affinityd.linux.processes import since_boot
from affinityd.topology.model import GpuKey, Topology
from tests.support import audit_facts
from tests.support.machines.by_hand import made

MACHINE = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
GPU0, GPU1 = (gpu.key for gpu in MACHINE.gpus)
NEAR: Mapping[GpuKey, CpuSet | None] = {GPU0: frozenset(range(4)), GPU1: frozenset(range(4, 8))}


class Audit(NamedTuple):
    """A scan, and the machine it was made on."""

    topology: Topology
    scan: Scan


def process(
    pid: int = 100,
    gpu: GpuKey = GPU0,
    *,
    placement: str = "local",
    job: Job | None = None,
    uid: int | None = 1000,
    threads: int = 1,
    **judged: Any,  # noqa: ANN401 - what else `audited` takes
) -> AuditedProcess:
    masks = ["0"] * threads
    facts = audit_facts.process(*masks, pid=pid, gpu=gpu, uid=uid, membership=Membership(job))
    return audit_facts.audited(facts, placement, **judged)


def scan(*processes: AuditedProcess, **changes: Any) -> Scan:  # noqa: ANN401 - fields of it
    found = Scan(
        time=time.time(),
        boot=since_boot(),
        seconds=0.25,
        processes=processes,
        near=NEAR,
        unknown={},
        overlap={("slurm 7", "slurm 8"): frozenset((2, 3))},
        skipped=1,
        gpu_time={GPU0: CpuTime(8.0, 2.0), GPU1: CpuTime()},
        numa_balancing=1,
    )
    return replace(found, **{name: it for name, it in changes.items() if it is not None})


def audit(*processes: AuditedProcess, **changes: Any) -> Audit:  # noqa: ANN401 - fields of a Scan
    return Audit(MACHINE, scan(*processes, **changes))


def scanned(*audits: Audit, **settings: Any) -> list[ScanResult]:  # noqa: ANN401
    """Return the results of these scans; `settings`: the daemon's."""
    scans = iter(audits)
    scanning = Scanning(Settings(**settings), lambda *_: next(scans).scan)
    return [scanning.scan(topology) for topology, _ in audits]
