"""The jobs that run on this node: the CPUs that Slurm's cgroups let each use, and its GPUs.

Sources: Slurm's src/plugins/cgroup/v1 and v2, cgroup.conf(5) "CgroupJobIdPaths". The note of a
job's GPUs is what affinityd's Prolog leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from affinityd.config.file import MAX_FILE
from affinityd.cpuset import CpuSet, parse_list
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
        for entry in _read(root / "proc" / pid / "environ").split("\0"):
            name, _, value = entry.partition("=")
            if name == "SLURM_JOB_ID" and _is_number(value):
                return int(value)
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
    """Return the first of a file: a process can make its environment as large as its memory."""
    try:
        if not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE)
    except OSError:
        return ""
