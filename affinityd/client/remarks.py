"""Sentences for a person about a process's plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from affinityd.client.process import ProcessContext
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.request import environment
from affinityd.request.environment import Rank
from affinityd.request.process_plan import REPLAYED_MACHINE, ProcessPlan
from affinityd.text import count

#: Remarks on a plan's warnings. Other warnings follow from the request, or are reported anyway.
REMARKS = {
    "visible_cut": (
        "not all of the visible devices are here, and the driver ends the list before the first "
        "missing one"
    ),
    "slow_cores": "all cores of this rank are of a slower kind than others that it may use",
    "share_unavailable": "too few cores for a block for each GPU: only this job's GPUs divide them",
    "ambiguous_index": "which GPU an index means is not certain here: name the GPU by its UUID",
}


def summary(
    plan: ProcessPlan, cpus: CpuSet, process: ProcessContext, chosen: Mapping[str, str]
) -> str:
    """Describe the place of a process in a line: its rank, its GPUs, their nodes, its CPUs."""
    rank = process.rank
    if "rank" in chosen:
        task = f"rank {chosen['rank']}"
    elif rank is None:
        task = "no rank"
    else:
        size = "" if rank.size is None else f" of {rank.size}"
        task = f"rank {rank.number}{size} ({rank.variable})"
    gpus = several("GPU", plan.gpus) if plan.gpus else "GPU unknown"
    nodes = several("node", plan.nodes) if plan.nodes else "node unknown"
    place = f"{gpus}, {nodes}, {several('CPU', cpus)}"
    return f"{task}: {place} ({plan.locality}, planned from {plan.source})"


def remarks(
    plan: ProcessPlan,
    cpus: CpuSet,
    process: ProcessContext,
    chosen: Mapping[str, str],
    *,
    starts_ranks: bool = False,
) -> Iterator[str]:
    """Yield what may surprise the user of a process that was pinned to these CPUs."""
    rank = process.rank
    is_alone = rank is None or environment.is_alone(process.environ or {}, rank)
    # A process that named its GPUs knows them, and each rank would repeat the line.
    sees_several = len(plan.gpus) > 1 and len(plan.nodes) > 1 and "gpus" not in chosen
    if is_alone and sees_several and not starts_ranks:
        gpus, nodes = several("GPU", plan.gpus), several("node", plan.nodes)
        yield (
            f"this process sees {gpus} of {nodes} and has the CPUs near any of them; if it uses "
            "only one GPU, name it: --gpus N, in Python bind(gpus=N); if it starts ranks, put "
            "affinityd exec before each rank's command"
        )
    yield from _few_cpus(plan, process)
    if plan.near is not None:  # far CPUs were added
        are = "is" if len(plan.near) == 1 else "are"
        allowed = count(len(plan.allowed), "allowed CPU")
        yield (
            f"{len(plan.near)} of {allowed} {are} near the GPU, fewer than were asked for: the "
            "nearest others were added (AFFINITYD_CPUS=none leaves them out)"
        )
    if plan.replayed:
        yield REPLAYED_MACHINE
    if plan.trouble is not None:
        yield f"{plan.trouble}; planned from {plan.source}"
    asked = format_list(plan.cpus)
    if plan.locality == "remote" and rank is not None and process.is_bound(plan.allowed):
        yield (
            f"CPUs {asked} are not near the GPU: the launcher, or numactl or taskset in its "
            f"script, bound this rank; {unbinding(rank)} leaves the choice to affinityd"
        )
    elif plan.locality == "remote":
        yield f"CPUs {asked} are not near the GPU; allowed are {format_list(plan.allowed)}"
    if cpus != plan.cpus:
        yield f"CPUs {asked} were cut down to {format_list(cpus)}: the cpuset has no more"
    for code in plan.warning_codes:
        if code in REMARKS:
            yield REMARKS[code]


def _few_cpus(plan: ProcessPlan, process: ProcessContext) -> Iterator[str]:
    """Yield a line if a rank has one core, and its launcher could have given it more."""
    environ = process.environ or {}
    rank = process.rank
    given = len(plan.allowed)
    if rank is None or rank.size is None or plan.threads > 1:
        return
    has = count(given, "CPU")
    sharing = rank.size
    if rank.variable == environment.SLURM_TASK:
        masks = environ.get("SLURM_CPU_BIND_LIST", "").split(",")
        own = masks[rank.number % len(masks)]
        sharing = sum(masks[task % len(masks)] == own for task in range(rank.size)) if own else 1
        asked = environment.number(environ.get("SLURM_CPUS_PER_TASK")) or 0
        of_job = environment.job_cpus(environ) or 0
        if asked > given:
            yield f"srun gave this task {has}, and {asked} were asked for: give -c"
        elif not asked and of_job // rank.size >= 2 * given:
            yield f"srun gave this task {has} of {of_job}: give -c"
    elif process.is_bound(plan.allowed):
        sharing = 1
        of_launcher = len(process.launcher[0] or plan.allowed)
        if of_launcher // rank.size >= 2 * given:
            yield (
                f"the launcher bound this rank to {has} of {of_launcher}: {unbinding(rank)} gives "
                "it more"
            )
    if sharing > 1 and given == 1:
        cpu = format_list(plan.allowed)
        yield f"{sharing} ranks of this node have CPU {cpu} and no other: give each its own"


def unbinding(rank: Rank) -> str:
    """Return how to tell a rank's launcher not to bind it."""
    return environment.UNBINDING.get(rank.variable, "another launch")


def rebinding() -> Iterator[str]:
    """Yield a line for each variable of this process that undoes the pin."""
    binds_nothing = ("", "0", "false", "no", "none", "off", "disabled")
    for variable, switch in environment.REBINDS.items():
        value = os.environ.get(variable, "").lower()
        name, _, off = switch.partition("=")
        if value not in binds_nothing and os.environ.get(name, "").lower() != off:
            shown = f"{variable}={os.environ[variable]}"
            yield f"{shown} binds threads anew after this pin; to end that: {switch}"
