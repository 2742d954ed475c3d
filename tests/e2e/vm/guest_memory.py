"""Runs in the virtual machine: reports where the memory of processes is.

numa_maps(5) is the kernel's whole account of the same memory.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from affinityd.linux.processes import children_of
from affinityd.linux.resident import resident_memory
from tests.e2e.vm.inside import Document, bring, output, stage
from tests.e2e.vm.warm import affinityd

RUNS, MIB = 100, 1 << 20
HOLD = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("holding.py")))

FIRST_GPU = ("--gpus", "0")

#: A mount namespace with a /dev/shm of its own, as containers have.
IN_CONTAINER = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'

#: Kinds of memory, and the MiB that they have on each node.
KINDS = {
    "anonymous": "1=24,3=40,7=16",
    "fragmented": "1=40,3=64",
    "interleaved": "1=20,3=20,7=20",
    "thp": "1=24,3=40,7=16",
    "hugetlb": "1=12,3=20,7=8",
    "memfd": "1=24,3=40,7=16",
    "shm": "1=24,3=40,7=16",
    "sysv": "1=24,3=40,7=16",
    "mlocked": "1=24,3=40,7=16",
    "swapped": "1=16,3=16",
    "watched": "1=40,3=64",
}
#: Whether the kernel watches which CPUs use a page; Linux 6.1 then hides the node of some pages.
BALANCING = Path("/proc/sys/kernel/numa_balancing")


def main() -> Document:
    bring("31", online=True)
    prepare()
    report: Document = {"sampled": {}}
    for kind, parts in KINDS.items():
        stage(f"{kind} memory")
        BALANCING.write_text(str(int(kind == "watched")))
        with holding(kind, parts) as holder:
            report["sampled"][kind] = sampled(holder.pid)
    stage("a container")
    own_mounts = ("unshare", "--mount", "--pid", "--fork", "sh", "-c", IN_CONTAINER, "sh")
    with holding("shm", "1=8,7=8", own_mounts) as holder:
        report["container"] = sampled(children_of(holder.pid)[0])
    stage("pinned memory")
    with holding("pinned", "1=8,7=8") as holder:
        report["pinned"] = resident_memory(holder.pid).locked
        report["verified"] = affinityd("verify", f"{holder.pid}", "--resident", *FIRST_GPU)
    return report


def prepare() -> None:
    output("modprobe", "brd", "rd_nr=1", "rd_size=65536")
    output("mkswap", "/dev/ram0")
    output("swapon", "/dev/ram0")
    Path("/dev/shm").mkdir(exist_ok=True)  # noqa: S108 - its usual place
    output("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # noqa: S108
    for node in (1, 3, 7):
        folder = Path(f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB")
        (folder / "nr_hugepages").write_text("20")


@contextmanager
def holding(kind: str, parts: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    pipe, command = subprocess.PIPE, [*before, *HOLD, kind, parts]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline(), "the program ended before it was ready"
        try:
            yield holder
        finally:
            holder.kill()


def on_nodes(pid: int) -> dict[int, int]:
    """Return the bytes of a process on each node, as numa_maps counts them."""
    sizes: Counter[int] = Counter()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        page = re.search(r" kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            sizes[int(node)] += int(pages) * int(page[1] if page else 0) * 1024
    return dict(sizes)


def sampled(pid: int) -> Document:
    """Return how many samples have each node's true proportion in their interval."""
    within: Counter[int] = Counter()
    unknown = 0
    truth, memory = on_nodes(pid), resident_memory(pid)
    for run in range(RUNS):
        truth = on_nodes(pid)  # the kernel may swap pages, or make huge ones of them, meanwhile
        whole = sum(truth.values())
        memory = resident_memory(pid, Random(run))  # noqa: S311 - the same pages each time
        unknown += not memory.nodes
        for node, size in truth.items():
            share = memory.part_on({node})
            within[node] += (
                share is not None and abs(share - size / whole) <= 0.04
            )  # 95 % of samples
    return {
        "within": dict(within),
        "unknown": unknown,
        "truth": truth,
        "size": memory.size,
        "sizes": memory.sizes,
        "kinds": sorted({kind for kind, _ in memory.drawn}),
        "drawn": {f"{kind} on node {node}": pages for (kind, node), pages in memory.drawn.items()},
        "locked": memory.locked,
    }
