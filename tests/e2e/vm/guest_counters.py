"""Runs in the virtual machine: reports an auditor's and the kernel's counters of processes.

A process starts after a scan and is idle at the last scan: by then the auditor must have counted
exactly what the kernel has counted.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from affinityd.audit.auditor import Auditor
from affinityd.audit.model import GpuHolders, Holding, Scan
from affinityd.discovery import discover, open_tree
from affinityd.linux.scheduling import MICROSECONDS, NANOSECONDS, TICKS
from affinityd.topology.model import GpuKey, Topology
from tests.e2e.vm.hardware import GPU_NODES, cpus_of
from tests.e2e.vm.inside import GROUPS, PCI_FOLDER, Document, addresses, bring, cgroup, stage
from tests.e2e.vm.warm import affinityd

SPEND = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("spending.py")))
SECONDS = 12  #: a process computes for this time
BETWEEN = 1.0  #: seconds between scans

NEAR, FAR = cpus_of(GPU_NODES[0]), cpus_of(0)
TWO = NEAR.partition("-")[0], str(int(NEAR.partition("-")[0]) + 1)
BOTH = f"{NEAR},{FAR}"

#: What a process does → its CPUs, the words of spending.py, and the limit of its cgroup.
SPENDERS = {
    "lasting threads": (NEAR, ("lasting", 2), "max"),
    "threads near and far": (BOTH, ("lasting", 4, 12, 0, 1, 2), "max"),
    "short threads": (NEAR, ("threads", 2), "max"),
    "short threads far away": (FAR, ("threads", 2), "max"),
    "short children": (NEAR, ("children", 1), "max"),
    "more threads than CPUs": (",".join(TWO), ("lasting", 6), "max"),
    "more short threads than CPUs": (",".join(TWO), ("threads", 6), "max"),
    "a limit": (NEAR, ("lasting", 2), "50000 100000"),
}
USED = 2  #: index of the used GPU, until a GPU with a lower index is lost


def main() -> Document:
    bring("31", online=True)
    (GROUPS / "cgroup.subtree_control").write_text("+cpuset +cpu")
    report: Document = {}
    for name in SPENDERS:
        stage(name)
        report[name] = counted(name)
    stage("scans that fail")
    report["scans that fail"] = counted("lasting threads", failing=True)
    stage("why, of short threads")
    with spending("more short threads than CPUs") as child:
        report["why"] = affinityd("why", f"{child.pid}", "--for", "5s", "--json")
    stage("a GPU is lost")
    report["a GPU is lost"] = with_a_lost_gpu()
    return report


@contextmanager
def spending(name: str) -> Iterator[subprocess.Popen[str]]:
    cpus, (kind, number, *places), limit = SPENDERS[name]
    group = cgroup(f"spender-{time.monotonic_ns()}", cpus=cpus)
    (group / "cpu.max").write_text(limit)
    words = [*SPEND, f"{kind}", f"{number}", f"{SECONDS}", *(f"{place}" for place in places)]
    command = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', os.fspath(group), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline(), "it ended before it began"
        try:
            yield child
        finally:
            child.kill()


def is_still(child: subprocess.Popen[str]) -> bool:
    """Wait for a while; return whether the process has said that it uses no more CPU time."""
    assert child.stdout is not None
    readable, _, _ = select.select([child.stdout], [], [], BETWEEN)
    return bool(readable)


def counted(name: str, *, failing: bool = False) -> Document:
    """Return the auditor's counters of a process on GPU 0, and the kernel's."""
    topology = discover(open_tree("/"), None)
    gpu = topology.gpus[0].key
    holders = Holders()
    auditor = Auditor(holders)
    auditor.scan(topology)
    scans: list[Scan] = []
    throttled = 0.0
    with spending(name) as child:
        holders.held = GpuHolders((Holding(child.pid, gpu),))
        is_over = False
        while not is_over:
            holders.is_silent = failing and len(scans) % 2 == 1
            scans.append(auditor.scan(topology))
            if len(scans) == 1:
                throttled = of_cgroup(child.pid)["throttled_usec"]
            is_over = is_still(child)
        holders.is_silent = False
        scans.append(auditor.scan(topology))
        truth = by_kernel(child.pid)
        truth["throttled"] -= throttled  # the auditor counts from its first look at the cgroup on
    return {"counted": by_auditor(scans, gpu, child.pid), "truth": truth, "scans": len(scans)}


class Holders:
    """The holders of GPUs; while `is_silent` is set, the driver does not name the holders."""

    def __init__(self) -> None:
        self.held = GpuHolders()
        self.is_silent = False

    def __call__(self, topology: Topology) -> GpuHolders:
        return GpuHolders.unknown_of(topology.gpus, "silent") if self.is_silent else self.held


def by_auditor(scans: Sequence[Scan], gpu: GpuKey, pid: int) -> Document:
    last = scans[-1]
    measured = [scan.waits[pid] for scan in scans if pid in scan.waits]
    return {
        "cpu": last.gpu_time[gpu].total,
        "remote": last.gpu_time[gpu].remote,
        "waited": last.gpu_time[gpu].waited,
        "throttled": last.gpu_time[gpu].throttled,
        "stolen": sum(waits.stolen for waits in measured),
        "unmeasured": sum(waits.waited is None for waits in measured),
        "measured": sum(bool(waits.waited) for waits in measured),
    }


def by_kernel(pid: int) -> Document:
    """Return the CPU seconds of a process, and of its cgroup, by the kernel's own counters."""
    stat, waited = of_cgroup(pid), 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        waited += int((task / "schedstat").read_text().split()[1])
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return {
        "cpu": sum(map(int, ticks)) / TICKS,
        "usage": stat["usage_usec"],
        "waited": waited / NANOSECONDS,
        "throttled": stat["throttled_usec"],
        "stolen": sum(stolen()),
    }


def of_cgroup(pid: int) -> dict[str, float]:
    group = GROUPS / Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("/")[2]
    lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return {name: int(number) / MICROSECONDS for name, number in lines}


def stolen() -> Iterator[float]:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("cpu") and line[3].isdigit():
            yield int(line.split()[8]) / TICKS


def with_a_lost_gpu() -> Document:
    """Return the counters when the first GPU is removed while another one is used."""
    topology = discover(open_tree("/"), None)
    holders = Holders()
    auditor = Auditor(holders)
    auditor.scan(topology)
    with spending("lasting threads") as child:
        holders.held = GpuHolders((Holding(child.pid, topology.gpus[USED].key),))
        while not is_still(child):
            auditor.scan(topology)
        before = auditor.scan(topology)
        (PCI_FOLDER / addresses()[0] / "remove").write_text("1")
        fewer = discover(open_tree("/"), None)
        holders.held = GpuHolders((Holding(child.pid, fewer.gpus[USED - 1].key),))
        after = auditor.scan(fewer)
    Path("/sys/bus/pci/rescan").write_text("1")  # the machine is as it was, for the next script
    return {
        "before": [before.gpu_time[gpu.key].total for gpu in topology.gpus],
        "after": [after.gpu_time[gpu.key].total for gpu in fewer.gpus],
    }
