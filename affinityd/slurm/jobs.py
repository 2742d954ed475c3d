"""The jobs that run on this node: their GPUs, and the CPUs that Slurm's cgroups allow.

Sources: Slurm's src/plugins/cgroup/v1 and v2, cgroup.conf(5) "CgroupJobIdPaths". The note of a
job's GPUs is the one that affinityd's Prolog writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from affinityd.cpuset import CpuSet, format_list, named_nodes, named_packages
from affinityd.linux.cgroup import cpus_listed_in
from affinityd.linux.files import environment_of, text
from affinityd.topology.model import Topology
from affinityd.topology.nearness import vicinity

REMEDY = "give it --gres-flags=enforce-binding, and gres.conf the right Cores="
SOCKETS = "; slurm.conf needs {settings}"

NOTES = "run/affinityd/jobs"  #: a file a job, by its number; its first line is like gpus=2,3

FILES = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")

#: Where Slurm makes a job's folder below /sys/fs/cgroup: job_NUMBER, or by its SLUID, s….
FOLDERS = (
    "cpuset/slurm*/uid_*/job_*",
    *(f"{'*/' * depth}*slurmstepd.scope/[js]*" for depth in range(4)),
)

MAX_PIDS = 64  #: how many of a job's processes are read for its number

#: A user's process may have any text here.
_is_number = re.compile(r"\d{1,10}", re.ASCII).fullmatch
_is_gpu = re.compile(r"\d{1,10}|(GPU|MIG)-[\w/-]{1,100}", re.ASCII).fullmatch


@dataclass(frozen=True)
class SlurmJob:
    """A job, as this node sees it."""

    number: int
    cpus: CpuSet  #: all that it may use here
    gpus: tuple[str, ...] | None  #: the node's numbers of its GPUs, or UUIDs; None: not known


def jobs(root: Path) -> Iterator[SlurmJob]:
    """Yield the jobs with confined CPUs, by number. `root`: of the machine's files."""
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
    if kind == "job":
        return int(number) if _is_number(number) else None
    files = folder.glob("step_*/**/cgroup.procs")
    pids = filter(_is_number, (pid for file in files for pid in text(f"{file}").split()))
    environments = (environment_of(int(pid), f"{root}") or {} for pid in islice(pids, MAX_PIDS))
    told = (environment.get("SLURM_JOB_ID", "") for environment in environments)
    return next((int(job) for job in told if _is_number(job)), None)


def _cpus(folder: Path) -> CpuSet:
    """Return the CPUs of a job's cgroup: if it has none, those of its steps."""
    return _list(folder) or frozenset().union(*map(_list, folder.glob("step_*")))


def _list(folder: Path) -> CpuSet:
    lists = (cpus_listed_in(f"{folder / file}") for file in FILES)
    return next(filter(None, lists), frozenset())


def _gpus(note: Path) -> tuple[str, ...] | None:
    """Read a note's first line: None if it has no list of GPUs, () if the list is empty."""
    key, equals, numbers = text(f"{note}").partition("\n")[0].strip().partition("=")
    entries = [entry for entry in numbers.split(",") if entry]
    if key != "gpus" or not equals or not all(map(_is_gpu, entries)):
        return None
    return tuple(entries)


def far(topology: Topology, job: SlurmJob, settings: str | None = None) -> Iterator[str]:
    """Yield the errors of a job: each GPU with none of the job's CPUs near it.

    `settings`: what slurm.conf lacks for the right `Cores=`.
    """
    remedy = REMEDY + (SOCKETS.format(settings=settings) if settings else "")
    gpus = [gpu for gpu in topology.gpus if gpu.vendor == topology.vendor]
    # From 26.05 on Slurm may call a GPU by its UUID, and by those of its parts.
    named = {
        name: gpu
        for gpu in gpus
        for name in (f"{gpu.index}", gpu.uuid, *(part.uuid for part in gpu.mig))
    }
    for name in job.gpus or ():
        if name not in named:
            numbers = format_list(gpu.index for gpu in gpus)
            yield f"job {job.number} has gpu {name}, and this node has {numbers}"
    for gpu in dict.fromkeys(named[name] for name in job.gpus or () if name in named):
        near = vicinity(topology, [gpu])
        if near.nodes and job.cpus.isdisjoint(near.cpus):
            own = topology.cpus_of_node(gpu.numa_node)
            home = _place(topology, own) if own else named_nodes([gpu.numa_node])
            yield (
                f"job {job.number} has gpu {gpu.index} ({home}) and CPUs {format_list(job.cpus)} "
                f"({_place(topology, job.cpus)}), none of them near it; {remedy}"
            )


def _place(topology: Topology, cpus: CpuSet) -> str:
    """Return where CPUs are: `package 0, nodes 0-1`."""
    cores = [core for core in topology.cores if not cpus.isdisjoint(core.cpus)]
    packages = named_packages({core.package for core in cores})
    nodes = named_nodes({core.node for core in cores})
    return f"{packages}, {nodes}" if packages else nodes
