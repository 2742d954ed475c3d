"""`affinityd why`: measures for some seconds how long a process waits for CPUs, and for what."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from affinityd.audit.gather import one_process
from affinityd.audit.model import ProcessFacts
from affinityd.audit.wait_meter import WaitMeter
from affinityd.audit.waits import CAUSES, NOTABLE, Waits, remedy
from affinityd.cli import target
from affinityd.cli.console import aligned, say
from affinityd.cli.parser import Parser, add_format, duration
from affinityd.cpuset import several
from affinityd.errors import TargetError
from affinityd.linux.processes import ProcessTable, Stat, since_boot, stat_of
from affinityd.linux.scheduling import (
    interrupt_counts,
    pressure_of,
    switches_of,
    thread_time,
)
from affinityd.text import count, one_line

SECONDS = 5.0  #: by default
MOST_ROWS = 10  #: of threads, and of other processes
UNCOUNTED = (
    "this kernel does not count how long threads wait: it needs CONFIG_SCHEDSTATS or "
    "CONFIG_TASK_DELAY_ACCT"
)
#: Below it a cause is not shown.
LEAST_SECONDS = 0.005
#: Kind of another process → how the table names it.
KINDS = {
    "own_threads": "the same job",
    "neighbor": "a neighbor",
    "system": "the node's",
    "interrupts": "interrupts",
}
#: Cause → what happened.
HAPPENED = {
    "throttled": "its cgroup had used up its CPU limit",
    "own_threads": "other threads of the same job ran",
    "neighbor": "processes of others ran",
    "system": "daemons of the node or threads of the kernel ran",
    "interrupts": "interrupts were handled",
    "steal": "the hypervisor ran other machines",
    "unknown": "not known",
}


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("pid", metavar="PID", type=target.process_id)
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=duration,
        default=SECONDS,
        help=f"how long to measure, as 10s or 2m (default: {SECONDS:g}s)",
    )
    add_format(parser, "table")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0. Raises TargetError for a process that cannot be measured."""
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
    waits = replace(waits, interrupt=_busiest(before.interrupts, after.interrupts))
    job = after.facts.membership.job
    cure = remedy(waits, job.scheduler if job else None)
    if arguments.format == "json":
        print(json.dumps(document(process.number, waits, cure)))
    else:
        for line in table(stat, before, after, waits, cure):
            print(one_line(line))
    return 0


@dataclass(frozen=True)
class Moment:
    """The counters of a process at one moment."""

    facts: ProcessFacts
    #: By tid and start: forced switches, and those to another CPU.
    switches: Mapping[tuple[int, int], tuple[int | None, int | None]]
    interrupts: Mapping[str, int]
    pressure: float | None

    @classmethod
    def of(cls, process: Stat) -> Moment:
        """Read the counters of a process now."""
        facts = one_process(process.number)
        if facts is None:
            raise TargetError(f"{target.shown(process)} has ended meanwhile")
        switches = {(it.tid, it.start): switches_of(facts.pid, it.tid) for it in facts.threads}
        return cls(facts, switches, interrupt_counts(facts.cpus), pressure_of(facts.cgroups))


def document(pid: int, waits: Waits, cure: str | None) -> Mapping[str, object]:
    """Return the JSON document; seconds have microseconds."""
    return {
        "pid": pid,
        "seconds": round(waits.seconds, 6),
        "waited": round(waits.waited, 6),
        "causes": {cause: round(waits.causes[cause], 6) for cause in CAUSES},
        "remedy": cure,
    }


def table(
    process: Stat, before: Moment, after: Moment, waits: Waits, cure: str | None
) -> Iterator[str]:
    """Yield the lines for a person: the sum, the threads, the processes beside them, the remedy."""
    yield (
        f"{target.shown(process)}: its threads waited {waits.waited:.2f} s in "
        f"{waits.seconds:.1f} s for {several('CPU', waits.cpus)}"
    )
    rows = [
        [cause, f"{seconds:.2f}", f"{100 * seconds / waits.waited:.0f} %", HAPPENED[cause]]
        for cause, seconds in sorted(waits.causes.items(), key=lambda it: -it[1])
        if seconds >= LEAST_SECONDS
    ]
    if rows:
        yield ""
        yield from aligned(("cause", "seconds", "share", "meanwhile"), rows, {"seconds", "share"})
    yield ""
    times = ((it, waits.threads[it.tid]) for it in after.facts.threads if it.tid in waits.threads)
    longest = sorted(times, key=lambda it: (-it[1].waited, -it[1].ran, it[0].tid))
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
        rows = [
            [str(it.pid), it.name, it.owner or "", KINDS[it.kind], f"{it.ran:.2f}"]
            for it in waits.runners[:MOST_ROWS]
        ]
        columns = ("process", "name", "of", "is", "ran there")
        yield from aligned(columns, rows, {"process", "ran there"})
    yield ""
    yield from _counts(before, after)
    is_quiet = waits.waited <= NOTABLE * waits.seconds
    none = (
        "no remedy is needed" if is_quiet else "no remedy is known: no known cause has much of it"
    )
    yield none if cure is None else f"remedy: {cure}"


def _counts(before: Moment, after: Moment) -> Iterator[str]:
    """Yield the other numbers that the kernel counts of it, where it does."""
    forced, moved = (_more(before, after, place) for place in (0, 1))
    pressure = None
    if before.pressure is not None and after.pressure is not None:
        pressure = after.pressure - before.pressure
    facts = (
        ("its threads had to make room for others {0} times", forced),
        ("were moved to another CPU {0} times", moved),
        ("some thread of its cgroup waited for {0:.2f} s (PSI)", pressure),
    )
    counted = [sentence.format(number) for sentence, number in facts if number is not None]
    if counted:
        yield "; ".join(counted)


def _more(before: Moment, after: Moment, place: int) -> int | None:
    """Return by how much a number of its threads has grown; of one that has ended none is known."""
    grown = [
        max(0, last - (before.switches.get(name, (0, 0))[place] or 0))
        for name, its in after.switches.items()
        if (last := its[place]) is not None
    ]
    return sum(grown) if grown else None


def _busiest(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
    """Return the interrupt that was handled most often between two moments."""
    handled = {name: number - before.get(name, 0) for name, number in after.items()}
    name = max(handled, key=lambda it: handled[it], default=None)
    return name if name is not None and handled[name] > 0 else None
