"""`affinityd pin`: pins every thread of a running process near its GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator

from affinityd.cli import target
from affinityd.cli.console import flag, say
from affinityd.cli.parser import PLAN_OPTIONS, Parser, add_plan_options, plan_options
from affinityd.client.apply import UNKNOWN_PLACE
from affinityd.cpuset import CpuSet, format_list, parse_list, several
from affinityd.errors import ApplyError, InvalidRequestError
from affinityd.grouping import grouped
from affinityd.linux.cgroup import cpus_listed_in, mask_of
from affinityd.linux.pinning import (
    CHANGE,
    LEFT_ALONE,
    PINNED,
    REFUSED,
    PinResult,
    Target,
    ThreadResult,
    is_on_purpose,
    pin_threads,
)
from affinityd.linux.processes import Stat, descendants, stat_of
from affinityd.planner import RankPlan
from affinityd.text import count, one_line
from affinityd.topology.nearness import UNKNOWN

#: Returns a descendant's own CPUs, such as a rank's; None: it gets the CPUs of its parent.
OwnCpus = Callable[[Stat], CpuSet | None]


def pin_targets(
    process: Stat, cpus: CpuSet, own_cpus: OwnCpus | None = None, *, force: bool = False
) -> Callable[[], Iterator[Target]]:
    """Return a function that yields a process and, with `own_cpus`, its current descendants.

    A thread counts as pinned on purpose if its mask differs from the earlier mask of its process's
    main thread. All threads of a descendant count so if its main thread's mask differs from the
    process's. With `force` no thread is left alone.
    """
    before = mask_of(process.number) or frozenset()
    targets: dict[int, Target] = {}  # by pid; a target is as it was when first seen

    def target_of(stat: Stat, its_cpus: CpuSet | None) -> Target:
        known = targets.get(stat.number)
        if known is not None and known.start == stat.start:
            return known
        parent = targets.get(stat.parent)
        main = mask_of(stat.number)

        def rule(mask: CpuSet, masks_given: Collection[CpuSet]) -> str:
            if force or main is None:
                return CHANGE
            usual = {before, *masks_given}
            is_confined = is_on_purpose(main, usual, before)
            is_alone = is_on_purpose(mask, {main, *usual}, before)
            return LEFT_ALONE if is_confined or is_alone else CHANGE

        if not its_cpus:
            its_cpus = parent.cpus if parent else cpus
        targets[stat.number] = Target(stat.number, stat.start, its_cpus, rule)
        return targets[stat.number]

    def now() -> Iterator[Target]:
        """Yield the processes that exist now, parents before children."""
        stat = stat_of(process.number)
        if stat is None or stat.start != process.start:  # the pid belongs to another process by now
            return
        yield target_of(process, cpus)
        if own_cpus is not None:
            for child in descendants(process.number):
                yield target_of(child, own_cpus(child))

    return now


ISOLATED = "/sys/devices/system/cpu/isolated"
MAX_SHOWN_ERRORS = 10
MAX_SHOWN_THREADS = 5  #: most threads that a line names


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.epilog = "exit status: 0: the process is pinned; 1: not all of it; 2: bad command line"
    parser.add_argument("pid", metavar="PID", type=target.process_id)
    parser.add_argument(
        "--cpus", metavar="LIST", dest="listed", help="pin to these CPUs, without a plan"
    )
    parser.add_argument("--tree", action="store_true", help="also its descendants")
    parser.add_argument(
        "--force", action="store_true", help="also threads that were pinned elsewhere on purpose"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    # pin changes no environment, and has its own --cpus
    names = [name for name in PLAN_OPTIONS if name not in {"whose", "nics", "cpus"}]
    add_plan_options(parser, "the plan", names)


def run(arguments: argparse.Namespace) -> int:
    """Pin the process. Return 1 if a thread was refused or got fewer CPUs than planned, else 0."""
    process = target.living(arguments.pid)
    cpus, own_cpus = _cpus(arguments, process)
    own = own_cpus if arguments.tree else None
    isolated = cpus & cpus_listed_in(ISOLATED) - (mask_of(process.number) or frozenset())
    if isolated:
        say(
            f"affinityd pin: isolated (isolcpus=): {several('CPU', isolated)}; there "
            "a thread stays on the CPU where it starts; name other CPUs with --cpus LIST"
        )
    targets = pin_targets(process, cpus, own, force=arguments.force)
    pinned = pin_threads(targets, dry_run=arguments.dry_run)
    for line in _results(pinned, dry_run=arguments.dry_run):
        print(one_line(line))
    failures = list(_failures(pinned, process))
    for line in failures[:MAX_SHOWN_ERRORS]:
        say(f"affinityd pin: {line}")
    if len(failures) > MAX_SHOWN_ERRORS:
        say(f"affinityd pin: and {len(failures) - MAX_SHOWN_ERRORS} more")
    return 0 if pinned.is_complete else 1


def _cpus(arguments: argparse.Namespace, process: Stat) -> tuple[CpuSet, OwnCpus]:
    """Return the CPUs of the process, and a function that returns a descendant's CPUs.

    A descendant gets the CPUs near its own GPU, like a rank of a launcher; without a GPU it works
    for its parent. GPUs are found as by `affinityd verify`. Raises ApplyError if that fails.
    """
    if arguments.listed is not None:
        return _listed(arguments), lambda _child: None
    options = plan_options(arguments)
    planner = target.ProcessPlanner(options, divides=True)
    used = target.used_gpus(process, planner, is_named="gpus" in options)
    reply = used.reply
    if reply.locality == UNKNOWN:
        raise ApplyError(f"{UNKNOWN_PLACE}; name the CPUs: --cpus LIST")
    concerned = used.doubts if arguments.tree else used.doubts.keys() & {process.number}
    for pid in sorted(concerned):
        raise ApplyError(f"process {pid}: {used.doubts[pid]}")

    def own_cpus(child: Stat) -> CpuSet | None:
        return _cpus_of(used.ranks.get(child.number, ()))

    doubt = planner.doubt(process)
    if doubt:
        say(f"affinityd pin: {doubt}")
    for pid, remark in used.remarks.items():
        say(f"affinityd pin: process {pid}: {remark}")
    for warning in reply.warnings:
        # Other warnings are about options that this command sets itself.
        if warning.code not in {"shared_gpu", "parameter_ignored"}:
            say(f"affinityd: {warning.code}: {warning.message}")
    return own_cpus(process) or reply.cpus, own_cpus


def _cpus_of(ranks: Iterable[RankPlan]) -> CpuSet | None:
    """Return the CPUs of ranks; None if there is no rank, or the CPUs of a rank are unknown."""
    cpus: CpuSet = frozenset()
    for rank in ranks:
        if rank.locality == UNKNOWN:
            return None
        cpus |= rank.cpus
    return cpus or None


def _listed(arguments: argparse.Namespace) -> CpuSet:
    options = list(plan_options(arguments))
    if options:
        raise InvalidRequestError(f"--cpus needs no plan; leave out {flag(options[0])}")
    try:
        cpus = parse_list(arguments.listed)
    except ValueError as error:
        raise InvalidRequestError(f"--cpus: {error}") from None
    if not cpus:
        raise InvalidRequestError("--cpus is empty; write it like 0-3,8")
    return cpus


def _groups(threads: tuple[ThreadResult, ...]) -> Iterable[list[ThreadResult]]:
    """Group threads by process and result; threads that are left alone may differ in masks."""

    def result(thread: ThreadResult) -> object:
        held = thread.held
        is_set = thread.outcome == PINNED and thread.was_set
        return thread.pid, thread.outcome == LEFT_ALONE or held, thread.reason, is_set

    return grouped(threads, result).values()


def _results(pinned: PinResult, *, dry_run: bool) -> Iterator[str]:
    would = "would be " if dry_run else ""
    for group in _groups(pinned.having(PINNED)):
        happened = "already on CPUs"
        if group[0].was_set or dry_run:
            happened = f"{would}pinned to CPUs"
        yield f"{_label(group)} {happened} {format_list(group[0].held)}"
    for group in _groups(pinned.having(LEFT_ALONE)):
        held: CpuSet = frozenset()
        for thread in group:
            held |= thread.held
        tids = ", ".join(str(thread.tid) for thread in group[:MAX_SHOWN_THREADS])
        if len(group) > MAX_SHOWN_THREADS:
            tids += " …"
        where = f"{would}left alone on CPUs {format_list(held)}"
        reason = group[0].reason or "probably pinned on purpose; --force pins it too"
        yield f"{_label(group)} {where}: {tids}: {reason}"


def _failures(pinned: PinResult, process: Stat) -> Iterator[str]:
    if not pinned.threads:
        yield f"{target.shown(process)} has ended meanwhile"
    for group in _groups(pinned.having(REFUSED)):
        held = format_list(group[0].held)
        yield f"{_label(group)} refused, still on CPUs {held}: {group[0].reason}"
    for group in _groups(pinned.cut):
        held = format_list(group[0].held)
        wanted = format_list(group[0].asked)
        yield f"{_label(group)} got CPUs {held} of {wanted}: the cpuset, or the node, has no more"
    if not pinned.is_settled:
        name = target.shown(process)
        yield f"{name} starts threads faster than they are pinned; run this again"


def _label(group: list[ThreadResult]) -> str:
    stat = stat_of(group[0].pid)
    name = f"process {group[0].pid} ({stat.name if stat else 'ended'})"
    return f"{name}: {count(len(group), 'thread')}"
