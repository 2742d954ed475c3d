"""Applies a plan to this process: its questions, its mask and memory policy, its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from affinityd.client.process_context import ProcessContext
from affinityd.config import switch
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.errors import ApplyError
from affinityd.request import launchers
from affinityd.request.launchers import local_rank
from affinityd.text import one_line

if TYPE_CHECKING:
    from affinityd.client.find_plan import ProcessPlan
    from affinityd.linux.memory_policy import MemoryPolicy
    from affinityd.request.environment import Question

UNPINNED = "AFFINITYD_UNPINNED"  #: why a process was not pinned

#: Remarks on a plan's warnings; the others follow from the question, or are reported anyway.
REMARKS = {
    "widened": (
        "fewer CPUs are near the GPU than were asked for: the nearest others were added "
        "(AFFINITYD_CPUS=none leaves them out)"
    ),
    "share_unavailable": "too few cores for a block for each GPU: only this job's GPUs divide them",
    "ambiguous_index": (
        "this machine has GPUs of several models, which CUDA numbers fastest first: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    ),
}


def apply_plan(
    plan: ProcessPlan, policy: str | None
) -> tuple[CpuSet, MemoryPolicy | None, list[str]]:
    """Apply a plan to the calling thread, and to the environment of its children.

    Returns the result, as read back: its mask, its memory policy (None: none was requested),
    and the deviations, a line each. Raises ApplyError where the kernel refuses all of
    its CPUs.
    """
    cpus, memory, refusals = set_own_mask(plan.cpus), None, []
    if policy is not None:
        from affinityd.linux.memory_policy import set_policy  # noqa: PLC0415 - few ask for one

        memory = set_policy(policy, plan.memory_nodes)
        refusals = [f"memory: {refusal}" for refusal in memory.refusals]
    os.environ.pop(UNPINNED, None)
    os.environ["AFFINITYD_CPULIST"] = format_list(cpus)
    os.environ["AFFINITYD_ALLOWED"] = format_list(plan.allowed)
    os.environ["AFFINITYD_LOCALITY"] = plan.locality
    return cpus, memory, [*_remarks(plan, cpus), *refusals]


def export_unpinned(reason: str) -> None:
    """Tell children why this process is not pinned."""
    os.environ[UNPINNED] = one_line(reason)


def export_observed(plan: ProcessPlan) -> None:
    """Leave this process as it is; if the switch is observe, put its plan into the environment."""
    if plan.switch == switch.OBSERVE:
        cpus = format_list(plan.cpus)
        export_unpinned(f"observe: would run on CPUs {cpus} ({plan.locality})")


def own_questions(given: Mapping[str, str], chosen: str = switch.ON) -> list[Question]:
    """Return the plan requests for this process; `given` parameters override its own.

    `chosen` is the switch, as known here.
    """
    process = ProcessContext.of_self()
    mask = process.mask
    observed = {"observe": format_list(mask)} if chosen == switch.OBSERVE else {}
    cpus = launchers.cpus_to_plan_on(os.environ, mask)
    return process.questions({**observed, **given}, cpus)


def set_own_mask(cpus: CpuSet) -> CpuSet:
    """Set the mask of the calling thread, and return it as read back.

    A program that it executes inherits it. The kernel silently removes CPUs that the cpuset
    does not allow, sched_setaffinity(2). Raises ApplyError if none is left.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ApplyError(
            f"CPUs {format_list(cpus)} were refused: {error.strerror}; "
            "the cpuset may hold none of them"
        ) from None
    return frozenset(os.sched_getaffinity(0))


def gpus_far_apart(plan: ProcessPlan, given: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for a single process that has the CPUs near GPUs of several nodes.

    A process that named its GPUs knows them, and each rank would repeat it.
    """
    rank = local_rank(os.environ)
    is_alone = rank is None or rank.size == 1
    if is_alone and "gpus" not in given and len(plan.gpus) > 1 and len(plan.nodes) > 1:
        gpus, nodes = several("GPU", plan.gpus), several("node", plan.nodes)
        yield (
            f"this process sees {gpus} of {nodes} and has the CPUs near any of them; if it uses "
            "only one GPU, name it: --gpus N, in Python bind(gpus=N)"
        )


def summary(plan: ProcessPlan, cpus: CpuSet, given: Mapping[str, str]) -> str:
    """Return the place of this process in a line: its rank, its GPUs, their nodes, its CPUs."""
    rank = local_rank(os.environ)
    if "rank" in given:
        task = f"rank {given['rank']}"
    elif rank is None:
        task = "no rank"
    else:
        size = "" if rank.size is None else f" of {rank.size}"
        task = f"rank {rank.number}{size} ({rank.variable})"
    gpus = several("GPU", plan.gpus) if plan.gpus else "GPU unknown"
    nodes = several("node", plan.nodes) if plan.nodes else "node unknown"
    held = several("CPU", cpus)
    return f"{task}: {gpus}, {nodes}, {held} ({plan.locality}, planned from {plan.source})"


def _remarks(plan: ProcessPlan, cpus: CpuSet) -> Iterator[str]:
    if plan.replayed is not None:
        yield plan.replayed
    if plan.trouble is not None:
        yield f"{plan.trouble}; planned from {plan.source}"
    asked, held = format_list(plan.cpus), format_list(cpus)
    if plan.locality == "remote":
        yield f"CPUs {asked} are not near the GPU; allowed are {format_list(plan.allowed)}"
    if cpus != plan.cpus:
        yield f"CPUs {asked} were cut down to {held}: the cpuset has no more"
    is_ordered = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    for code in plan.warnings:
        if code in REMARKS and not (code == "ambiguous_index" and is_ordered):
            yield REMARKS[code]
