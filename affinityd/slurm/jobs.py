"""The jobs that run on this node: the CPUs that Slurm's cgroups let each use, and its GPUs.

Sources: Slurm's src/plugins/cgroup/v1 and v2, cgroup.conf(5) "CgroupJobIdPaths". The note of a
job's GPUs is what affinityd's Prolog leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from affinityd.cpuset import CpuSet, parse_list
from affinityd.linux.environ import environment_of
from affinityd.linux.files import beginning
from affinityd.slurm.allocations import SlurmJob

NOTES = "run/affinityd/jobs"  #: a file a job, by its number; its first line is like gpus=2,3

FILES = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")

#: Where Slurm makes a job's folder below /sys/fs/cgroup: job_NUMBER, or by its SLUID, s….
FOLDERS = (
    "cpuset/slurm*/uid_*/job_*",
    *(f"{'*/' * depth}*slurmstepd.scope/[js]*" for depth in range(4)),
)

MAX_PIDS = 64  #: of a job's processes, how many are asked for its number

#: What a user's process says of itself may be anything.
_is_number = re.compile(r"\d{1,10}", re.ASCII).fullmatch
_is_gpu = re.compile(r"\d{1,10}|(GPU|MIG)-[\w/-]{1,100}", re.ASCII).fullmatch


def jobs(root: Path) -> Iterator[SlurmJob]:
    """Yield the jobs whose CPUs are confined, by number. `root`: where the machine's files lie."""
    found: dict[int, CpuSet] = {}
    for pattern in FOLDERS:
        for folder in (root / "sys/fs/cgroup").glob(pattern):
            number, cpus = _number(root, folder), _cpus(folder)
            if number is not None and cpus:
                found[number] = cpus
    for number, cpus in sorted(found.items()):
        yield SlurmJob(number, cpus, _gpus(root / NOTES / str(number)))


def _number(root: Path, folder: Path) -> int | None:
    """Return a job's number: from Slurm 26.05 on its processes tell it, and no more its folder."""
    kind, _, number = folder.name.partition("_")
    if kind == "job" and _is_number(number):
        return int(number)
    files = folder.glob("step_*/**/cgroup.procs")
    for pid in islice((pid for file in files for pid in _read(file).split()), MAX_PIDS):
        environment = environment_of(int(pid), f"{root}") if _is_number(pid) else None
        job = (environment or {}).get("SLURM_JOB_ID", "")
        if _is_number(job):
            return int(job)
    return None


def _cpus(folder: Path) -> CpuSet:
    """Return the CPUs of a job's cgroup: where it says none, those of its steps."""
    own = _list(folder)
    return own or frozenset().union(*map(_list, folder.glob("step_*")))


def _list(folder: Path) -> CpuSet:
    text = next((text for file in FILES if (text := _read(folder / file).strip())), "")
    try:
        return parse_list(text)
    except ValueError:
        return frozenset()


def _gpus(note: Path) -> tuple[str, ...] | None:
    """Read a note's first line: None where it names no GPUs, () where it says there are none."""
    key, equals, numbers = _read(note).split("\n")[0].strip().partition("=")
    entries = [entry for entry in numbers.split(",") if entry]
    if key != "gpus" or not equals or not all(map(_is_gpu, entries)):
        return None
    return tuple(entries)


def _read(path: Path) -> str:
    return beginning(f"{path}").decode(errors="replace")
