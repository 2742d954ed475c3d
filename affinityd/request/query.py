"""The query of a plan: its parameters, and what the caller's variables say about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from affinityd.config import CPUS, PARAMETER_VARIABLES
from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.errors import InvalidRequestError
from affinityd.planner.modes import MODES
from affinityd.request.environment import (
    ALLOWED,
    CPULIST,
    ENV,
    JOB_CPUS,
    JOB_GPUS,
    LONG_LISTS,
    NVIDIA_VISIBLE,
    READ,
    SLICE,
    SLURM_JOB,
    SLURM_SPECIAL_STEP,
    SLURM_TASK,
    Rank,
    cpus_to_plan_on,
    gpus_in,
    local_rank,
    number,
    visible,
)
from affinityd.request.parameters import (
    MAX_ENTRIES,
    Parameter,
    Request,
    SlurmTask,
    TaskCpus,
    parse_request,
    plain,
    read_listed,
)
from affinityd.text import one_line, quote

if TYPE_CHECKING:
    from affinityd.request.environment import Environment

MOST_SHOWN = 20  #: characters of a binding, in a message
CHOSEN_RANK = "--rank"  #: where a rank comes from that no launcher gave
#: The vendor of granted GPUs, by their names; of others any vendor's variables count.
VENDORS = {"minor:": "nvidia", "drm:": "amd"}
VARIABLE = Parameter(
    str,
    "a variable of the caller's environment, like LOCAL_RANK=3; given once for each variable",
    {"type": "array", "items": {"type": "string", "pattern": f"^({'|'.join(sorted(READ))})="}},
)


def parse_query(pairs: Iterable[tuple[str, str]]) -> Request:
    """Read (name, value) pairs, of which several may be variables; stated parameters override them.

    Raises InvalidRequestError, which names the first that is wrong.
    """
    query = list(pairs)
    environ = _environment(text for name, text in query if name == ENV)
    stated = [(name, text) for name, text in query if name != ENV]
    names = {name for name, _ in stated}
    chosen = [
        (name, environ[variable])
        for name, variable in PARAMETER_VARIABLES.items()
        if environ.get(variable) and name not in names
    ]
    request = parse_request([*stated, *chosen])
    return _of_process(request, environ, names) if environ else request


def _environment(assignments: Iterable[str]) -> dict[str, str]:
    """Read NAME=VALUE texts. Raises InvalidRequestError."""
    environ: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequestError(f"env: {quote(text)} is not NAME=VALUE")
        if name not in READ:
            names = ", ".join(sorted(READ))
            raise InvalidRequestError(f"env: {quote(name)} is not read; known are {names}")
        if name in environ:
            raise InvalidRequestError(f"env: {name} is given twice; give it once")
        try:
            environ[name] = plain(value if name in LONG_LISTS else read_listed(value))
        except ValueError as error:
            raise InvalidRequestError(f"env: {name}: {error}") from None
    return environ


def _of_process(request: Request, environ: Environment, stated: Collection[str]) -> Request:
    """Return the request of a process: with what its variables say, and what was stated."""
    rank, mask = _bounded(local_rank(environ)), request.cpuset
    request = _completed(request, environ, rank)
    if request.rank is not None and len(request.rank) == 1:
        started = rank.size if rank and not _is_alone(rank) else None
        rank = Rank(request.rank[0], started, CHOSEN_RANK)
    request = request._replace(is_of_process=bool(environ.keys() - {ALLOWED, CPULIST}))
    is_named = {"gpus", "rank"} & set(stated)
    of_slurm = _bounded(local_rank(environ))
    if is_named and of_slurm and of_slurm.variable == SLURM_TASK and of_slurm.size:
        slices = [mask for mask in _slurm_masks(environ)[: of_slurm.size] if mask]
        if len(slices) > 1 and sum(map(len, slices)) == len(frozenset().union(*slices)):
            request = request._replace(slice=mask)  # whichever GPU it uses, the others keep theirs
    if not is_named and (rank is None or rank.variable == SLURM_TASK):
        request = request._replace(bound=_bound_by(environ))
        if rank and rank.size:
            return _of_slurm_task(request, rank, rank.size, environ, mask)
        if rank and _has_slurm_masks(environ):
            unknown = (
                "neither SLURM_GTIDS nor SLURM_STEP_TASKS_PER_NODE says how many tasks there are"
            )
            return request._replace(bound=request.bound or unknown)
    if rank is None or _is_alone(rank):
        return _granted_job(request, environ)
    if not is_named and not request.ranks and _has_own_gpus(request, environ):
        return _kept_apart(request, rank, environ)
    if request.rank and request.ranks:  # both are stated
        return request
    ranks = request.ranks or rank.size  # None: as many as GPUs
    return request._replace(job=None, rank=request.rank or (rank.number,), ranks=ranks)


def _bounded(rank: Rank | None) -> Rank | None:
    """Return a rank. Raises InvalidRequestError if no machine has so many."""
    if rank is not None and max(rank.number + 1, rank.size or 1) > MAX_ENTRIES:
        raise InvalidRequestError(
            f"env: {rank.variable}={rank.number} of {rank.size or 'unknown'} ranks on this node "
            f"are too many; the most is {MAX_ENTRIES}"
        )
    return rank


def _completed(request: Request, environ: Environment, rank: Rank | None) -> Request:
    """Return a request with the devices and CPUs that a process's variables name."""
    cpuset, seen, asked = request.cpuset, request.visible, None
    if seen is None:
        granted = request.granted or ""
        vendors = [vendor for prefix, vendor in VENDORS.items() if granted.startswith(prefix)]
        seen = visible(environ, vendors)
    if request.options.cpus is None:
        asked = asked_cpus(environ, request.ranks)
        # A batch script, or a lone task in Slurm, has them for all of its ranks.
        starts_ranks = SLURM_JOB in environ and (rank is None or _is_alone(rank))
        if asked and asked.cpus and request.rank and not request.ranks and starts_ranks:
            asked = TaskCpus(tasks=1, of_job=asked.cpus)
    return request._replace(
        visible=seen,
        cpuset=None if cpuset is None else cpus_to_plan_on(environ, cpuset),
        nvidia_visible=environ.get(NVIDIA_VISIBLE) or None,
        task_cpus=asked,
        slice=_slice_of(environ),
    )


