"""What a process's environment says of its GPUs and CPUs, as the plan requests that follow. Pure.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; ROCm "GPU isolation techniques";
srun(1), sbatch(1).
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import REFUSALS, AffinityError, NoSuchGpuError
from affinityd.planner.names import BY_RANK
from affinityd.request.environment_cpus import with_asked_cpus
from affinityd.request.launchers import Rank, local_rank, number

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as Python to start
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import TypeVar

    from affinityd.request.launchers import Environment
    from affinityd.request.slurm_binding import Slot

    A = TypeVar("A")
    A_Request = TypeVar("A_Request")
    Question = Mapping[str, str]  #: a plan request: parameters by name

HIP = "HIP_VISIBLE_DEVICES"

#: Each vendor's visible-device variables. ROCR's filters first, HIP's indexes what is left.
VISIBLE = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", HIP),
    "huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
CHOSEN_RANK = "--rank"  #: where a rank comes from that no launcher gave
BY_VALUE = {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}  #: given by their values alone


def process_questions(
    given: Mapping[str, str],
    environ: Environment,
    cpus: CpuSet | None,
    parent: Environment | None = None,
    vendors: Collection[str] = (),
) -> Iterator[Question]:
    """Yield the plan requests of a process: the next one where the one before is refused.

    `given` are parameters that were chosen; `cpus` is what to plan on, None: as the caller's own
    are; `parent` is the environment of the process's parent, None where it cannot be read;
    `vendors` are those whose drivers are here.
    """
    own = visible(environ, vendors)
    facts = {} if cpus is None else {"cpuset": format_list(cpus)}
    if own is not None:
        facts["visible"] = own
    inherited = None if parent is None else visible(parent, vendors)
    given = with_asked_cpus(given, environ)
    for ranks in _ranks(given, environ, own, inherited):
        yield {"mode": default_mode(given), **facts, **ranks, **given}


def default_mode(given: Mapping[str, str]) -> str:
    """Return the mode of a process where none is given, with the other parameters that are."""
    return "all" if "scope" in given else "node"  # node is all of the node, whatever the scope


def first_answer(
    questions: Iterable[A_Request],
    ask: Callable[[A_Request], A],
    is_retried: Callable[[AffinityError], bool] = lambda _: True,
) -> A:
    """Return the answer to the first question that is not refused.

    Raises the last refusal, and at once what `ask` raises besides refusals that are retried.
    """
    refusal: AffinityError = NoSuchGpuError("nothing was asked for")
    for question in questions:
        try:
            return ask(question)
        except REFUSALS as error:  # noqa: PERF203 - hardly ever more than one
            refusal = error
            if not is_retried(error):
                break
    raise refusal


def visible(environ: Environment, vendors: Collection[str] = ()) -> str | None:
    """Return the request's `visible`: what the variables of these vendors say; (): of any."""
    for names in [VISIBLE[vendor] for vendor in VISIBLE if vendor in vendors or not vendors]:
        said = {name: environ[name] for name in names if name in environ}
        if HIP in names and vendors and not said.get(HIP):  # HIP reads CUDA's variable, too
            said[HIP] = environ.get("CUDA_VISIBLE_DEVICES", "")
        if not said.get(HIP, "all"):  # and takes an empty one for none that is set
            del said[HIP]
        if said:
            return ";".join(
                text if name in BY_VALUE else f"{name}={text}" for name, text in said.items()
            )
    return None


def _ranks(
    given: Mapping[str, str], environ: Environment, own: str | None, inherited: str | None
) -> Iterator[dict[str, str]]:
    """Yield the ways to say which GPUs are the process's, and who its siblings are.

    `own` and `inherited` are the visible devices of the process and of its parent.
    """
    rank = local_rank(environ)
    chosen = number(given.get("rank"))
    if chosen is not None:
        rank = Rank(chosen, rank.size if rank else None, CHOSEN_RANK)
    if rank is None or "job" in given or _is_alone(rank):
        yield {}
    elif not {"gpus", "rank"} & given.keys() and _has_own_gpus(
        rank, given, environ, own, inherited
    ):
        yield from _kept_apart(rank, given, environ, own)
    elif rank.size is not None:
        yield {"ranks": f"{rank.size}", "rank": f"{rank.number}"}
    else:  # as many as GPUs; a rank beyond those shares one with another
        yield {"rank": f"{rank.number}"}
        yield {"rank": f"{rank.number}", "ranks": f"{rank.number + 1}"}


