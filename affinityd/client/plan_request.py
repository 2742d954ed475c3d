"""What a process's environment says of its GPUs, as the plan requests that follow from it.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; ROCm "GPU isolation techniques";
srun(1), sbatch(1).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import REFUSALS, AffinityError, NoSuchGpuError
from affinityd.planner.names import BY_RANK
from affinityd.request.launchers import SLURM_SPECIAL_STEP, Environment, Rank, local_rank, number
from affinityd.request.slurm_binding import Slot, gpu_slot

Question = Mapping[str, str]  #: a plan request: parameters by name

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as Python to start
    from collections.abc import Callable
    from typing import TypeVar

    A = TypeVar("A")

HIP = "HIP_VISIBLE_DEVICES"

#: A vendor's device file, and its variables. ROCR's filters first, HIP's indexes what is left.
VISIBLE = (
    ("/dev/nvidiactl", ("CUDA_VISIBLE_DEVICES",)),
    ("/dev/kfd", ("ROCR_VISIBLE_DEVICES", HIP)),
    ("/dev/davinci_manager", ("ASCEND_RT_VISIBLE_DEVICES",)),
)
JOB_CPUS = "AFFINITYD_JOB_CPUS"  #: how many CPUs a container asked for, or may use
CHOSEN = "--rank"  #: who said the rank, where no launcher did
#: Parameters that say what is so without them.
UNSAID = {("share", "auto"), ("task_cpus", "none")}
BARE = {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}  #: given by their values alone


def questions(
    given: Mapping[str, str],
    environ: Environment,
    cpus: CpuSet,
    parent: Environment | None = None,
) -> Iterator[Question]:
    """Yield the plan requests of a process: the next one where the one before is refused.

    `given` are parameters that somebody chose; `cpus` is what to plan on; `parent` is the
    environment of the process's parent, None where it cannot be read.
    """
    found = {"cpuset": format_list(cpus), "visible": visible(environ)}
    facts = {name: text for name, text in found.items() if text is not None}
    given = with_asked_cpus(given, environ)
    for ranks in _ranks(given, environ, parent):
        yield {"mode": default_mode(given), **facts, **ranks, **given}


def default_mode(given: Mapping[str, str]) -> str:
    """Return the mode of a process where none is given, with the other parameters that are."""
    return "all" if "scope" in given else "node"  # node is all of the node, whatever the scope


def first_answer(questions: Iterable[Question], ask: Callable[[Question], A]) -> A:
    """Return the answer to the first question that is not refused.

    Raises the last refusal, and at once what `ask` raises besides refusals.
    """
    refusal: AffinityError = NoSuchGpuError("nothing was asked for")
    for question in questions:
        try:
            return ask(question)
        except REFUSALS as error:  # noqa: PERF203 - hardly ever more than one
            refusal = error
    raise refusal


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
    chosen = {name: text for name, text in given.items() if (name, text) not in UNSAID}
    return {**asked, **chosen}


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
    of_job = number(environ.get("SLURM_CPUS_ON_NODE"))
    facts = {"job_cpus": f"{of_job}"} if of_job else {}
    step = number(environ.get("SLURM_STEP_ID"))
    is_task = step is not None and step < SLURM_SPECIAL_STEP
    each = number(environ.get("SLURM_CPUS_PER_TASK"))
    by_slurm = rank is None or rank.variable == "SLURM_LOCALID"
    if each and by_slurm and not is_task:  # a script has what it asks for all of its tasks
        each *= number(environ.get("SLURM_NTASKS")) or 1
    return {**facts, "task_cpus": f"{each}" if each and by_slurm else part}


def visible(environ: Environment) -> str | None:
    """Return the request's `visible`: what the variables of this machine's vendor say."""
    here = [names for device, names in VISIBLE if os.path.exists(device)]  # noqa: PTH110
    for names in here or [names for _, names in VISIBLE]:
        said = {name: environ[name] for name in names if name in environ}
        if HIP in names and here and not said.get(HIP):  # HIP reads CUDA's variable, too
            said[HIP] = environ.get("CUDA_VISIBLE_DEVICES", "")
        if not said.get(HIP, "all"):  # and takes an empty one for none that is set
            del said[HIP]
        if said:
            return ";".join(
                text if name in BARE else f"{name}={text}" for name, text in said.items()
            )
    return None


def _ranks(
    given: Mapping[str, str], environ: Environment, parent: Environment | None
) -> Iterator[dict[str, str]]:
    """Yield the ways to say which GPUs are the process's, and who its siblings are."""
    rank = local_rank(environ)
    chosen = number(given.get("rank"))
    if chosen is not None:
        rank = Rank(chosen, rank.size if rank else None, CHOSEN)
    if rank is None or "job" in given or _is_alone(rank):
        yield {}
    elif not {"gpus", "rank"} & given.keys() and _has_its_own(rank, environ, parent):
        yield from _apart(rank, given, environ)
    elif rank.size is not None:
        yield {"ranks": f"{rank.size}", "rank": f"{rank.number}"}
    else:  # as many as GPUs; where it is beyond those, somebody shares one with it
        yield {"rank": f"{rank.number}"}
        yield {"rank": f"{rank.number}", "ranks": f"{rank.number + 1}"}


