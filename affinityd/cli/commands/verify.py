"""`affinityd verify`: checks whether a process runs near its GPUs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from affinityd.audit.gather import ProcessWalk, owner_of
from affinityd.audit.judge import Judge
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources.nics import far_nics, nic_use
from affinityd.audit.verify import Verification, by_plan, matches, with_remedy
from affinityd.cli import target
from affinityd.cli.console import TROUBLE, give_up_stdout, say
from affinityd.cli.parser import (
    DEVICE_OPTIONS,
    Parser,
    add_format,
    add_plan_options,
    device_options,
    plan_options,
)
from affinityd.cli.render.audit import verify_document, verify_table
from affinityd.cli.target import UsedGpus, gpus_of, used_gpus
from affinityd.client.bind import texts
from affinityd.errors import InvalidRequestError, TargetError
from affinityd.grouping import grouped
from affinityd.linux import memory_policy
from affinityd.linux.processes import ProcessTable, Stat
from affinityd.request.process_plan import REPLAYED_MACHINE
from affinityd.text import one_line


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.epilog = "exit status: 0: near; 1: a thread is not; 2: not known"
    parser.add_argument(
        "pid", metavar="PID", type=target.process_id, nargs="?", help="default: the caller itself"
    )
    parser.add_argument(
        "--resident",
        action="store_true",
        help="also a line on the memory of each process; even a little far memory is a finding",
    )
    add_format(parser, "table")
    add_plan_options(parser, "the GPUs", DEVICE_OPTIONS)
    parser.add_argument("--machine", help=argparse.SUPPRESS)  # refused, with a message


def run(arguments: argparse.Namespace) -> int:
    """Print where the process runs. Return 0: near its GPUs; 1: not all threads are; 2: unknown."""
    if arguments.machine is not None:
        raise InvalidRequestError(
            "--machine: verify judges processes of this machine; a demo's are shown by "
            "affinityd audit --machine dgx-a100-busy"
        )
    process = target.living(arguments.pid or os.getpid())
    chosen = plan_options(arguments)
    planner, judged = _judged(process, chosen, with_resident=arguments.resident)
    if planner.node.replayed:
        say(f"affinityd verify: {REPLAYED_MACHINE}")
    if doubt := planner.doubt(process):
        say(f"affinityd verify: {doubt}")
    try:
        if arguments.format == "json":
            print(json.dumps(verify_document(planner.node.topology, judged), indent=1), flush=True)
        else:
            print(
                "\n".join(map(one_line, verify_table(judged, all_memory=arguments.resident))),
                flush=True,
            )
    except BrokenPipeError:  # the reader has ended; the exit code still counts
        give_up_stdout()
    are_near = matches(judged)
    if are_near is None:
        return TROUBLE
    return 0 if are_near else 1


def verify(
    pid: int | None = None, *, resident: bool = False, **parameters: object
) -> list[Verification]:
    """Judge whether a process and its descendants run near their GPUs, as `affinityd verify`.

    `pid` None: this process. `resident`: little far memory is a mismatch, too. `parameters` are
    those of a plan that choose GPUs, like `gpus`. Raises AffinityError if there is no plan.
    """
    process = target.living(os.getpid() if pid is None else pid)
    return _judged(process, texts(parameters), with_resident=resident)[1]


def _judged(
    process: Stat, chosen: Mapping[str, str], *, with_resident: bool
) -> tuple[target.ProcessPlanner, list[Verification]]:
    # Nearness does not depend on how cores are divided, so a site's choices are not read.
    planner = target.ProcessPlanner(chosen, divides=False)
    options = device_options(chosen)
    used = used_gpus(process, planner, is_named=bool(options))
    judged = list(_verifications(process, planner, used))
    if with_resident:
        judged = [replace(verification, least=0) for verification in judged]
    families = [(judged, options)]
    if used.by_driver:  # the pin command of a remedy must name each process's GPUs
        by_holder = grouped(
            judged, lambda entry: entry.process.facts.holder or entry.process.facts.pid
        )
        families = []
        for family in by_holder.values():
            named = ",".join(gpu.pci_bus_id for gpu in family[0].near.gpus)
            families.append((family, f"--gpus {named} "))
    return planner, [*chain.from_iterable(with_remedy(family, gpus) for family, gpus in families)]


def _verifications(
    process: Stat, planner: target.ProcessPlanner, used: UsedGpus
) -> Iterator[Verification]:
    """Yield the judgment of the process, then of each descendant, each by its own GPUs."""
    holdings = []
    for pid, ranks in used.ranks.items():
        first, *beside = (gpu.key for gpu in gpus_of(ranks))
        holdings.append(Holding(pid, first, beside=tuple(beside)))
    judge = Judge(planner.node.topology)
    holders = GpuHolders(tuple(holdings))
    unlimited = float("inf")
    processes = list(ProcessWalk(holders, unlimited, ProcessTable(), family=unlimited))
    if not processes or processes[0].pid != process.number:
        raise TargetError(f"{target.shown(process)} has ended meanwhile")
    for facts in processes:
        is_self = facts.pid == os.getpid()
        with_cpuset = replace(facts, cpuset=facts.cpuset or planner.cpuset(process))
        judged = by_plan(judge, with_cpuset, used.ranks[facts.holder or facts.pid])
        (pid, placement) = (facts.pid, judged.process.placement)
        policy = memory_policy.own_policy() if is_self else memory_policy.policy_of(pid)
        yield replace(
            judged,
            far_nics=tuple(far_nics(planner.node.topology, judged.near.gpus, nic_use(facts.pid))),
            policy=policy,
            memory=HostMemory.of(pid, judged.near, placement, policy),
            is_self=is_self,
            doubt=used.doubts.get(facts.pid, ""),
            remark=used.remarks.get(facts.pid, ""),
            owner=owner_of(with_cpuset),
        )
