"""Variables of launchers and schedulers: the local rank, and the requested CPUs. Pure.

Sources: PyTorch "torchrun: Environment Variables"; mpirun(1) of Open MPI; Intel MPI and MPICH
Hydra; Cray PALS; flux-run(1); srun(1) and sbatch(1) "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, parse_list
from affinityd.text import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Environment = Mapping[str, str]

MOST = 2**32 - 1  #: that Slurm and launchers write
SLURM_TASK, FLUX_TASK = "SLURM_LOCALID", "FLUX_TASK_LOCAL_ID"
FLUX_NODES = "FLUX_JOB_NNODES"

#: Launchers: the variable of the local rank, and those of their number. The nearest to
#: the process comes first: torchrun runs under srun, and mpirun's ranks inherit srun's variables.
LAUNCHERS = {
    "LOCAL_RANK": ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),  # torchrun and accelerate; deepspeed
    "OMPI_COMM_WORLD_LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    "MPI_LOCALRANKID": ("MPI_LOCALNRANKS",),
    "PMI_LOCAL_RANK": ("PMI_LOCAL_SIZE",),
    FLUX_TASK: ("FLUX_JOB_SIZE",),
    SLURM_TASK: (),
}
#: All that is read here of a process that another launcher than Slurm started.
VARIABLES = (*LAUNCHERS, *(name for names in LAUNCHERS.values() for name in names), FLUX_NODES)

#: Slurm's steps from here on are no tasks of srun: interactive, batch, extern (slurm.h).
SLURM_SPECIAL_STEP = 0xFFFFFFFA

JOB_CPUS = "AFFINITYD_JOB_CPUS"  #: the CPUs of a container: its request, or its limit
#: Parameters that are the same as their default.
DEFAULTS = {("share", "auto"), ("task_cpus", "none")}


class Rank:
    """A local rank: its number, how many there are (None: unknown), and the source."""

    __slots__ = ("number", "size", "variable")

    def __init__(self, number: int, size: int | None, variable: str) -> None:
        self.number = number
        self.size = size if size is not None and number < size else None
        self.variable = variable


def local_rank(environ: Environment) -> Rank | None:
    """Return the local rank that the nearest launcher gave; None where there is none.

    If that one does not know how many there are, a farther one with the same rank counts: a
    script under srun exports LOCAL_RANK=$SLURM_LOCALID for its framework. A count of one proves
    nothing: the process may have started many.
    """
    ranks = list(_ranks(environ))
    if not ranks:
        return None
    nearest, *others = ranks
    alike = (rank for rank in others if rank.number == nearest.number and (rank.size or 0) > 1)
    return next(alike, nearest) if nearest.size is None else nearest


def number(text: str | None) -> int | None:
    """Return the number in a variable; None for any other text."""
    return whole_number(text, MOST)


def _ranks(environ: Environment) -> Iterator[Rank]:
    for variable in LAUNCHERS:
        rank = number(environ.get(variable))
        if rank is not None and not (variable == SLURM_TASK and _is_script(environ)):
            yield Rank(rank, _size(environ, variable), variable)


def _size(environ: Environment, variable: str) -> int | None:
    """Return how many local ranks there are, by the launcher that sets this variable."""
    if variable == SLURM_TASK:  # slurmstepd lists for each task those of its step on this node
        tasks = environ.get("SLURM_GTIDS")
        return tasks.count(",") + 1 if tasks else None
    if variable == FLUX_TASK and environ.get(FLUX_NODES) != "1":  # the size is the whole job's
        return None
    return number(next(filter(None, map(environ.get, LAUNCHERS[variable])), None))


def _is_script(environ: Environment) -> bool:
    """Return whether it is a batch script or interactive shell: Slurm numbers these 0, too."""
    step = number(environ.get("SLURM_STEP_ID"))
    in_no_step = "SLURM_JOB_ID" in environ and step is None
    return environ[SLURM_TASK] == "0" and (in_no_step or (step or 0) >= SLURM_SPECIAL_STEP)


def cpus_to_plan_on(environ: Environment, mask: CpuSet) -> CpuSet:
    """Return the CPUs to plan a process on: its mask, or the CPUs an earlier pin was planned on.

    A mask that affinityd set is no limit: to divide it again would shrink it at every pin.
    """
    try:
        pinned = parse_list(environ.get("AFFINITYD_CPULIST", ""))
        allowed = parse_list(environ.get("AFFINITYD_ALLOWED", ""))
    except ValueError:
        return mask
    return allowed if pinned == mask and pinned <= allowed else mask


def with_asked_cpus(given: Mapping[str, str], environ: Environment) -> dict[str, str]:
    """Return given parameters, with the CPUs of the task's request if they have none."""
    is_said = {"cpus", "task_cpus"} & given.keys()
    asked = {} if is_said else asked_cpus(environ, number(given.get("ranks")))
    return {**asked, **{name: it for name, it in given.items() if (name, it) not in DEFAULTS}}


def asked_cpus(environ: Environment, ranks: int | None = None) -> dict[str, str]:
    """Return how many CPUs a process's task asked for, as parameters of a plan; {}: unknown.

    `ranks` divide its CPUs; None: as many as its launcher started.

    Under Slurm that is SLURM_CPUS_PER_TASK, which is set where -c was given; a batch script asked
    for that of all its tasks. Else it is its part of its tasks' CPUs. In a pod
    it is a part of AFFINITYD_JOB_CPUS, the container's CPU request.
    """
    request = number(environ.get(JOB_CPUS))
    rank = local_rank(environ)
    part = f"1/{ranks or (rank and rank.size) or 1}"
    if request:  # 0: the container has none
        return {"job_cpus": f"{request}", "task_cpus": part}
    if "SLURM_JOB_ID" not in environ:
        return {}
    of_job = cpus_of_job(environ)
    facts = {"job_cpus": f"{of_job}"} if of_job else {}
    step = number(environ.get("SLURM_STEP_ID"))
    is_task = step is not None and step < SLURM_SPECIAL_STEP
    each = number(environ.get("SLURM_CPUS_PER_TASK"))
    by_slurm = rank is None or rank.variable == SLURM_TASK
    if each and by_slurm and not is_task:  # a script has the CPUs of all its tasks
        each *= number(environ.get("SLURM_NTASKS")) or 1
    return {**facts, "task_cpus": f"{each}" if each and by_slurm else part}


def cpus_of_job(environ: Environment) -> int | None:
    """Return how many CPUs Slurm gave on this node, of `8(x2)` 8; None where nodes differ."""
    each = environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    alike = None if "," in each else each.partition("(")[0]
    return number(environ.get("SLURM_CPUS_ON_NODE") or alike)
