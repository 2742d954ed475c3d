"""A real daemon on a node that is not well: two NUMA nodes, five GPUs, and their processes.

The GPUs are NVML's of the tests, the NUMA nodes are mounted over this machine's; processes, masks,
cpusets and cgroups are real. Near are the lower half of the CPUs to GPU 0, the upper to the others.

    GPU 0   job 77, alive: its cpuset is the far half; job 78, ended: its mask is the far half
    GPU 1   job 79, alive: a process that nobody pinned; job 80, alive: its mask is the near half
    GPU 2   NVML does not say who uses it
    GPU 3   a process that nobody pinned, of no job
    GPU 4   no process

The daemon is to pin, and may not: it observes. Its policy was right when it started, and is broken
since.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from affinityd.cpuset import format_list
from affinityd.measure.document import MeasuredGpu, save
from tests.support.cpusets import cgroup, step_parts
from tests.support.daemons import Daemon, eventually
from tests.support.machines.by_hand import made
from tests.support.made_nodes import DRIVER, running_on
from tests.support.measurements import copies, measurement

CPUS = sorted(os.sched_getaffinity(0))
HALVES = CPUS[: len(CPUS) // 2], CPUS[len(CPUS) // 2 :]
NEAR, FAR = HALVES  #: as GPU 0 sees them

#: A fifth of a CPU: enough to be counted in ticks, little enough for a machine that tests.
WORK = """
from time import monotonic, sleep
while True:
    end = monotonic() + 0.02
    while monotonic() < end:
        pass
    sleep(0.08)
"""
SETTINGS = {
    "AFFINITYD_SCAN_INTERVAL": "1",
    "AFFINITYD_JOB_SERIES": "10",
    "AFFINITYD_ENFORCE": "pin",
}
UUID = "GPU-{gpu}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
#: Of GPU 0, to which near CPUs copy 1.8 times as fast as far ones.
_MEASURED = MeasuredGpu("nvidia", 0, UUID.format(gpu=0), "0000:e1:00.0", [0])
MEASUREMENT = measurement(
    [copies(0, 54e9, _MEASURED), copies(1, 30e9, _MEASURED)], gpus=[_MEASURED]
)
WITHOUT_PRIVILEGE = ("setpriv", "--bounding-set=-all", "--no-new-privs")


@contextmanager
def audited(folder: Path, listen: str) -> Iterator[Daemon]:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        far, ended, whole, good = (
            stack.enter_context(cgroup(*step_parts(job), cpus=format_list(cpus)))
            for job, cpus in ((77, FAR), (78, CPUS), (79, CPUS), (80, CPUS))
        )
        stepd = shutil.copy(shutil.which("sleep") or "sleep", folder / "slurmstepd")
        for alive in (far, whole, good):
            stack.enter_context(_process([os.fspath(stepd), "600"], CPUS, alive))
        allocated, masked, unpinned, placed, nobodys = (
            stack.enter_context(_process([sys.executable, "-c", WORK], mask, cgroup))
            for mask, cgroup in (
                *((FAR, far), (FAR, ended), (CPUS, whole), (HALVES[1], good)),
                (CPUS, None),
            )
        )
        users = {0: [allocated, masked], 1: [unpinned, placed], 2: None, 3: [nobodys], 4: []}
        facts = _facts(users)
        policy = folder / "policy.toml"
        policy.write_text('mode = "node"\n')
        measured = folder / "measure.json"
        save(MEASUREMENT, measured)
        node = running_on(
            made(dict(enumerate(map(format_list, HALVES))), gpus=[]),
            folder,
            facts,
            env={
                **SETTINGS,
                "AFFINITYD_ENFORCE_POLICY": str(policy),
                "AFFINITYD_MEASURED": str(measured),
            },
            listen=listen,
            before=WITHOUT_PRIVILEGE,
        )
        daemon = stack.enter_context(node)
        eventually(lambda: daemon.get("/enforce").status == 200, "it has looked once")
        policy.write_text("mode =\n")
        yield daemon


@contextmanager
def _process(command: list[str], mask: Collection[int], cgroup: Path | None) -> Iterator[int]:
    with subprocess.Popen(command, start_new_session=True) as process:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
        os.sched_setaffinity(process.pid, mask)
        try:
            yield process.pid
        finally:
            process.kill()


def _facts(users: Mapping[int, Collection[int] | None]) -> str:
    lines = [f"driver {DRIVER}"]
    for gpu, pids in users.items():
        lines += ["gpu", f"uuid {UUID.format(gpu=gpu)}", f"minor {gpu}"]
        lines += [f"pci 00000000:{0xE1 + gpu:02X}:00.0", "model NVIDIA Test"]
        lines += [f"node {format_list(HALVES[min(gpu, 1)])}"]
        lines += [f"process compute {pid} {2**30}" for pid in pids or ()]
        if pids is None:
            lines += [f"fail nvmlDeviceGetComputeRunningProcesses_v{it} 4" for it in (2, 3)]
    return "\n".join([*lines, ""])
