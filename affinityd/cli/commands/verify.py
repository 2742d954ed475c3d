"""`affinityd verify`: whether a process is where its GPUs are."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from affinityd.audit.verify import RunningProcess, Verification, verified, with_one_remedy
from affinityd.cli import plan_options, target
from affinityd.cli.console import give_up_stdout, say
from affinityd.cli.parser import Parser, add_format
from affinityd.cli.render import verify
from affinityd.cpuset import several
from affinityd.errors import AffinityError, TargetError
from affinityd.linux import memory_policy
from affinityd.linux.processes import descendants, threads
from affinityd.linux.procstat import Stat
from affinityd.request.formats import Reply
from affinityd.text import one_line
from affinityd.topology.nearness import Vicinity


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "pid", metavar="PID", type=target.process_id, nargs="?", help="default: the caller itself"
    )
    parser.add_argument(
        "--resident",
        action="store_true",
        help="also where its memory lies; the process waits while the kernel walks its pages",
    )
    add_format(parser, "table")
    plan_options.add_options(parser, "the GPUs", plan_options.DEVICES)


def run(arguments: argparse.Namespace) -> int:
    """Print where the process is; 0: near its GPUs, or not known; 1: not all; 2: not judged."""
    try:
        return _judge(arguments)
    except AffinityError as error:
        say(f"affinityd verify: {error}")
        return 2


def _judge(arguments: argparse.Namespace) -> int:
    process = target.living(arguments.pid or os.getpid())
    # What is near does not hang on how cores would be divided: no site's choice is asked for.
    planner = target.ProcessPlanner(plan_options.given(arguments), divides=False)
    options = plan_options.devices(arguments)
    judged = list(_verifications(process, planner, options, resident=arguments.resident))
    found = with_one_remedy(judged, options)
    if doubt := planner.doubt(process):
        say(f"affinityd verify: {doubt}")
    try:
        _print(planner, found, as_json=arguments.format == "json")
    except BrokenPipeError:  # the reader has seen enough; what was found is found
        give_up_stdout()
    return 1 if any(finding.mismatches for finding in found) else 0


def _print(planner: target.ProcessPlanner, found: Sequence[Verification], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(verify.document(planner.topology, found), indent=1), flush=True)
    else:
        print("\n".join(map(one_line, verify.table(found))), flush=True)


def _verifications(
    process: Stat, planner: target.ProcessPlanner, options: str, *, resident: bool
) -> Iterator[Verification]:
    """Yield the judgement of the process, then of its descendants.

    Each is judged by its own GPU, as a launcher's ranks have them; one that has none works for
    the process. Raises AffinityError where there is no plan for the process itself.
    """

    def judged(stat: Stat, reply: Reply, found: RunningProcess) -> Verification:
        return verified(planner.topology, reply.ranks, planner.cpuset(stat), found, options)

    found = _running(process, resident=resident)
    plan = planner.plan(process)
    if found is None:
        raise TargetError(f"{target.shown(process)} has ended meanwhile")
    first = judged(process, plan, found)
    if not options and planner.context(process).visible is None:
        first = replace(first, notes=(*first.notes, *_unnamed(first.near)))
    yield first
    for child in descendants(process.number):
        found = _running(child, resident=resident)
        if found is not None:
            yield judged(child, planner.plan_or_none(child) or plan, found)


def _unnamed(near: Vicinity) -> Iterator[str]:
    """Yield that a process may use fewer GPUs than it was judged by, where that matters."""
    if len(near.nodes) > 1:
        gpus = several("GPU", (gpu.index for gpu in near.gpus))
        yield (
            f"its environment names none of {gpus}, and near is what is near any of them: "
            "affinityd audit asks the driver which one it uses; or name it, --gpus N"
        )


def _running(process: Stat, *, resident: bool) -> RunningProcess | None:
    """Return what is found of a process; None where it has ended."""
    pid = process.number
    is_self = pid == os.getpid()
    policy = memory_policy.own_policy() if is_self else memory_policy.policy_of(pid)
    its_threads = tuple(threads(pid))
    if not its_threads:
        return None
    its_memory = _resident(process) if resident else None
    return RunningProcess(pid, process.name, its_threads, policy, its_memory, is_self)


def _resident(process: Stat) -> dict[int, int] | None:
    try:
        return memory_policy.resident_bytes(process.number)
    except OSError as error:
        say(f"affinityd verify: the memory of {target.shown(process)}: {error.strerror}")
        return None
