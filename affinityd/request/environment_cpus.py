"""What an environment says of a process's CPUs: which to plan on, how many were asked for. Pure.

Source: srun(1), sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, parse_list
from affinityd.request.launchers import SLURM_SPECIAL_STEP, SLURM_TASK, local_rank, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from affinityd.request.launchers import Environment

JOB_CPUS = "AFFINITYD_JOB_CPUS"  #: how many CPUs a container asked for, or may use
#: Parameters that say what holds without them.
DEFAULTS = {("share", "auto"), ("task_cpus", "none")}


def cpus_to_plan_on(environ: Environment, mask: CpuSet) -> CpuSet:
    """Return the CPUs to plan a process on: its mask, or what an earlier pin was planned on.

    A mask that affinityd set is no limit: to divide it again would shrink it at every pin.
    """
    try:
        pinned = parse_list(environ.get("AFFINITYD_CPULIST", ""))
        allowed = parse_list(environ.get("AFFINITYD_ALLOWED", ""))
    except ValueError:
        return mask
    return allowed if pinned == mask and pinned <= allowed else mask


def with_asked_cpus(given: Mapping[str, str], environ: Environment) -> dict[str, str]:
    """Return given parameters, and the CPUs that were asked for, where they say none."""
    is_said = {"cpus", "task_cpus"} & given.keys()
    asked = {} if is_said else asked_cpus(environ, number(given.get("ranks")))
    return {**asked, **without_defaults(given)}


def without_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Return given parameters but for those that only say that nothing was chosen."""
    return {name: text for name, text in given.items() if (name, text) not in DEFAULTS}


def asked_cpus(environ: Environment, ranks: int | None = None) -> dict[str, str]:
    """Return how many CPUs a process's task asked for, as parameters of a plan; {}: not known.

    `ranks` is how many divide its CPUs; None: as many as its launcher says.

    Under Slurm that is SLURM_CPUS_PER_TASK, which is set where -c was given; a batch script asked
    for that of all its tasks. Else it is its part of what its tasks may use. In a pod
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
    if each and by_slurm and not is_task:  # a script has what it asks for all of its tasks
        each *= number(environ.get("SLURM_NTASKS")) or 1
    return {**facts, "task_cpus": f"{each}" if each and by_slurm else part}


def cpus_of_job(environ: Environment) -> int | None:
    """Return how many CPUs Slurm gave on this node, of `8(x2)` 8; None where nodes differ."""
    each = environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    alike = None if "," in each else each.partition("(")[0]
    return number(environ.get("SLURM_CPUS_ON_NODE") or alike)
