"""This process: what it knows of its task, and how it takes its place."""

from __future__ import annotations

import os

from affinityd.client.device_access import granted_gpus, vendors
from affinityd.config import switch
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.errors import ApplyError
from affinityd.linux.cpu_limit import own_cpu_limit
from affinityd.linux.environ import environment_of
from affinityd.linux.memory_policy import MemoryPolicy, set_policy
from affinityd.request import environment, environment_cpus
from affinityd.request.launchers import local_rank
from affinityd.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from affinityd.client.find_plan import ProcessPlan

UNPINNED = "AFFINITYD_UNPINNED"  #: tells a process why it was not pinned

#: What is told of a plan's warnings; the others' cause is the question itself, or is told anyway.
REMARKS = {
    "widened": (
        "fewer CPUs are near the GPU than were asked for: the nearest others were added "
        "(AFFINITYD_CPUS=none leaves them out)"
    ),
    "share_unavailable": "the node has fewer cores than its GPUs need: this job's GPUs share all",
    "ambiguous_index": (
        "this machine has GPUs of several models, which CUDA numbers fastest first: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    ),
}


class Applied:
    """What holds for this process, as read back.

    `cpus` is the calling thread's mask, `memory` its policy, None where none was asked for;
    `remarks` say what is not as it should be, a line each.
    """

    __slots__ = ("cpus", "memory", "remarks")

    def __init__(self, cpus: CpuSet, memory: MemoryPolicy | None, remarks: Sequence[str]) -> None:
        self.cpus = cpus
        self.memory = memory
        self.remarks = tuple(remarks)


def apply_place(
    found: ProcessPlan, policy: str | None, set_mask: Callable[[CpuSet], CpuSet]
) -> Applied:
    """Take a place, and tell children by the environment. `set_mask` returns what holds.

    Raises ApplyError where the kernel refuses all of them.
    """
    cpus = set_mask(found.cpus)
    held = None if policy is None else set_policy(policy, found.memory_nodes)
    os.environ.pop(UNPINNED, None)
    os.environ["AFFINITYD_CPULIST"] = format_list(cpus)
    os.environ["AFFINITYD_ALLOWED"] = format_list(found.allowed)
    os.environ["AFFINITYD_LOCALITY"] = found.locality
    return Applied(cpus, held, [*_remarks(found, cpus), *_refusals(held)])


def export_unpinned(reason: str) -> None:
    """Tell what this process starts why it is not pinned."""
    os.environ[UNPINNED] = one_line(reason)


def export_observed(found: ProcessPlan) -> None:
    """Leave this process where it is; where the switch is at observe, tell children its place."""
    if found.switch == switch.OBSERVE:
        cpus = format_list(found.cpus)
        export_unpinned(f"observe: would run on CPUs {cpus} ({found.locality})")


def questions(given: Mapping[str, str], chosen: str = switch.ON) -> list[environment.Question]:
    """Return the plan requests for this process, with the parameters that somebody chose.

    `chosen` is the switch, so far as it is known here.
    """
    devices = granted_gpus()
    mask = frozenset(os.sched_getaffinity(os.getpid()))
    facts = {} if devices is None else {"granted": devices}
    if chosen == switch.OBSERVE:
        facts["observe"] = format_list(mask)
    cpus = environment_cpus.cpus_to_plan_on(os.environ, mask)
    parent = environment_of(os.getppid())
    given = {**facts, **given}
    return list(environment.questions(given, _environ(), cpus, parent, vendors()))


def _environ() -> Mapping[str, str]:
    """Return the environment, and how many CPUs its container may use where nothing says that."""
    if {"SLURM_JOB_ID", environment_cpus.JOB_CPUS} & os.environ.keys():
        return os.environ
    limit = own_cpu_limit()
    return os.environ if limit is None else {**os.environ, environment_cpus.JOB_CPUS: f"{limit}"}


def set_own_mask(cpus: CpuSet) -> CpuSet:
    """Set the mask of the calling thread, and return what holds.

    That is what a program inherits that it executes. The kernel silently takes away what the cpuset
    does not allow, sched_setaffinity(2). Raises ApplyError where nothing would be left.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ApplyError(
            f"CPUs {format_list(cpus)} were refused: {error.strerror}; "
            "the cpuset may hold none of them"
        ) from None
    return frozenset(os.sched_getaffinity(0))


def gpus_far_apart(found: ProcessPlan, given: Mapping[str, str]) -> Iterator[str]:
    """Yield that a process without siblings has the CPUs near GPUs of several nodes.

    What it named itself it knows; each of several ranks would say it anew.
    """
    rank = local_rank(os.environ)
    is_alone = rank is None or rank.size == 1
    if is_alone and "gpus" not in given and len(found.gpus) > 1 and len(found.nodes) > 1:
        gpus, nodes = several("GPU", found.gpus), several("node", found.nodes)
        yield (
            f"this process sees {gpus} of {nodes} and has the CPUs near any of them; if it uses "
            "only one GPU, name it: --gpus N, in Python bind(gpus=N)"
        )


def summary(found: ProcessPlan, taken: Applied, given: Mapping[str, str]) -> str:
    """Return where this process is: its rank, its GPUs, their nodes, its CPUs."""
    rank = local_rank(os.environ)
    if "rank" in given:
        who = f"rank {given['rank']}"
    elif rank is None:
        who = "no rank"
    else:
        size = "" if rank.size is None else f" of {rank.size}"
        who = f"rank {rank.number}{size} ({rank.variable})"
    gpus = several("GPU", found.gpus) if found.gpus else "GPU unknown"
    nodes = several("node", found.nodes) if found.nodes else "node unknown"
    cpus = several("CPU", taken.cpus)
    return f"{who}: {gpus}, {nodes}, {cpus} ({found.locality}, planned from {found.source})"


def _remarks(found: ProcessPlan, cpus: CpuSet) -> Iterator[str]:
    if found.replayed is not None:
        yield found.replayed
    if found.trouble is not None:
        yield f"{found.trouble}; planned from {found.source}"
    asked, held = format_list(found.cpus), format_list(cpus)
    if found.locality == "remote":
        yield f"CPUs {asked} are not near the GPU; allowed are {format_list(found.allowed)}"
    if cpus != found.cpus:
        yield f"CPUs {asked} were cut down to {held}: the cpuset has no more"
    is_ordered = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    for code in found.warnings:
        if code in REMARKS and not (code == "ambiguous_index" and is_ordered):
            yield REMARKS[code]


def _refusals(held: MemoryPolicy | None) -> Iterator[str]:
    return (f"memory: {refusal}" for refusal in (held.refusals if held else ()))
