"""Facts of processes, written short for tables of tests, and holders that a test names."""

from dataclasses import replace
from typing import Any

from affinityd.audit.judge import Judge, divided
from affinityd.audit.model import (
    AuditedProcess,
    GpuHolders,
    Holding,
    Job,
    Membership,
    PlacedThread,
    ProcessFacts,
    Scan,
)
from affinityd.cpuset import parse_list
from affinityd.linux.processes import Thread
from affinityd.topology.model import GpuKey, Topology

GPU = ("nvidia", 0)
NEAR = "4-7"  #: CPUs near GPU
POD = "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01"
SLURM_JOB = Membership(Job("slurm", "7"), step="0")
KUBERNETES_POD = Membership(Job("kubernetes", POD), container="ab12" * 16)
LONE_CONTAINER = Membership(container="cd34" * 16)


class Known:
    """Holders that a test names in place of drivers; the test may replace them."""

    def __init__(self, *pids: int, gpu: GpuKey = GPU) -> None:
        self.now = GpuHolders(tuple(Holding(pid, gpu, memory_bytes=2**30) for pid in pids))

    def held(self, _topology: Topology) -> GpuHolders:
        return self.now


def thread(
    mask: str, tid: int = 100, *, last_cpu: int | None = None, ticks: int = 0, start: int = 5
) -> Thread:
    """Return a thread that ran last on `last_cpu`, or else on the first CPU of its mask."""
    cpus = parse_list(mask)
    last = min(cpus) if last_cpu is None else last_cpu
    return Thread(tid, "worker", start, cpus, last, ticks)


def process(
    *masks: str,
    pid: int = 100,
    gpu: GpuKey = GPU,
    holds: bool = True,
    cpuset: str | None = None,
    threads: tuple[Thread, ...] | None = None,
    holder: int | None = None,
    beside: tuple[GpuKey, ...] = (),
    **more: Any,  # noqa: ANN401 - other fields of ProcessFacts
) -> ProcessFacts:
    facts = ProcessFacts(
        pid=pid,
        name="python",
        uid=1000,
        start=5,
        parent=50,
        state="S",
        gpu=gpu,
        holding=Holding(pid, gpu, 2**30, beside=beside) if holds and holder is None else None,
        cpuset=None if cpuset is None else parse_list(cpuset),
        threads=tuple(thread(mask, pid + place) for place, mask in enumerate(masks)),
        holder=holder,
        beside=beside,
    )
    if threads is not None:
        facts = replace(facts, threads=threads)
    ticks = sum(its.cpu_ticks for its in facts.threads)
    return replace(facts, **{"cpu_ticks": ticks, **more})


def scan_of(topology: Topology, *processes: AuditedProcess) -> Scan:
    """Return a scan that found these processes."""
    near, users = Judge(topology).near, {0: "root"}
    return Scan(0.0, 0.0, processes, near, {}, divided=divided(processes), users=users)


def audited(
    facts: ProcessFacts,
    placement: str = "local",
    *,
    cause: str | None = None,
    is_daemon: bool = False,
    itself: tuple[int, ...] = (),
    orphan: str | None = None,
    near: str | None = NEAR,
) -> AuditedProcess:
    """Return a judged process; `itself`: the positions of threads that libraries pinned."""
    return AuditedProcess(
        facts,
        placement,
        tuple(
            PlacedThread(it, placement, place in itself) for place, it in enumerate(facts.threads)
        ),
        cause=cause,
        is_daemon=is_daemon,
        orphan=orphan,
        near=None if near is None else parse_list(near),
    )
