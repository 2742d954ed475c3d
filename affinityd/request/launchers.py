"""Which local rank a process is: what the launcher that started it says in its environment.

Sources: PyTorch "torchrun: Environment Variables"; mpirun(1) of Open MPI; Intel MPI and MPICH
Hydra; Cray PALS; flux-run(1); srun(1) and sbatch(1) "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from affinityd.text import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Environment = Mapping[str, str]

MOST = 2**32 - 1  #: that Slurm and launchers write
SLURM_TASK = "SLURM_LOCALID"

#: Slurm's steps from here on are no tasks of srun: interactive, batch, extern (slurm.h).
SLURM_SPECIAL_STEP = 0xFFFFFFFA


class Rank:
    """A local rank: its number, how many there are (None: not known), and who said so."""

    __slots__ = ("number", "size", "variable")

    def __init__(self, number: int, size: int | None, variable: str) -> None:
        self.number = number
        self.size = size if size is not None and number < size else None
        self.variable = variable


def local_rank(environ: Environment) -> Rank | None:
    """Return the local rank that the nearest launcher gave; None where there is none.

    Where that one does not say how many there are, a farther one with the same rank is taken: a
    script under srun exports LOCAL_RANK=$SLURM_LOCALID for its framework. A lone one tells nothing:
    what it started may have many.
    """
    ranks = list(_ranks(environ))
    if not ranks:
        return None
    nearest, *others = ranks
    alike = (rank for rank in others if rank.number == nearest.number and (rank.size or 0) > 1)
    return next(alike, nearest) if nearest.size is None else nearest


def number(text: str | None) -> int | None:
    """Return what a variable of digits says; None for anything else."""
    return whole_number(text, MOST)


def _ranks(environ: Environment) -> Iterator[Rank]:
    for variable, size in LAUNCHERS:
        rank = number(environ.get(variable))
        if rank is not None and not (variable == SLURM_TASK and _is_script(environ)):
            yield Rank(rank, size(environ), variable)


def _variable(name: str) -> Callable[[Environment], int | None]:
    return lambda environ: number(environ.get(name))


def _framework_size(environ: Environment) -> int | None:
    """As torchrun and accelerate have it, else as deepspeed does."""
    return number(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE"))


def _flux_size(environ: Environment) -> int | None:
    """Flux says how many tasks a job has, and on how many nodes."""
    return number(environ.get("FLUX_JOB_SIZE")) if environ.get("FLUX_JOB_NNODES") == "1" else None


def _slurm_size(environ: Environment) -> int | None:
    """Count the step's tasks on this node, whose numbers slurmstepd lists for each of them."""
    tasks = environ.get("SLURM_GTIDS")
    return tasks.count(",") + 1 if tasks else None


def _is_script(environ: Environment) -> bool:
    """Return whether it is a batch script or interactive shell: Slurm numbers these 0, too."""
    step = number(environ.get("SLURM_STEP_ID"))
    in_no_step = "SLURM_JOB_ID" in environ and step is None
    return environ[SLURM_TASK] == "0" and (in_no_step or (step or 0) >= SLURM_SPECIAL_STEP)


#: Who starts ranks: the variable of the local rank, and how many there are. The nearest to the
#: process comes first: torchrun runs under srun, and mpirun's ranks inherit what srun told mpirun.
LAUNCHERS = (
    ("LOCAL_RANK", _framework_size),
    ("OMPI_COMM_WORLD_LOCAL_RANK", _variable("OMPI_COMM_WORLD_LOCAL_SIZE")),
    ("MPI_LOCALRANKID", _variable("MPI_LOCALNRANKS")),
    ("PMI_LOCAL_RANK", _variable("PMI_LOCAL_SIZE")),
    ("FLUX_TASK_LOCAL_ID", _flux_size),
    (SLURM_TASK, _slurm_size),
)

#: All that is read here of a process that another launcher than Slurm started.
VARIABLES = (
    *(variable for variable, _ in LAUNCHERS),
    *("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    *("PMI_LOCAL_SIZE", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"),
)
