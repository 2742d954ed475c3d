"""The CPUs that a process's task asked for, and the CPUs that its launcher bound it to. Pure.

Slurm's variables tell both. For other launchers there are AFFINITYD_CPUS and AFFINITYD_SLICE.
"""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.config import CPUS
from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.errors import InvalidRequestError
from affinityd.request import environment as env
from affinityd.request.environment import Environment, Rank, number
from affinityd.text import one_line, quote

MOST_SHOWN = 20  #: most characters of a binding in a message


@dataclass(frozen=True)
class TaskCpus:
    """How many CPUs a task asked for, by its variables."""

    cpus: int | None = None  #: how many CPUs
    tasks: int | None = None  #: or an equal part of the CPUs of so many tasks
    of_job: int | None = None  #: how many the job, or the container, has on this node
    #: Only the size of the mask or cpuset tells how many: then the part is at most a GPU's part of
    #: the machine's cores, and a mask of the whole machine tells nothing.
    is_allotment: bool = False
    is_container: bool = False  #: `of_job` is a container's: without a limit it is the whole node


@dataclass(frozen=True)
class SlurmTask:
    """A task of a Slurm step on this node, with the CPUs that Slurm bound the other tasks to."""

    number: int  #: the task's number on this node
    tasks: int  #: how many tasks the step has on this node
    step_gpus: int | None  #: how many GPUs the step has on this node
    masks: tuple[CpuSet, ...]  #: mask of each task, as Slurm chose it; (): it bound no task
    mask: CpuSet | None = None  #: this task's current mask; None: not stated
    pinned: CpuSet = frozenset()  #: CPUs to which affinityd pinned it; empty: it is not pinned
    allowed: CpuSet = frozenset()  #: its CPUs before that pin; with a slice, all CPUs of the task
    #: whether GPUs are bound to tasks: by Slurm (--gpu-bind, --gpus-per-task), or by affinityd
    binds_gpus: bool = False


def read_asked_cpus(
    environ: Environment, ranks: int | None, rank: Rank | None, *, of_script: bool
) -> TaskCpus | None:
    """Return how many CPUs a process's task asked for; None: unknown.

    The first that is known counts: AFFINITYD_CPUS; under Slurm -c, in a batch script (`of_script`)
    for all its tasks; an equal part of the CPUs of the job, of the container (AFFINITYD_JOB_CPUS),
    or of an allotment (AFFINITYD_ALLOWED). Raises InvalidRequestError.
    """
    stated = environ.get(CPUS)
    in_slurm = env.SLURM_JOB in environ
    if stated == "none":
        return None
    each = number(stated)
    if stated and not each:
        raise InvalidRequestError(f"{CPUS}: {quote(stated)} is neither none nor a number")
    of_job = of_container = number(environ.get(env.JOB_CPUS))
    if in_slurm and not of_job:
        on_node = environ.get("SLURM_CPUS_ON_NODE")
        of_job = number(on_node) if on_node else env.job_cpus(environ)
    if not stated and in_slurm and not of_container:
        each = _cpus_per_task(environ, rank)
    if each and in_slurm and of_script:
        return TaskCpus(tasks=1, of_job=each)
    if each:
        return TaskCpus(cpus=each, of_job=of_job)
    tasks = ranks or (rank and rank.size) or 1
    if of_container or in_slurm:
        return TaskCpus(tasks=tasks, of_job=of_job, is_container=bool(of_container))
    return TaskCpus(tasks=tasks, is_allotment=True) if environ.get(env.ALLOWED) else None


def _cpus_per_task(environ: Environment, rank: Rank | None) -> int | None:
    """Return Slurm's -c; in a batch script, the sum of its tasks' -c. None: unset or unusable."""
    each = number(environ.get("SLURM_CPUS_PER_TASK"))
    if not each or (rank and rank.variable != env.SLURM_TASK):
        return None
    step = number(environ.get("SLURM_STEP_ID"))
    if step is None or step >= env.SLURM_SPECIAL_STEP:
        each *= number(environ.get("SLURM_NTASKS")) or 1
    return each


def read_slice(
    environ: Environment, cpuset: CpuSet | None, launched: Rank | None, *, is_named: bool
) -> CpuSet | None:
    """Return the CPUs to which a launcher bound the rank, if it did. Raises as `read_masks`."""
    is_task = launched is not None and launched.variable == env.SLURM_TASK and launched.size
    if is_named and launched and is_task and _has_slurm_masks(environ):
        slices = [mask for mask in _bind_list(environ)[: launched.size] if mask]
        if len(slices) > 1 and sum(map(len, slices)) == len(frozenset().union(*slices)):
            return cpuset  # whichever GPU it uses, the other tasks keep their CPUs
    try:
        return parse_list(environ[env.SLICE]) if env.SLICE in environ else None
    except ValueError as error:
        raise InvalidRequestError(f"env: {env.SLICE}: {error}") from None


