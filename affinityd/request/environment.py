"""The plan requests that follow from a process's environment: its GPUs and CPUs. Pure.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; ROCm "GPU isolation techniques";
srun(1), sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; slurm.conf(5), "TaskProlog".
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import REFUSALS, AffinityError, NoSuchGpuError
from affinityd.planner import BY_RANK
from affinityd.request.launchers import (
    SLURM_TASK,
    Rank,
    cpus_of_job,
    local_rank,
    number,
    with_asked_cpus,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import TypeVar

    from affinityd.request.launchers import Environment

    A = TypeVar("A")
    A_Request = TypeVar("A_Request")
    Question = Mapping[str, str]  #: a plan request: parameters by name

CUDA, ASCEND = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"
ROCR, HIP = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"

#: Each vendor's visible-device variables. ROCR's filters first; HIP's indexes the rest.
VISIBLE = {"nvidia": (CUDA,), "amd": (ROCR, HIP), "huawei": (ASCEND,)}
BY_VALUE = {CUDA, ASCEND}  #: given by their values alone
CHOSEN_RANK = "--rank"  #: where a rank comes from that no launcher gave
#: How a refusal begins of which the next question may know better.
RETRIED = ("job: ", "rank: ")


def process_questions(
    given: Mapping[str, str],
    environ: Environment,
    cpus: CpuSet | None,
    parent: Environment | None = None,
    vendors: Collection[str] = (),
    *,
    leaves_slice: bool = False,
) -> Iterator[Question]:
    """Yield the plan requests of a process, the next for when the one before is refused.

    `given` are parameters that were chosen, or that a prolog noted; `cpus` are the CPUs to plan on,
    None: as the caller's own are; `parent` is the environment of the process's parent, None where
    it cannot be read; `vendors` have a driver here. `leaves_slice`: a task of Slurm
    may be planned on the CPUs of all tasks of its step.
    """
    facts = {} if cpus is None else {"cpuset": format_list(cpus)}
    own = visible(environ, vendors)
    if own is not None:
        facts["visible"] = own
    inherited = None if parent is None else visible(parent, vendors)
    given = with_asked_cpus(given, environ)
    question = {"mode": default_mode(given), **facts, **given}
    job = question.pop("job", None)
    for way in _ways(question, environ, inherited, job, leaves_slice=leaves_slice):
        yield {**way, **question, **_devices_of_job(way, question)}


def default_mode(given: Mapping[str, str]) -> str:
    """Return the mode of a process where none is given, with the other parameters that are."""
    return "all" if "scope" in given else "node"  # node is all of the node, for any scope


def first_answer(questions: Iterable[A_Request], ask: Callable[[A_Request], A]) -> A:
    """Return the answer to the first request, or to the next if that may be better.

    Raises the exceptions of `ask`.
    """
    refusal: AffinityError = NoSuchGpuError("nothing was asked for")
    for question in questions:
        try:
            return ask(question)
        except REFUSALS as error:  # noqa: PERF203 - hardly ever more than one
            refusal = error
            if not str(error).startswith(RETRIED):
                break
    raise refusal


def visible(environ: Environment, vendors: Collection[str] = ()) -> str | None:
    """Return the request's `visible`: the values of these vendors' variables; (): of any.

    HIP reads CUDA's variable, too; Slurm gives both vendors' the same value, which counts once.
    """
    for names in [VISIBLE[vendor] for vendor in VISIBLE if vendor in vendors or not vendors]:
        said = {name: environ[name] for name in names if name in environ}
        if HIP in names and vendors and not said.get(HIP) and said.get(ROCR) != environ.get(CUDA):
            said[HIP] = environ.get(CUDA, "")
        if not said.get(HIP, "all"):  # it takes an empty one for none that is set
            del said[HIP]
        if said:
            return ";".join(
                text if name in BY_VALUE else f"{name}={text}" for name, text in said.items()
            )
    return None


def _ways(
    question: Question,
    environ: Environment,
    inherited: str | None,
    job: str | None,
    *,
    leaves_slice: bool,
) -> Iterator[dict[str, str]]:
    """Yield the ways to name the process's GPUs and the ranks that are its siblings.

    `inherited` are the visible devices of its parent; `job` are the GPUs that a prolog noted.
    """
    rank = local_rank(environ)
    chosen = number(question.get("rank"))
    if chosen is not None:
        rank = Rank(chosen, rank.size if rank else None, CHOSEN_RANK)
    is_said = bool({"gpus", "rank"} & question.keys())
    has_own = rank is not None and not is_said and _has_own_gpus(rank, question, environ, inherited)
    if rank and rank.size and rank.size > 1 and rank.variable == SLURM_TASK and not is_said:
        facts = _task_of_slurm(rank, environ, question["visible"] if has_own else None)
        if not leaves_slice and "closest" not in facts.get("gpu_bind", ""):
            facts.pop("cpu_bind", None)
        if job := job or _gpus_of_job(environ):
            yield {**facts, "job": job}
        yield {**facts, "share": "node"} if has_own and not _goes_by_rank(question) else facts
        return
    if job:
        yield {"job": job, **_of_slurm(environ)}
    if rank is None or _is_alone(rank):
        yield {}
    elif has_own and not _goes_by_rank(question):
        yield from _kept_apart(rank, environ)
    elif rank.size is not None:
        yield {"ranks": f"{rank.size}", "rank": f"{rank.number}"}
    else:  # as many as GPUs; a rank beyond those shares one with another
        yield {"rank": f"{rank.number}"}
        yield {"rank": f"{rank.number}", "ranks": f"{rank.number + 1}"}


def _task_of_slurm(rank: Rank, environ: Environment, own: str | None) -> dict[str, str]:
    """Return Slurm's variables of one of several tasks: how each was given GPUs and CPUs.

    `own` are its visible devices if they are not all of the step's. If Slurm does not tell the
    owners of the others, they are the next tasks', or neighbors share one (--ntasks-per-gpu).
    """
    facts = {"ranks": f"{rank.size}", "rank": f"{rank.number}", **_of_slurm(environ)}
    if bind := environ.get("SLURMD_TRES_BIND"):
        facts["gpu_bind"] = bind
    elif own is not None:
        tasks, seen = rank.size or 1, _count(own)
        gpus = int(facts.get("step_gpus", tasks))
        neighbours = -(-tasks // gpus)
        is_enough = seen * tasks <= gpus
        facts["gpu_bind"] = f"gpu:per_task:{seen}" if is_enough else f"gpu:single:{neighbours}"
    masks = environ.get("SLURM_CPU_BIND_LIST", "")
    if masks.startswith("0x"):  # masks that a user chose have none
        facts["cpu_bind"] = masks
    return facts


def _of_slurm(environ: Environment) -> dict[str, str]:
    """Return how many GPUs the step has on this node, and how many CPUs the job, if known."""
    numbers = {
        "step_gpus": number(environ.get("SLURM_GPUS_ON_NODE")),
        "job_cpus": cpus_of_job(environ),
    }
    return {name: f"{found}" for name, found in numbers.items() if found}


def _devices_of_job(way: Question, question: Question) -> dict[str, str]:
    """Return the job's GPUs as those of a task that may open more than its own.

    Such a task is not bound, and the node's other devices are open to it.
    """
    files = question.get("granted", "").count(",") + 1
    is_bound = "visible" in question or way.get("step_gpus") in {None, f"{files}"}
    return {} if is_bound or "job" not in way else {"granted": way["job"]}


def _kept_apart(rank: Rank, environ: Environment) -> Iterator[dict[str, str]]:
    """Yield the ways to keep a rank with a GPU of its own from its siblings' cores.

    By the job's GPUs, if known; else by each GPU's own block of cores. With more ranks than GPUs,
    scripts deal the GPUs out in turn.
    """
    job = _gpus_of_job(environ)
    known = job.count(",") + 1 if job else number(environ.get("SLURM_GPUS_ON_NODE"))
    gpus = known or rank.size or 1
    sharing = -(-(rank.size or 1) // gpus)
    if sharing > 1:
        yield {"ranks": f"{sharing}", "rank": f"{rank.number // gpus}", "share": "node"}
        return
    if job:
        yield {"job": job}
    yield {"share": "node"}


def _goes_by_rank(question: Question) -> bool:
    """Return whether GPUs have no blocks of cores by which siblings could be told apart."""
    is_mode = question["mode"].replace("-", "_") in BY_RANK
    return is_mode or question.get("share") == "requested"


def _is_alone(rank: Rank) -> bool:
    """Return whether a lone task has all the GPUs that it sees: a launcher, DataParallel, vLLM.

    torchrun's worker has its GPU from LOCAL_RANK, even if there is only one worker.
    """
    return rank.size == 1 and rank.variable not in {"LOCAL_RANK", CHOSEN_RANK}


def _has_own_gpus(
    rank: Rank, question: Question, environ: Environment, inherited: str | None
) -> bool:
    """Return whether the process sees GPUs that its siblings do not.

    Slurm says how many the step has on the node. Elsewhere it is a single one, unless the parent
    has the same, or the container has no other: these are the siblings', too. A task of Slurm has a
    container of devices to itself.
    """
    own = question.get("visible")
    if own is None:
        return False
    of_step = number(environ.get("SLURM_GPUS_ON_NODE"))
    if rank.variable == SLURM_TASK and of_step:
        return _count(own) < of_step
    container = question.get("nvidia_visible") or question.get("granted")
    in_slurm = "SLURM_JOB_ID" in environ
    is_only_one = not in_slurm and container not in (None, "all") and "," not in (container or "")
    return _count(own) == 1 and inherited != own and not is_only_one


def _count(value: str) -> int:
    """Return how many GPUs a value of `visible` names; of ROCm's variables, the last one counts."""
    return len(value.rpartition("=")[2].split(","))


def _gpus_of_job(environ: Environment) -> str | None:
    """Return the GPUs of the job on this node, in its own numbering, where they are known.

    A site sets AFFINITYD_JOB_GPUS. Slurm's variable is right only in the batch script: the steps
    inherit it from there, also on other nodes.
    """
    slurm = environ.get("SLURM_JOB_GPUS") if "SLURM_STEP_ID" not in environ else None
    return environ.get("AFFINITYD_JOB_GPUS") or slurm
