"""A machine with recorded processes: what the audit shows on a bad day, without a GPU at hand.

The facts are made up, and judged like real facts. The pids are larger than any that the kernel
gives (PID_MAX_LIMIT, proc_sys_kernel(5)), so a remedy's command reaches no process here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from affinityd import machines
from affinityd.audit.auditor import MINUTE, ScanRecords
from affinityd.audit.findings import HOUR
from affinityd.audit.jobs import missing_process
from affinityd.audit.judge import Judge, with_allocations
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import (
    KUBERNETES,
    NO_NAMES,
    SLURM,
    ContainerNames,
    ContainerResources,
    Holding,
    Job,
    Membership,
    ProcessFacts,
    Scan,
)
from affinityd.audit.waits import Waits
from affinityd.cpuset import CpuSet, parse_list
from affinityd.discovery.nvml import NvmlLoad
from affinityd.linux.processes import INIT, Thread, since_boot
from affinityd.linux.resident import ANONYMOUS, ResidentMemory
from affinityd.linux.scheduling import TICKS
from affinityd.topology.model import GpuKey, Topology

GPU_MEMORY = 40 * 2**30  #: bytes of memory of each GPU of a DGX A100
BEGAN = 2 * HOUR  #: by default, a process started so many minutes before the first scan


class Demo:
    """Scans the recorded processes of a machine; each has used CPU time since its start."""

    has_unconfirmed = False  #: an Auditor has this attribute, too; here it is always False

    def __init__(self, name: str, reserved: CpuSet = frozenset()) -> None:
        """Take the name of the machine, and the reserved CPUs."""
        self._name = name
        self._entries = machines.recorded(name)
        self._reserved = reserved
        self._first = since_boot()
        self._records = ScanRecords(lambda _pid, _start: False)
        self._last: float | None = None  #: time of the last scan, seconds since boot

    def scan(self, topology: Topology, _: ContainerNames = NO_NAMES) -> Scan:
        """Scan once; the first call also scans for each minute of the hour before."""
        judge = Judge(topology)
        boot = since_boot()
        if self._last is None:
            for minute in range(HOUR, 0, -1):
                self._look(judge, boot - minute * MINUTE)
        return self._look(judge, boot)

    def _look(self, judge: Judge, boot: float) -> Scan:
        seconds = MINUTE if self._last is None else boot - self._last
        self._last = boot
        gpus = [gpu.key for gpu in judge.topology.gpus]
        holdings: dict[int, Holding] = {}
        busy: Counter[GpuKey] = Counter()
        used: Counter[GpuKey] = Counter()
        judged = []
        memory = {}
        for entry in self._entries:  # a holder comes before its descendants
            pid = entry["pid"]
            start = self._first - entry.get("began", BEGAN) * MINUTE
            if boot < start:
                continue
            if "gpu" in entry:
                holding = Holding(pid, gpus[entry["gpu"]], entry["gpu_mib"] * 2**20)
                holdings[pid] = holding
                busy[holding.gpu] += entry.get("gpu_busy", 0)
                used[holding.gpu] += entry["gpu_mib"] * 2**20
            if "name" not in entry:
                judged.append(missing_process(holdings[pid]))
                continue
            process = judge.judge(_facts(entry, holdings, start, boot))
            judged.append(replace(process, orphan=entry.get("orphan")))
            if "memory_mib" in entry:
                near = judge.vicinity(process.facts.gpus)
                by_node = entry["memory_mib"]
                drawn = {(ANONYMOUS, int(node)): size for node, size in by_node.items()}
                resident = ResidentMemory({ANONYMOUS: sum(by_node.values()) * 2**20}, drawn)
                memory[pid] = HostMemory(resident, near.memory, near.far_memory, process.placement)
        scan = Scan(
            time=time.time() - (since_boot() - boot),
            seconds=0.0,
            processes=tuple(with_allocations(judge.topology, self._reserved, judged)),
            near=judge.near,
            unknown={},
            waits={it["pid"]: _waits(it, seconds) for it in self._entries if "busy" in it},
            users={entry["uid"]: entry["user"] for entry in self._entries if "user" in entry},
            memory=memory,
            loads={gpu: NvmlLoad(busy[gpu], used[gpu], GPU_MEMORY) for gpu in gpus},
            boot=boot,
            demo=self._name,
        )
        return self._records.add(scan)


def _facts(
    entry: Mapping[str, Any], holdings: Mapping[int, Holding], start: float, boot: float
) -> ProcessFacts:
    pid, parent = entry["pid"], entry.get("parent", INIT)
    holding = holdings.get(pid)
    threads = tuple(_threads(entry, start, boot))
    membership = Membership(Job(KUBERNETES, f"demo-{pid}"), container=f"demo{pid}")
    if "slurm" in entry:
        membership = Membership(Job(SLURM, entry["slurm"]), step="0")
    return ProcessFacts(
        pid=pid,
        name=entry["name"],
        uid=entry["uid"],
        start=round(start * TICKS),
        parent=parent,
        state="S",
        gpu=(holding or holdings[parent]).gpu,
        holding=holding,
        membership=membership,
        cpuset=parse_list(entry["cpuset"]),
        threads=threads,
        cpu_ticks=sum(thread.cpu_ticks for thread in threads),
        holder=None if holding else parent,
        cgroups=f"demo-{pid}",
        is_confined="slurm" not in entry,
        cpu_limit=entry.get("cpu_limit"),
        given=ContainerResources(*entry["pod"]) if "pod" in entry else None,
        first_mask=threads[0].mask,
    )


def _threads(entry: Mapping[str, Any], start: float, boot: float) -> Iterator[Thread]:
    number = entry["threads"]
    mask = parse_list(entry["mask"])
    cpus = sorted(mask)
    ticks = round(entry["busy"] * (boot - start) * TICKS / number)
    for place in range(number):
        last_cpu = cpus[(2 * place + 1) * len(cpus) // (2 * number)]
        tid = entry["pid"] + place
        yield Thread(tid, entry["name"], round(start * TICKS), mask, last_cpu, ticks)


def _waits(entry: Mapping[str, Any], seconds: float) -> Waits:
    throttled = entry.get("throttled", 0.0)
    return Waits(
        seconds,
        entry.get("waited", 0.0) * seconds,
        ran=entry["busy"] * seconds,
        cpus=parse_list(entry["mask"]),
        throttled=throttled * seconds,
        used_up=0.9 if throttled else 0.0,
        limited="/kubepods.slice" if throttled else None,
    )
