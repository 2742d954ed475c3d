"""Runs in the virtual machine: says where the memory of processes is, and moves it.

numa_maps(5) is the kernel's whole account of the same.
"""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from affinityd.linux.migration import Migration, room_on
from affinityd.linux.processes import children_of
from affinityd.linux.resident import resident_memory
from tests.e2e.vm.hardware import GPU_NODES
from tests.e2e.vm.inside import GROUPS, Document, Ended, bring, cgroup, output, stage
from tests.e2e.vm.warm import Forked, affinityd, disturbed
from tests.support.daemons import eventually

RUNS, MIB = 100, 1 << 20
HOLD = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("holding.py")))

FIRST_GPU = ("--gpus", "0")
NEAR = GPU_NODES[0]

#: A mount namespace with a /dev/shm of its own, as containers have.
IN_CONTAINER = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'

#: Kinds of memory, and the MiB that they have on each node.
KINDS = {
    "anonymous": "1=24,3=40,7=16",
    "interleaved": "1=20,3=20,7=20",
    "thp": "1=24,3=40,7=16",
    "hugetlb": "1=12,3=20,7=8",
    "memfd": "1=24,3=40,7=16",
    "shm": "1=24,3=40,7=16",
    "sysv": "1=24,3=40,7=16",
    "mlocked": "1=24,3=40,7=16",
    "swapped": "1=16,3=16",
}


def main() -> Document:
    bring("31", online=True)
    prepare()
    report: Document = {"sampled": {}, "moved": {}}
    for kind, parts in KINDS.items():
        stage(f"{kind} memory")
        with holding(kind, parts) as holder:
            report["sampled"][kind] = sampled(holder.pid)
            report["moved"][kind] = {**moved(holder.pid), "after": after(holder)}
    stage("a container")
    own_mounts = ("unshare", "--mount", "--pid", "--fork", "sh", "-c", IN_CONTAINER, "sh")
    with holding("shm", "1=8,7=8", own_mounts) as holder:
        report["container"] = sampled(children_of(holder.pid)[0])
    report["commands"] = {}
    for name, case in CASES.items():
        stage(f"a command: {name}")
        report["commands"][name] = case()
    return report


def commanded(pid: int, *options: str) -> Ended:
    return affinityd("pin", "--memory", *FIRST_GPU, *options, f"{pid}")


def of_holder(holder: subprocess.Popen[str], ended: Ended) -> Document:
    """Return how a command ended, where the memory of its process is then, and if it is whole."""
    return {**ended, "now": on_nodes(holder.pid), "after": after(holder)}


def plain() -> Document:
    with holding("anonymous", "1=8,7=8") as holder:
        verified = affinityd("verify", f"{holder.pid}", "--resident", *FIRST_GPU)
        before = {"verified": verified, "dry": commanded(holder.pid, "--dry-run")}
        return {**before, **of_holder(holder, commanded(holder.pid))}


def pinned() -> Document:
    with holding("pinned", "1=8,7=8") as holder:
        locked = resident_memory(holder.pid).locked
        return {"locked": locked, **of_holder(holder, commanded(holder.pid))}


def shared() -> Document:
    with holding("shm", "1=8,7=8") as holder, holding("attached", "1=8,7=8"):
        return of_holder(holder, commanded(holder.pid))


def full() -> Document:
    filler = f"{NEAR}={room_on(NEAR) // MIB - 40}"
    with holding("anonymous", filler), holding("anonymous", "1=60") as holder:
        return {**of_holder(holder, commanded(holder.pid)), "room": room_on(NEAR)}


def filled_meanwhile() -> Document:
    """Move more than there is room for, as where other memory came to the node meanwhile."""
    filler = f"{NEAR}={room_on(NEAR) // MIB - 40}"
    with holding("anonymous", filler), holding("anonymous", "1=120") as holder:
        return {**moved(holder.pid), "after": after(holder)}


