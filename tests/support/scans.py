"""Scans for tests: processes on the two GPUs of a machine with two nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from affinityd.audit.model import (
    AuditedProcess,
    CpuTime,
    GpuKey,
    Holding,
    Job,
    Membership,
    ProcessFacts,
    Scan,
)
from affinityd.cpuset import CpuSet
from affinityd.daemon.state.scanner import Audit
from affinityd.linux.processes import Thread, since_boot
from tests.support.machines.by_hand import made

MACHINE = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
GPU0, GPU1 = (gpu.key for gpu in MACHINE.gpus)
NEAR: Mapping[GpuKey, CpuSet | None] = {GPU0: frozenset(range(4)), GPU1: frozenset(range(4, 8))}


def process(
    pid: int = 100,
    gpu: GpuKey = GPU0,
    *,
    cause: str | None = None,
    placement: str = "local",
    job: Job | None = None,
    uid: int | None = 1000,
    threads: int = 1,
    is_daemon: bool = False,
    orphan: str | None = None,
) -> AuditedProcess:
    """Return the judgement of a process, all of whose threads are alike."""
    found = tuple(Thread(pid + tid, "python", 1, frozenset({0}), 0, 5) for tid in range(threads))
    holding = Holding(pid, gpu, 2**20)
    facts = ProcessFacts(pid, "python", uid, 1, 1, "S", gpu, holding, Membership(job), None, found)
    return AuditedProcess(
        facts,
        placement,
        (placement,) * threads,
        (False,) * threads,
        cause,
        is_daemon=is_daemon,
        orphan=orphan,
    )


def scan(
    *processes: AuditedProcess,
    unknown: Mapping[GpuKey, str] | None = None,
    near: Mapping[GpuKey, CpuSet | None] = NEAR,
    job_time: Mapping[Job, CpuTime] | None = None,
    since: Mapping[GpuKey | Job, float] | None = None,
    notices: tuple[str, ...] = (),
) -> Scan:
    """Return a scan that found these."""
    return Scan(
        time=time.time(),
        boot=since_boot(),
        seconds=0.25,
        processes=processes,
        near=near,
        unknown=unknown or {},
        overlap={("slurm 7", "slurm 8"): frozenset((2, 3))},
        skipped=1,
        gpu_time={GPU0: CpuTime(8.0, 2.0), GPU1: CpuTime()},
        job_time=job_time or {},
        since=since or {},
        numa_balancing=1,
        notices=notices,
    )


def audit(
    *processes: AuditedProcess, notices: tuple[str, ...] = (), **more: Mapping[GpuKey, str]
) -> Audit:
    """Return a scan of MACHINE that found these."""
    return Audit(MACHINE, scan(*processes, notices=notices, unknown=more.get("unknown")))
