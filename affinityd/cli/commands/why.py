"""`affinityd why`: how long a process waits for CPUs in some seconds, and what explains that."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from affinityd.audit.gather import one_process, owner_of
from affinityd.audit.model import ProcessFacts
from affinityd.audit.wait_meter import WaitMeter
from affinityd.audit.waits import NOTABLE, SHORT_LIVED, Waits, remedy
from affinityd.cli import target
from affinityd.cli.console import aligned, say
from affinityd.cli.parser import Parser, add_format, duration
from affinityd.cpuset import several
from affinityd.errors import TargetError
from affinityd.linux.processes import ProcessTable, Stat, since_boot, stat_of
from affinityd.linux.scheduling import pressure_of, thread_time
from affinityd.text import count, one_line

WATCHED_SECONDS = 5.0  #: by default
MOST_ROWS = 10  #: rows of threads, and rows of other processes
UNCOUNTED = (
    "this kernel does not count how long threads wait: it needs CONFIG_SCHEDSTATS or "
    "CONFIG_TASK_DELAY_ACCT"
)
LEAST_SECONDS = 0.005  #: facts of fewer seconds are not shown


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("pid", metavar="PID", type=target.process_id)
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=duration,
        default=WATCHED_SECONDS,
        help=f"how long to measure, like 10s or 2m (default: {WATCHED_SECONDS:g}s)",
    )
    add_format(parser, "table")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and return 0. Raises TargetError for a process that cannot be measured."""
    process = target.living(arguments.pid)
    if thread_time(process.number, process.number) is None:
        raise TargetError(UNCOUNTED)
    if arguments.format == "table" and sys.stderr is not None and sys.stderr.isatty():
        say(f"measuring {target.shown(process)} for {arguments.seconds:g} s; Ctrl-C ends it now")
    meter = WaitMeter(names_others=True)
    before = Moment.of(process)
    meter.look([before.facts], ProcessTable(), since_boot())
    try:
        time.sleep(arguments.seconds)
    except KeyboardInterrupt:
        say("affinityd why: ended early; this is what was measured until now")
    stat = stat_of(process.number)
    if stat is None or stat.start != process.start or stat.is_zombie:
        raise TargetError(f"{target.shown(process)} has ended meanwhile")
    after = Moment.of(stat)
    waits = meter.look([after.facts], ProcessTable(), since_boot()).get(process.number)
    if waits is None:
        raise TargetError(UNCOUNTED)
    bound_by = None
    if waits.is_bound_to_one:
        bound_by = owner_of(after.facts) or "an unknown program"
    cure = remedy(waits, after.facts.membership.scheduler, bound_by)
    if arguments.format == "json":
        pressure = None
        if before.pressure is not None and after.pressure is not None:
            pressure = round(after.pressure - before.pressure, 6)
        print(json.dumps({**document(process.number, waits, cure), "pressure": pressure}))
    else:
        for line in table(stat, after, waits, cure):
            print(one_line(line))
    return 0


@dataclass(frozen=True)
class Moment:
    """The counters of a process at one moment."""

    facts: ProcessFacts
    pressure: float | None  #: seconds, by PSI; None: not counted

    @classmethod
    def of(cls, process: Stat) -> Moment:
        """Read the counters of a process now."""
        facts = one_process(process.number)
        if facts is None:
            raise TargetError(f"{target.shown(process)} has ended meanwhile")
        return cls(facts, pressure_of(facts.cgroups))


def document(pid: int, waits: Waits, cure: str | None) -> Mapping[str, object]:
    """Return the JSON document; seconds are rounded to microseconds."""
    return {
        "pid": pid,
        "seconds": round(waits.seconds, 6),
        "waited": None if waits.waited is None else round(waits.waited, 6),
        "unmeasured": SHORT_LIVED if waits.waited is None else None,
        "throttled": round(waits.throttled, 6),
        "stolen": round(waits.stolen, 6),
        "others": [
            {
                "pid": runner.pid,
                "name": runner.name,
                "of": runner.owner,
                "kind": runner.kind,
                "ran": round(runner.ran, 6),
            }
            for runner in waits.runners[:MOST_ROWS]
        ],
        "cause": waits.cause,
        "remedy": cure,
    }


def table(process: Stat, after: Moment, waits: Waits, cure: str | None) -> Iterator[str]:
    """Yield lines: the sum, the facts, the threads, other processes on the CPUs, the remedy."""
    name = target.shown(process)
    cpus = several("CPU", waits.cpus)
    if waits.waited is None:
        yield f"{name}: how long it waited for {cpus} is not measurable: {SHORT_LIVED}"
    else:
        yield f"{name}: its threads waited {waits.waited:.2f} s in {waits.seconds:.1f} s for {cpus}"
    if waits.throttled >= LEAST_SECONDS:
        used_up = f" had used up its limit in {waits.used_up:.0%} of the periods"
        yield f"throttled: {waits.throttled:.2f} s, as its cgroup {waits.limited}{used_up}"
    if waits.stolen >= LEAST_SECONDS:
        yield f"stolen: {waits.stolen:.2f} s, which the hypervisor took from these CPUs"
    yield ""
    times = (
        (thread, waits.threads[thread.tid])
        for thread in after.facts.threads
        if thread.tid in waits.threads
    )
    longest = sorted(times, key=lambda entry: (-entry[1].waited, -entry[1].ran, entry[0].tid))
    rows = [
        [str(thread.tid), thread.name, str(thread.last_cpu), f"{its.ran:.2f}", f"{its.waited:.2f}"]
        for thread, its in longest[:MOST_ROWS]
    ]
    columns = ("thread", "name", "CPU", "ran", "waited")
    yield from aligned(columns, rows, {"thread", "CPU", "ran", "waited"})
    if more := len(after.facts.threads) - len(rows):
        yield f"and {count(more, 'thread')} that waited less"
    if waits.runners:
        yield ""
        owners = {"own_threads": "the same job", "neighbor": "a neighbor", "system": "the node's"}
        rows = [
            [
                str(runner.pid),
                runner.name,
                runner.owner or "",
                owners[runner.kind],
                f"{runner.ran:.2f}",
            ]
            for runner in waits.runners[:MOST_ROWS]
        ]
        columns = ("process", "name", "of", "is", "ran there")
        yield from aligned(columns, rows, {"process", "ran there"})
    yield ""
    if cure is not None:
        yield f"remedy: {cure}"
    elif waits.waited is not None and waits.waited <= NOTABLE * waits.seconds:
        yield "no remedy is needed"
    else:
        yield "no remedy is known: no fact explains the wait"