def at_the_limit() -> Document:
    """Move the memory of a process whose cgroup is 2 MiB below its memory limit."""
    group = cgroup("limited")
    (GROUPS / "cgroup.subtree_control").write_text("+memory")
    enter = ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', os.fspath(group))
    with holding("anonymous", "1=30,7=30", enter) as holder:
        limit = int((group / "memory.current").read_text()) + 2 * MIB
        (group / "memory.max").write_text(f"{limit}")
        ended = of_holder(holder, commanded(holder.pid))
        return {**ended, "events": (group / "memory.events").read_text()}


def elsewhere() -> Document:
    group = cgroup("elsewhere", mems="1,7")
    enter = ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', os.fspath(group))
    with holding("anonymous", "1=8,7=8", enter) as holder:
        return of_holder(holder, commanded(holder.pid))


def interrupted(number: signal.Signals) -> Document:
    """Send a signal to the command once some memory has moved."""
    with holding("anonymous", "1=100,7=100") as holder:
        before = on_nodes(holder.pid).get(NEAR, 0)

        def disturb(command: Forked) -> None:
            has_begun = lambda: on_nodes(holder.pid).get(NEAR, 0) > before + 4 * MIB  # noqa: E731
            eventually(has_begun, "some memory has moved")
            command.send_signal(number)

        words = ("pin", "--memory", *FIRST_GPU, f"{holder.pid}")
        return of_holder(holder, disturbed(*words, disturb=disturb))


def ended_meanwhile() -> Document:
    with holding("anonymous", "1=100,7=100") as holder:

        def disturb(_command: Forked) -> None:
            eventually(lambda: on_nodes(holder.pid).get(NEAR, 0) > 4 * MIB, "some has moved")
            holder.kill()
            holder.wait()

        return disturbed("pin", "--memory", *FIRST_GPU, f"{holder.pid}", disturb=disturb)


CASES: dict[str, Callable[[], Document]] = {
    "plain": plain,
    "pinned": pinned,
    "shared": shared,
    "full": full,
    "filled meanwhile": filled_meanwhile,
    "at the limit": at_the_limit,
    "elsewhere": elsewhere,
    "SIGTERM": partial(interrupted, signal.SIGTERM),
    "SIGKILL": partial(interrupted, signal.SIGKILL),
    "ended meanwhile": ended_meanwhile,
}


def prepare() -> None:
    output("modprobe", "brd", "rd_nr=1", "rd_size=65536")
    output("mkswap", "/dev/ram0")
    output("swapon", "/dev/ram0")
    Path("/dev/shm").mkdir(exist_ok=True)  # noqa: S108 - where it is mounted everywhere
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


def after(holder: subprocess.Popen[str]) -> str:
    """Have a holder end; return whether its memory has what it wrote."""
    return holder.communicate()[0].strip()


def on_nodes(pid: int) -> dict[int, int]:
    """Return bytes by node, by the kernel's own account."""
    sizes: Counter[int] = Counter()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        page = re.search(r" kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            sizes[int(node)] += int(pages) * int(page[1] if page else 0) * 1024
    return dict(sizes)


def sampled(pid: int) -> Document:
    """Return how many samples have the true share of each node in their interval."""
    truth = on_nodes(pid)
    whole = sum(truth.values())
    within: Counter[int] = Counter()
    memory = resident_memory(pid)
    for run in range(RUNS):
        memory = resident_memory(pid, Random(run))  # noqa: S311 - the same pages each time
        for node, size in truth.items():
            share = memory.share({node})
            within[node] += share is not None and share.low <= size / whole <= share.high
    return {
        "within": dict(within),
        "truth": truth,
        "size": memory.size,
        "sizes": memory.sizes,
        "kinds": sorted({kind for kind, _ in memory.drawn}),
        "locked": memory.locked,
    }


def moved(pid: int) -> Document:
    """Move memory to the near node; return what is said of it, and bytes by node of both times."""
    before = on_nodes(pid)
    migration = Migration(pid, [*{*range(9)} - {NEAR}], [NEAR])
    for _ in migration.batches():
        pass
    stayed = {f"{kind}: {why}": size for (kind, why), size in migration.stayed.items()}
    return {
        "before": before,
        "moved": dict(migration.moved),
        "stayed": stayed,
        "now": on_nodes(pid),
    }