def _apart(rank: Rank, given: Mapping[str, str], environ: Environment) -> Iterator[dict[str, str]]:
    """Yield the ways to keep a rank with a GPU of its own from its siblings' cores.

    By the job's GPUs, where they are known; else by each GPU's own block of cores.
    """
    job = _gpus_of_job(environ)
    has_no_block = given.get("mode", "").replace("-", "_") in BY_RANK
    if rank.size and (has_no_block or given.get("share") == "requested"):
        yield {"ranks": f"{rank.size}", "rank": f"{rank.number}"}
        return
    place, sharing = _slurm_slot(rank, environ) or _guessed_slot(rank, environ, job)
    if sharing > 1:
        yield {"ranks": f"{sharing}", "rank": f"{place}", "share": "node"}
    elif job:
        yield {"job": job}
    yield {"share": "node"}


def _slurm_slot(rank: Rank, environ: Environment) -> Slot | None:
    """Return a task's slot on its GPUs as Slurm has it; None where it does not say."""
    bind = environ.get("SLURMD_TRES_BIND")
    if not bind or not rank.size or rank.variable != "SLURM_LOCALID":
        return None
    gpus = number(environ.get("SLURM_GPUS_ON_NODE")) or 0
    return gpu_slot(bind, task=rank.number, tasks=rank.size, gpus=gpus, seen=_count(environ, gpus))


def _count(environ: Environment, whole: int) -> int:
    """Return how many GPUs a process sees, of so many."""
    value = visible(environ)  # of ROCm's variables, the last one counts
    return whole if value is None else len(value.rpartition("=")[2].split(","))


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
    return rank.size == 1 and rank.variable not in {"LOCAL_RANK", CHOSEN}


def _has_its_own(rank: Rank, environ: Environment, parent: Environment | None) -> bool:
    """Return whether the process sees GPUs that its siblings do not.

    Slurm says how it bound them, or how many GPUs the step has on the node. Elsewhere it is a
    single one, unless the parent has the same: what was inherited is the siblings', too.
    """
    if _slurm_slot(rank, environ) is not None:
        return True
    value = visible(environ)
    if value is None:
        return False
    count = _count(environ, 0)
    whole = number(environ.get("SLURM_GPUS_ON_NODE"))
    if rank.variable == "SLURM_LOCALID" and whole is not None:
        return count < whole
    return count == 1 and (parent is None or visible(parent) != value)


def _gpus_of_job(environ: Environment) -> str | None:
    """Return the GPUs of the job on this node, in its own numbering, where they are known.

    AFFINITYD_JOB_GPUS is a site's to set. Slurm's own variable is right in the batch script alone:
    the steps inherit it from there, on other nodes, too.
    """
    slurm = environ.get("SLURM_JOB_GPUS") if "SLURM_STEP_ID" not in environ else None
    return environ.get("AFFINITYD_JOB_GPUS") or slurm