def _slice_of(environ: Environment) -> CpuSet | None:
    """Return the CPUs to which a launcher bound a rank. Raises InvalidRequestError."""
    try:
        return parse_list(environ[SLICE]) if SLICE in environ else None
    except ValueError as error:
        raise InvalidRequestError(f"env: {SLICE}: {error}") from None


def _bound_by(environ: Environment) -> str | None:
    """Return the option by which the user bound a task of a Slurm step; None: by none.

    Slurm writes the masks that it chooses with 0x, a user's own without.
    """
    if "SLURM_STEP_ID" not in environ:
        return None
    kind = environ.get("SLURM_CPU_BIND_TYPE", "")
    is_own_list = kind.startswith("mask_cpu") and _has_slurm_masks(environ)
    if kind.startswith("none"):
        return (
            "--cpu-bind=none, of the user or the site, leaves its CPUs alone; without it each task "
            "keeps the CPUs that Slurm chose, and affinityd exchanges far ones"
        )
    if kind.startswith(("rank", "map_", "mask_")) and not is_own_list:
        option = one_line(kind.partition(":")[0][:MOST_SHOWN])
        return f"its CPUs are bound by --cpu-bind={option}, or by the CpuBind= of the site"
    # Its pages would stay where Slurm bound them.
    memory = environ.get("SLURM_MEM_BIND_TYPE") or "none"
    if not memory.removeprefix("quiet,").startswith("none"):
        return f"its memory is bound by --mem-bind={one_line(memory[:MOST_SHOWN])}"
    return None


def _has_slurm_masks(environ: Environment) -> bool:
    """Return whether Slurm chose the masks of the tasks of a step."""
    return environ.get("SLURM_CPU_BIND_LIST", "").startswith("0x")


def _slurm_masks(environ: Environment) -> tuple[CpuSet, ...]:
    """Return the masks that Slurm chose for the tasks of a step; (): it chose none.

    Raises InvalidRequestError.
    """
    if not _has_slurm_masks(environ):
        return ()
    try:
        return tuple(parse_mask(mask) for mask in environ["SLURM_CPU_BIND_LIST"].split(","))
    except ValueError as error:
        raise InvalidRequestError(f"env: SLURM_CPU_BIND_LIST: {error}") from None


def _read_cpus(environ: Environment, name: str) -> CpuSet:
    """Return the CPUs in a variable; empty where it has none, or is malformed."""
    try:
        return parse_list(environ.get(name, ""))
    except ValueError:
        return frozenset()


def _of_slurm_task(
    request: Request, rank: Rank, tasks: int, environ: Environment, mask: CpuSet | None
) -> Request:
    """Return the request of a task of srun, whose own facts its plan follows from."""
    request = _granted_job(request._replace(job=request.job or _gpus_of_job(environ)), environ)
    gpu_bind = environ.get("SLURM_TRES_BIND", "").removeprefix("gres/gpu:")
    task = SlurmTask(
        number=rank.number,
        tasks=tasks,
        step_gpus=number(environ.get("SLURM_GPUS_ON_NODE")),
        masks=_slurm_masks(environ),
        mask=mask,
        pinned=_read_cpus(environ, CPULIST),
        allowed=_read_cpus(environ, ALLOWED),
        binds_gpus=gpu_bind.removeprefix("verbose,") not in {"", "none", "verbose"},
    )
    return request._replace(slurm=task)


