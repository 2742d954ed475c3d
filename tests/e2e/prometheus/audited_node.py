"""A real daemon on an unhealthy node: two NUMA nodes, four GPUs, and their processes.

GPUs 0 and 1 are near the first CPU, 2 and 3 near the second.

GPU 0 has job 77, alive, whose cpuset is the far CPU, and job 78, ended, whose mask is the far CPU.
NVML does not report the processes on GPU 1. GPU 2 has job 79, alive and not pinned, and job 80,
alive, whose mask is the near CPU. GPU 3 has a process that is not pinned, and belongs to no job.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from affinityd.cpuset import parse_list
from tests.support.cpusets import cgroup, step_parts
from tests.support.daemons import Daemon
from tests.support.scanning_node import scanning
from tests.support.tiny import BOTH, FAR

#: Uses a fifth of a CPU: enough for the kernel's ticks, and too little to slow other tests.
WORK = """
from time import monotonic, sleep
while True:
    end = monotonic() + 0.02
    while monotonic() < end:
        pass
    sleep(0.08)
"""
DEPRIVED = ("setpriv", "--bounding-set=-all", "--no-new-privs")
SERIES = ("--job-series", "10")


@contextmanager
def audited(folder: Path, listen: str) -> Iterator[Daemon]:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        far, ended, whole, good = (
            stack.enter_context(cgroup(*step_parts(job), cpus=cpus))
            for job, cpus in ((77, FAR), (78, BOTH), (79, BOTH), (80, BOTH))
        )
        stepd = shutil.copy(shutil.which("sleep") or "sleep", folder / "slurmstepd")
        for alive in (far, whole, good):
            stack.enter_context(_process([os.fspath(stepd), "600"], BOTH, alive))
        allocated, masked, unpinned, placed, nobodys = (
            stack.enter_context(_process([sys.executable, "-c", WORK], mask, group))
            for mask, group in ((FAR, far), (FAR, ended), (BOTH, whole), (FAR, good), (BOTH, None))
        )
        users = {0: [allocated, masked], 1: None, 2: [unpinned, placed], 3: [nobodys]}
        node = stack.enter_context(scanning(*SERIES, before=DEPRIVED, users=users, listen=listen))
        yield node.daemon


@contextmanager
def _process(command: list[str], mask: str, group: Path | None) -> Iterator[int]:
    with subprocess.Popen(command, start_new_session=True) as process:
        if group is not None:
            (group / "cgroup.procs").write_text(str(process.pid))
        os.sched_setaffinity(process.pid, parse_list(mask))
        try:
            yield process.pid
        finally:
            process.kill()
