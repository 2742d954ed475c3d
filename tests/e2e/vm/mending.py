"""Processes that are not where their GPU is: what `verify` says of them, and what `pin` mends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from affinityd.cpuset import format_list
from tests.e2e.vm.inside import Ended, cgroup, ran
from tests.e2e.vm.warm import affinityd, executing
from tests.support.children import program

FIRST_GPU = ("--gpus", "0")  #: is on node 3
FILL = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("filling.py")))

#: A rank on node 0, with a thread there, one that somebody pinned to CPU 28, and a child with one.
LOST = """
import os, threading, time

def idle():
    time.sleep(1000)

def start(*first):
    begun = threading.Event()
    def run():
        for step in first:
            step()
        begun.set()
        idle()
    threading.Thread(target=run, daemon=True).start()
    begun.wait()

os.sched_setaffinity(0, range(4))
start()
start(lambda: os.sched_setaffinity(0, {28}))
told, tell = os.pipe()
if os.fork() == 0:
    start()
    os.write(tell, b".")
    idle()
os.read(told, 1)
print("ready", flush=True)
idle()
"""


def lost(env: dict[str, str]) -> dict[str, Any]:
    """Return what is found of a rank that is far from its GPU, and after each mending."""
    seen: dict[str, Any] = {}
    with program(LOST, env={**os.environ, **env}) as process:
        family = (process.pid, *children(process.pid))

        def moment(command: Ended | None = None) -> dict[str, Any]:
            verified = affinityd("verify", f"{process.pid}", "--format", "json")
            masks = [thread_masks(pid) for pid in family]
            return {"command": command, "masks": masks, "verify": verified}

        seen["at first"] = moment()
        seen["table"] = affinityd("verify", f"{process.pid}")
        seen["dry run"] = moment(affinityd("pin", f"{process.pid}", "--tree", "--dry-run"))
        seen["pinned"] = moment(affinityd("pin", f"{process.pid}", "--tree"))
        seen["mended as was said"] = moment(said(seen["pinned"]["verify"]))
    return seen


def said(verified: Ended) -> Ended:
    """Do what `affinityd verify` says that mends the first mismatch."""
    remedy = re.search(r"(affinityd pin|migratepages)( [-\w ,]*\d)", verified["stdout"])
    assert remedy is not None, verified
    words = remedy[2].split()
    return affinityd("pin", *words) if "pin" in remedy[1] else ran([remedy[1], *words])


def memory() -> dict[str, Any]:
    """Return what is found of processes whose memory is, and is not, where their GPU is."""
    seen = {}
    with filled("taskset", "-c", "4-7") as pid:
        affinityd("pin", pid, *FIRST_GPU)
        seen["filled, then pinned"] = affinityd("verify", pid, *FIRST_GPU)
        seen["filled, then pinned, resident"] = resident(pid, *FIRST_GPU)
        seen["migratepages"] = said(seen["filled, then pinned, resident"])
        seen["its pages moved"] = resident(pid, *FIRST_GPU)
    with filled("numactl", "--physcpubind=12-15", "--membind=1") as pid:
        seen["bound far away"] = affinityd("verify", pid, *FIRST_GPU)
    with filled("taskset", "-c", "20-23") as pid:
        seen["no memory near"] = resident(pid, "--gpus", "6")
    return seen


def shrinking() -> dict[str, Any]:
    """Return a rank's mask, and what is found of it, as its cpuset shrinks and grows."""
    seen = {}
    group = cgroup("job", cpus="8-15")
    with executing(*FIRST_GPU, program="sleep", group=group) as number:
        pid = f"{number}"
        for cpus in ("8-15", "12-13", "8-9"):
            cgroup("job", cpus=cpus)
            seen[cpus] = {"masks": thread_masks(number), "verify": on_first_gpu("verify", pid)}
        seen["8-9, pinned"] = on_first_gpu("pin", pid)
        cgroup("job", cpus="8-15")
        seen["8-15 again, pinned"] = on_first_gpu("pin", pid)
    return seen


def below_a_cpuset() -> dict[str, Any]:
    """Return what becomes of a rank that was confined too far, in a cgroup without a cpuset."""
    cgroup("site", cpus="8-15")
    with executing(*FIRST_GPU, "--cpuset", "8-9", program="sleep", group=cgroup("site/job")) as pid:
        before = thread_masks(pid)
        pinned = on_first_gpu("pin", f"{pid}")
        return {"before": before, "pin": pinned, "after": thread_masks(pid)}


def on_first_gpu(command: str, pid: str) -> Ended:
    return affinityd(command, pid, *FIRST_GPU)


def resident(pid: str, *options: str) -> Ended:
    return affinityd("verify", pid, "--resident", *options)


@contextmanager
def filled(*before: str) -> Iterator[str]:
    """Run a program that has filled memory, by way of a command; give its pid."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*before, *FILL], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the program ended before it was ready"
        try:
            yield f"{process.pid}"
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def thread_masks(pid: int) -> list[str]:
    """Return the mask of each thread, the main one first, as the kernel says."""
    tids = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    return [format_list(os.sched_getaffinity(tid)) for tid in tids]