def _granted_job(request: Request, environ: Environment) -> Request:
    """Return a request granted the job's GPUs if its task may open more than its own.

    Such a task is not bound, and the node's other devices are open to it.
    """
    of_step = number(environ.get("SLURM_GPUS_ON_NODE"))
    files = (request.granted or "").count(",") + 1
    if request.job is None or request.visible is not None or of_step in {None, files}:
        return request
    return request._replace(granted=",".join(request.job))


def _kept_apart(request: Request, rank: Rank, environ: Environment) -> Request:
    """Return the request of a rank with a GPU of its own, apart from its siblings' cores.

    By the job's GPUs, if known; else by each GPU's own block of cores. With more ranks than GPUs,
    scripts deal the GPUs out in turn.
    """
    job = request.job or _gpus_of_job(environ)
    gpus = (len(job) if job else number(environ.get("SLURM_GPUS_ON_NODE"))) or rank.size or 1
    sharing = -(-(rank.size or 1) // gpus)
    if sharing > 1:
        job = None
        request = request._replace(ranks=sharing, rank=(rank.number // gpus,))
    if job is None and request.options.share == "auto":
        request = request._replace(options=replace(request.options, share="node"))
    return request._replace(job=job)


def _has_own_gpus(request: Request, environ: Environment) -> bool:
    """Return whether the process sees a GPU that its siblings do not, which keeps them apart.

    It is a single one, unless the container has no other: that is the siblings', too. A process
    whose parent has the same variable states its rank (affinityd.client.apply).
    """
    options = request.options
    if request.visible is None or MODES[options.mode].everywhere or options.share == "requested":
        return False
    container = request.nvidia_visible or request.granted
    in_slurm = SLURM_JOB in environ
    is_only_one = not in_slurm and container not in (None, "all") and "," not in (container or "")
    return gpus_in(request.visible) == 1 and not is_only_one


def _is_alone(rank: Rank) -> bool:
    """Return whether a lone task has all the GPUs that it sees: a launcher, DataParallel, vLLM.

    torchrun's worker has its GPU from LOCAL_RANK, even if there is only one worker.
    """
    return rank.size == 1 and rank.variable not in {"LOCAL_RANK", CHOSEN_RANK}


def _gpus_of_job(environ: Environment) -> tuple[str, ...] | None:
    """Return the GPUs of the job on this node, in its own numbering, where they are known.

    A site sets AFFINITYD_JOB_GPUS. Slurm's variable is right only in the batch script: the steps
    inherit it from there, also on other nodes.
    """
    in_script = environ.get("SLURM_JOB_GPUS") if "SLURM_STEP_ID" not in environ else None
    gpus = environ.get(JOB_GPUS) or in_script
    return tuple(gpus.split(",")) if gpus else None


def asked_cpus(environ: Environment, ranks: int | None = None) -> TaskCpus | None:
    """Return how many CPUs a process's task asked for; None: unknown.

    `ranks` divide its CPUs; None: as many as its launcher started. AFFINITYD_CPUS says it; else
    under Slurm SLURM_CPUS_PER_TASK, which is set where -c was given; a batch script asked for that
    of all its tasks. Else it is its part of its tasks' CPUs. In a pod it is a part of
    AFFINITYD_JOB_CPUS, the container's CPU request. Elsewhere the CPUs that it may use, which
    commands send as AFFINITYD_ALLOWED, are its allotment. Raises InvalidRequestError for an
    AFFINITYD_CPUS that is neither none nor a number.
    """
    request = number(environ.get(JOB_CPUS))
    in_slurm = SLURM_JOB in environ
    of_job = request
    if in_slurm and not of_job:  # in a batch script there is a list like 8(x2), by node
        by_node = environ.get("SLURM_JOB_CPUS_PER_NODE", "")
        alike = None if "," in by_node else by_node.partition("(")[0]
        of_job = number(environ.get("SLURM_CPUS_ON_NODE") or alike)
    if stated := environ.get(CPUS):
        each = number(stated)
        if not each and stated != "none":
            raise InvalidRequestError(f"{CPUS}: {quote(stated)} is neither none nor a number")
        return TaskCpus(cpus=each, of_job=of_job) if each else None
    rank = local_rank(environ)
    tasks = ranks or (rank and rank.size) or 1
    by_slurm = not request and in_slurm and (rank is None or rank.variable == SLURM_TASK)
    if by_slurm and (each := number(environ.get("SLURM_CPUS_PER_TASK"))):
        step = number(environ.get("SLURM_STEP_ID"))
        if step is None or step >= SLURM_SPECIAL_STEP:  # a script has the CPUs of all its tasks
            each *= number(environ.get("SLURM_NTASKS")) or 1
        return TaskCpus(cpus=each, of_job=of_job)
    if request or in_slurm:
        return TaskCpus(tasks=tasks, of_job=of_job)
    return TaskCpus(tasks=tasks, is_allotment=True) if environ.get(ALLOWED) else None