def bound_by(environ: Environment, launched: Rank | None) -> str | None:
    """Return why a Slurm task keeps its CPUs, such as a user's option; None: they may change."""
    if "SLURM_STEP_ID" not in environ:
        return None
    kind = environ.get("SLURM_CPU_BIND_TYPE", "")
    is_own_list = kind.startswith("mask_cpu") and _has_slurm_masks(environ)
    if kind.startswith("none"):
        return (
            "--cpu-bind=none, of the user or the site, leaves its CPUs alone; without this option "
            "a task keeps the CPUs that Slurm chose, and affinityd exchanges far CPUs"
        )
    if kind.startswith(("rank", "map_", "mask_")) and not is_own_list:
        option = one_line(kind.partition(":")[0][:MOST_SHOWN])
        return f"its CPUs are bound by --cpu-bind={option}, or by the CpuBind= of the site"
    # Memory pages would stay where Slurm bound them.
    memory = environ.get("SLURM_MEM_BIND_TYPE") or "none"
    if not memory.removeprefix("quiet,").startswith("none"):
        return f"its memory is bound by --mem-bind={one_line(memory[:MOST_SHOWN])}"
    if launched and not launched.size and _has_slurm_masks(environ):
        return "neither SLURM_GTIDS nor SLURM_STEP_TASKS_PER_NODE says how many tasks there are"
    return None


def _has_slurm_masks(environ: Environment) -> bool:
    """Return whether Slurm chose the masks of the tasks of a step."""
    return environ.get("SLURM_CPU_BIND_LIST", "").startswith("0x")


def _bind_list(environ: Environment) -> tuple[CpuSet, ...]:
    """Return the CPUs of each task that srun lists: 0xf*4, or numbers. Raises as `read_masks`."""
    is_map = environ.get("SLURM_CPU_BIND_TYPE", "").startswith("map_cpu")
    masks: list[CpuSet] = []
    try:
        for entry in environ["SLURM_CPU_BIND_LIST"].split(","):
            value, _, times = entry.partition("*")
            cpus = frozenset({int(value, 0)}) if is_map else parse_mask(value)
            masks += [cpus] * min(number(times or "1") or 1, env.MAX_ENTRIES)
    except ValueError as error:
        raise InvalidRequestError(f"env: SLURM_CPU_BIND_LIST: {error}") from None
    return tuple(masks[: env.MAX_ENTRIES])


def read_masks(environ: Environment) -> tuple[tuple[CpuSet, ...], str | None]:
    """Return the CPUs of each rank on the node, or why they are unknown; (), None: all equal.

    Slurm lists them; other launchers do not. Raises InvalidRequestError.
    """
    rank = env.local_rank(environ)
    if rank is None or env.is_alone(environ, rank) or env.GPUS in environ:
        return (), None
    in_slurm = rank.variable == env.SLURM_TASK
    kind = environ.get("SLURM_CPU_BIND_TYPE", "") if in_slurm else ""
    why = None
    if kind.startswith(("map_cpu", "mask_cpu")) and environ.get("SLURM_CPU_BIND_LIST"):
        return _bind_list(environ), None
    if kind.startswith(("rank", "map_", "mask_")):
        kind = one_line(kind[:MOST_SHOWN])
        why = f"--cpu-bind={kind} does not list them, --cpu-bind=cores does"
    elif env.SLICE in environ and in_slurm:
        why = "a script bound this rank, as by numactl or taskset: use --cpu-bind=cores instead"
    elif env.SLICE in environ:
        switch = env.UNBINDING.get(rank.variable, "another launch")
        why = f"the launcher bound each rank to its own: use {switch}, or srun"
    return (), why


def read_slurm_task(environ: Environment, task: int, tasks: int, mask: CpuSet | None) -> SlurmTask:
    """Return a task of a Slurm step, by its number. Raises as `read_masks`."""
    gpu_bind = environ.get("SLURM_TRES_BIND", "").removeprefix("gres/gpu:")
    return SlurmTask(
        number=task,
        tasks=tasks,
        step_gpus=number(environ.get("SLURM_GPUS_ON_NODE")),
        masks=_bind_list(environ) if _has_slurm_masks(environ) else (),
        mask=mask,
        pinned=env.read_cpus(environ, env.CPULIST),
        allowed=env.read_cpus(environ, env.ALLOWED),
        binds_gpus=gpu_bind.removeprefix("verbose,") not in {"", "none", "verbose"}
        or env.GPUS in environ,
    )
