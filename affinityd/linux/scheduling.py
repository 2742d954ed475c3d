"""How long threads waited for a CPU, and what kept cgroups and CPUs from running them.

A reading that does not exist is None. Sources: kernel Documentation/scheduler/sched-stats.rst
(/proc/PID/schedstat, with CONFIG_SCHED_INFO, which CONFIG_SCHEDSTATS and CONFIG_TASK_DELAY_ACCT
select), scheduler/sched-bwc.rst (cpu.stat), accounting/psi.rst; proc_stat(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from affinityd.linux.cgroup import Cgroups
from affinityd.linux.files import content, text
from affinityd.linux.processes import PROC
from affinityd.text import MAX_COUNTER, whole_number

TICKS = os.sysconf("SC_CLK_TCK")  #: ticks of the kernel's clock in a second
NANOSECONDS = 10**9
MICROSECONDS = 10**6

STEAL = 7  #: place of `steal` among a CPU's numbers in /proc/stat


class ThreadTime(NamedTuple):
    """The seconds that a thread ran and waited since it started."""

    ran: float
    waited: float  #: seconds in which the thread was runnable, and did not run


class Throttling(NamedTuple):
    """How long, and how often, a cgroup was throttled so far."""

    seconds: float = 0.0  #: summed over CPUs
    periods: int = 0  #: periods of the limit in which the cgroup was active
    used_up: int = 0  #: periods in which the cgroup used up its limit


def thread_time(pid: int, tid: int, proc: str = PROC) -> ThreadTime | None:
    """Read /proc/PID/task/TID/schedstat; None without CONFIG_SCHED_INFO, or for an ended thread."""
    words = (content(f"{proc}/{pid}/task/{tid}/schedstat") or b"").split()
    if len(words) < 2 or not all(word.isdigit() for word in words):  # noqa: PLR2004
        return None
    return ThreadTime(int(words[0]) / NANOSECONDS, int(words[1]) / NANOSECONDS)


def stolen_times(proc: str = PROC) -> Mapping[int, float]:
    """Return the seconds that the hypervisor took from each online CPU: `steal`, proc_stat(5)."""
    times: dict[int, float] = {}
    for line in text(f"{proc}/stat").split("\n"):
        name, _, values = line.partition(" ")
        words = values.split()
        number = whole_number(name.removeprefix("cpu"), MAX_COUNTER)
        if number is not None and len(words) >= STEAL + 1 and words[STEAL].isdigit():
            times[number] = int(words[STEAL]) / TICKS
    return times


def limiting_folders(membership: str, root: str = "/") -> list[str]:
    """Return the folders of a process's cgroups that count throttled time.

    `membership`: the process's /proc/PID/cgroup. Its own cgroup comes first, then the parents.
    """
    cgroups = Cgroups(membership, root)
    folders = (*cgroups.folders("cgroup", "cpu"), *cgroups.folders("cgroup2", ""))
    return [folder for folder in folders if throttling(folder) is not None]


def throttling(folder: str) -> Throttling | None:
    """Return how long and how often a cgroup was throttled, by cpu.stat; None: not counted."""
    lines = (line.partition(" ") for line in text(f"{folder}/cpu.stat").split("\n"))
    numbers = {name: int(value) for name, _, value in lines if value.isdigit()}
    # The throttled time, summed over CPUs: its name and unit in cgroups v1 and in v2.
    for name, unit in (("throttled_time", NANOSECONDS), ("throttled_usec", MICROSECONDS)):
        if name in numbers:
            periods = numbers.get("nr_periods", 0)
            return Throttling(numbers[name] / unit, periods, numbers.get("nr_throttled", 0))
    return None


def pressure_of(membership: str, root: str = "/") -> float | None:
    """Return the seconds in which some thread of a process's cgroup waited for a CPU, by PSI.

    `membership`: the process's /proc/PID/cgroup. None on cgroups v1, and where the kernel was not
    built with CONFIG_PSI, or not started with psi=1.
    """
    for folder in Cgroups(membership, root).folders("cgroup2", ""):
        _, is_there, total = text(f"{folder}/cpu.pressure").partition("\n")[0].partition("total=")
        time = whole_number(total, MAX_COUNTER)
        if is_there and time is not None:
            return time / MICROSECONDS
    return None
