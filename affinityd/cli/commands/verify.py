"""`affinityd verify`: checks whether a process runs near its GPUs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from affinityd.audit.gather import ProcessWalk
from affinityd.audit.judge import Judge
from affinityd.audit.model import GpuHolders, Holding, ProcessFacts
from affinityd.audit.nic_use import NicJudge
from affinityd.audit.sources.rdma_files import nic_use
from affinityd.audit.verify import Verification, by_plan, with_remedy
from affinityd.cli import plan_options, target
from affinityd.cli.console import give_up_stdout, say
from affinityd.cli.parser import Parser, add_format
from affinityd.cli.render import verify
from affinityd.cli.render.audit_rows import process_name
from affinityd.cpuset import several
from affinityd.errors import TargetError
from affinityd.linux import memory_policy
from affinityd.linux.process_table import ProcessTable, descendants
from affinityd.linux.processes import Stat
from affinityd.request.reply import Reply
from affinityd.text import one_line

TROUBLE = 2  #: exit code of every error: 1 is an answer
#: A process may use fewer GPUs than it is judged by.
NOT_NAMED = (
    "its environment names none of {gpus}, so CPUs near any of them count as near: "
    "affinityd audit asks the driver which one it uses; or name it with --gpus N"
)


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "pid", metavar="PID", type=target.process_id, nargs="?", help="default: the caller itself"
    )
    parser.add_argument(
        "--resident",
        action="store_true",
        help=(
            "also the NUMA nodes of its memory; the process pauses while the kernel walks its pages"
        ),
    )
    add_format(parser, "table")
    plan_options.add_options(parser, "the GPUs", plan_options.DEVICES)


def run(arguments: argparse.Namespace) -> int:
    """Print where the process is; 0: near its GPUs, or not known; 1: not all; 2: not judged."""
    process = target.living(arguments.pid or os.getpid())
    # Nearness does not depend on how cores would be divided: no site's choice is read.
    planner = target.ProcessPlanner(plan_options.given(arguments), divides=False)
    options = plan_options.devices(arguments)
    first, *below = _verifications(process, planner, with_resident=arguments.resident)
    is_named = options or planner.context(process).visible is not None
    if not is_named and len(first.near.nodes) > 1:
        gpus = several("GPU", (gpu.index for gpu in first.near.gpus))
        first = replace(first, doubts=(NOT_NAMED.format(gpus=gpus),))
    found = with_remedy([first, *below], options)
    if doubt := planner.doubt(process):
        say(f"affinityd verify: {doubt}")
    try:
        if arguments.format == "json":
            print(json.dumps(verify.document(planner.topology, found), indent=1), flush=True)
        else:
            print("\n".join(map(one_line, verify.table(found))), flush=True)
    except BrokenPipeError:  # the reader has ended; the result counts all the same
        give_up_stdout()
    return 1 if any(it.mismatches for it in found) else 0


def _verifications(
    process: Stat, planner: target.ProcessPlanner, *, with_resident: bool
) -> Iterator[Verification]:
    """Yield the judgment of the process, then of its descendants.

    Each is judged by its own GPU, as a launcher's ranks have them; one that has none works for
    its parent. Raises AffinityError if there is no plan for the process itself.
    """
    plans = {process.number: planner.plan(process)}
    for child in descendants(process.number):
        if plan := planner.plan_or_none(child):
            plans[child.number] = plan
    holders = GpuHolders(tuple(_holding(pid, plan) for pid, plan in plans.items()))
    judge, unlimited = Judge(planner.topology), float("inf")
    nic_judge = NicJudge(planner.topology)
    found = list(ProcessWalk(holders, unlimited, ProcessTable(), family=unlimited))
    if not found or found[0].pid != process.number:
        raise TargetError(f"{target.shown(process)} has ended meanwhile")
    for facts in found:
        is_self = facts.pid == os.getpid()
        known = replace(facts, cpuset=facts.cpuset or planner.cpuset(process))
        judged = by_plan(judge, known, plans[facts.holder or facts.pid].ranks)
        use, gpus = nic_use(facts.pid), judged.near.gpus
        yield replace(
            judged,
            far_nics=tuple(nic_judge.findings(gpus, use)),
            nics=nic_judge.links(gpus, use.opened),
            policy=memory_policy.own_policy() if is_self else memory_policy.policy_of(facts.pid),
            resident=_resident(facts) if with_resident else None,
            is_self=is_self,
        )


def _holding(pid: int, plan: Reply) -> Holding:
    first, *beside = dict.fromkeys(rank.gpu.key for rank in plan.ranks)
    return Holding(pid, first, beside=tuple(beside))


def _resident(facts: ProcessFacts) -> Mapping[int, int] | None:
    try:
        return memory_policy.resident_bytes(facts.pid)
    except OSError as error:
        say(f"affinityd verify: the memory of {process_name(facts)}: {error.strerror}")
        return None