def _kept_apart(
    rank: Rank, given: Mapping[str, str], environ: Environment, own: str | None
) -> Iterator[dict[str, str]]:
    """Yield the ways to keep a rank with a GPU of its own from its siblings' cores.

    By the job's GPUs, where they are known; else by each GPU's own block of cores.
    """
    job = _gpus_of_job(environ)
    has_no_block = given.get("mode", "").replace("-", "_") in BY_RANK
    if rank.size and (has_no_block or given.get("share") == "requested"):
        yield {"ranks": f"{rank.size}", "rank": f"{rank.number}"}
        return
    place, sharing = _slurm_slot(rank, environ, own) or _guessed_slot(rank, environ, job)
    if sharing > 1:
        yield {"ranks": f"{sharing}", "rank": f"{place}", "share": "node"}
    elif job:
        yield {"job": job}
    yield {"share": "node"}


def _slurm_slot(rank: Rank, environ: Environment, own: str | None) -> Slot | None:
    """Return a task's slot on its GPUs as Slurm has it; None where it does not say."""
    bind = environ.get("SLURMD_TRES_BIND")
    if not bind or not rank.size or rank.variable != "SLURM_LOCALID":
        return None
    from affinityd.request.slurm_binding import gpu_slot  # noqa: PLC0415 - such tasks alone wait

    gpus = number(environ.get("SLURM_GPUS_ON_NODE")) or 0
    seen = gpus if own is None else _count(own)
    return gpu_slot(bind, task=rank.number, tasks=rank.size, gpus=gpus, seen=seen)


def _count(value: str) -> int:
    """Return how many GPUs a value of `visible` names; of ROCm's variables, the last one counts."""
    return len(value.rpartition("=")[2].split(","))


def _guessed_slot(rank: Rank, environ: Environment, job: str | None) -> Slot:
    """Return a rank's slot on its GPU, by how many GPUs there are for how many ranks.

    Where there are more ranks than GPUs, those of one GPU are neighbours under Slurm
    (--ntasks-per-gpu); scripts deal the GPUs out by turns.
    """
    gpus = len(job.split(",")) if job else number(environ.get("SLURM_GPUS_ON_NODE"))
    gpus = gpus or rank.size or 1
    sharing = -(-(rank.size or 1) // gpus)
    by_slurm = rank.variable == "SLURM_LOCALID"
    return (rank.number % sharing if by_slurm else rank.number // gpus), sharing


def _is_alone(rank: Rank) -> bool:
    """Return whether a lone task has all the GPUs that it sees: a launcher, DataParallel, vLLM.

    torchrun's worker is told its GPU by its LOCAL_RANK, however few they are.
    """
    return rank.size == 1 and rank.variable not in {"LOCAL_RANK", CHOSEN_RANK}


def _has_own_gpus(
    rank: Rank,
    given: Mapping[str, str],
    environ: Environment,
    own: str | None,
    inherited: str | None,
) -> bool:
    """Return whether the process sees GPUs that its siblings do not.

    Slurm says how it bound them, or how many GPUs the step has on the node. Elsewhere it is a
    single one, unless the parent has the same, or the container has no other: these are the
    siblings', too. A task of Slurm has a container of devices to itself.
    """
    if _slurm_slot(rank, environ, own) is not None:
        return True
    if own is None:
        return False
    of_step = number(environ.get("SLURM_GPUS_ON_NODE"))
    if rank.variable == "SLURM_LOCALID" and of_step is not None:
        return _count(own) < of_step
    container = given.get("nvidia_visible") or given.get("granted")
    in_slurm = "SLURM_JOB_ID" in environ
    is_only_one = not in_slurm and container not in (None, "all") and "," not in (container or "")
    return _count(own) == 1 and inherited != own and not is_only_one


def _gpus_of_job(environ: Environment) -> str | None:
    """Return the GPUs of the job on this node, in its own numbering, where they are known.

    AFFINITYD_JOB_GPUS is a site's to set. Slurm's own variable is right in the batch script alone:
    the steps inherit it from there, on other nodes, too.
    """
    slurm = environ.get("SLURM_JOB_GPUS") if "SLURM_STEP_ID" not in environ else None
    return environ.get("AFFINITYD_JOB_GPUS") or slurm
