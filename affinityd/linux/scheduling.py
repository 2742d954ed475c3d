"""How long threads waited for a CPU, and what CPUs spent their time on.

A reading that does not exist is None. Sources: kernel Documentation/scheduler/sched-stats.rst
(/proc/PID/schedstat, with CONFIG_SCHED_INFO, which CONFIG_SCHEDSTATS and CONFIG_TASK_DELAY_ACCT
select), scheduler/sched-bwc.rst (cpu.stat), accounting/psi.rst; proc_stat(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.linux.cgroup import Cgroups
from affinityd.linux.files import content, text
from affinityd.linux.processes import PROC
from affinityd.text import whole_number

TICKS = os.sysconf("SC_CLK_TCK")  #: of the kernel's clock in a second
NANOSECONDS, MICROSECONDS = 10**9, 10**6
MOST = 2**64 - 1  #: of the kernel's counters

#: Softirqs that devices cause.
SOFTIRQS = ("NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET")

#: Time for which a cgroup was throttled, summed over CPUs: of cgroups v1 and v2, and its unit.
THROTTLED = {"throttled_time": NANOSECONDS, "throttled_usec": MICROSECONDS}


class ThreadTime(NamedTuple):
    """Seconds of a thread since it began."""

    ran: float
    waited: float  #: it was runnable, and did not run


class CpuTime(NamedTuple):
    """Seconds of CPUs since boot, as the clock's ticks found them."""

    tasks: float = 0.0  #: user, nice and system
    interrupts: float = 0.0  #: irq and softirq
    steal: float = 0.0  #: the hypervisor ran another machine


class Throttling(NamedTuple):
    """How long, and how often, a cgroup was throttled so far."""

    seconds: float = 0.0  #: summed over CPUs
    periods: int = 0  #: of its limit, in which it was active
    used_up: int = 0  #: those in which it used up its limit


def thread_time(pid: int, tid: int, proc: str = PROC) -> ThreadTime | None:
    """Read /proc/PID/task/TID/schedstat; None without CONFIG_SCHED_INFO, or if it has ended."""
    words = (content(f"{proc}/{pid}/task/{tid}/schedstat") or b"").split()
    if len(words) < 2 or not all(word.isdigit() for word in words):  # noqa: PLR2004
        return None
    return ThreadTime(int(words[0]) / NANOSECONDS, int(words[1]) / NANOSECONDS)


def cpu_times(proc: str = PROC) -> Mapping[int, CpuTime]:
    """Read the lines `cpuN` of /proc/stat: the CPUs that are online."""
    times: dict[int, CpuTime] = {}
    for line in text(f"{proc}/stat").split("\n"):
        name, _, values = line.partition(" ")
        words = values.split()
        number = whole_number(name.removeprefix("cpu"), MOST)
        if number is not None and len(words) >= 8:  # noqa: PLR2004 - up to steal
            user, nice, system, _, _, irq, softirq, steal = (
                int(word) / TICKS for word in words[:8]
            )
            times[number] = CpuTime(user + nice + system, irq + softirq, steal)
    return times


def spent(before: Mapping[int, CpuTime], after: Mapping[int, CpuTime], cpus: CpuSet) -> CpuTime:
    """Return the time that some CPUs, of those online at both moments, spent between them."""
    both = [(before[cpu], after[cpu]) for cpu in cpus & before.keys() & after.keys()]
    return CpuTime(
        sum(last.tasks - first.tasks for first, last in both),
        sum(last.interrupts - first.interrupts for first, last in both),
        sum(last.steal - first.steal for first, last in both),
    )


def limiting_folders(membership: str, root: str = "/") -> list[str]:
    """Return the folders of a process's cgroups that count how long they were throttled.

    `membership`: the process's /proc/PID/cgroup. Its own cgroup comes first, then those above it.
    """
    cgroups = Cgroups(membership, root)
    folders = (*cgroups.folders("cgroup", "cpu"), *cgroups.folders("cgroup2", ""))
    return [folder for folder in folders if throttling(folder) is not None]


def throttling(folder: str) -> Throttling | None:
    """Return how long and how often a cgroup was throttled so far: its cpu.stat.

    None where it has no such line: the root's, and where the CPU controller is off.
    """
    lines = (line.partition(" ") for line in text(f"{folder}/cpu.stat").split("\n"))
    numbers = {name: int(value) for name, _, value in lines if value.isdigit()}
    for name, unit in THROTTLED.items():
        if name in numbers:
            periods, used_up = (numbers.get(it, 0) for it in ("nr_periods", "nr_throttled"))
            return Throttling(numbers[name] / unit, periods, used_up)
    return None


def switches_of(pid: int, tid: int, proc: str = PROC) -> tuple[int | None, int | None]:
    """Return how often a thread had to make room for others, and was moved to another CPU.

    The former is of its `status` file, proc_pid_status(5); the latter of `sched`, which a kernel
    with CONFIG_SCHED_DEBUG has.
    """
    folder = f"{proc}/{pid}/task/{tid}"
    forced = _number(f"{folder}/status", "nonvoluntary_ctxt_switches")
    return forced, _number(f"{folder}/sched", "se.nr_migrations")


def _number(path: str, name: str) -> int | None:
    """Read the number of a line `NAME : NUMBER`."""
    for line in text(path).split("\n"):
        its_name, _, value = line.partition(":")
        if its_name.strip() == name:
            return whole_number(value.strip(), MOST)
    return None


def interrupt_counts(cpus: CpuSet, proc: str = PROC) -> Mapping[str, int]:
    """Return how often each interrupt, and each kind of softirq, was handled on these CPUs.

    An interrupt's name is `IRQ 57 (mlx5_comp3@pci:0000:18:00.0)`. Those of the kernel's own clock
    and between CPUs are left out. Sources: proc_interrupts(5); Linux Documentation,
    filesystems/proc.rst, "softirqs".
    """
    counts = {}
    for file in ("interrupts", "softirqs"):
        heading, *lines = text(f"{proc}/{file}").split("\n")
        places = [place for place, name in enumerate(heading.split()) if _cpu(name) in cpus]
        columns = len(heading.split())
        for line in lines:
            number, _, rest = line.strip().partition(":")
            words = rest.split()
            if number.isdigit():
                name = f"IRQ {number} ({' '.join(words[columns:][-1:]) or 'unknown'})"
            else:
                name = f"softirq {number}"
            if (number.isdigit() or number in SOFTIRQS) and len(words) >= columns:
                counts[name] = sum(int(words[place]) for place in places)
    return counts


def _cpu(name: str) -> int | None:
    return whole_number(name.removeprefix("CPU"), MOST)


def pressure_of(membership: str, root: str = "/") -> float | None:
    """Return the seconds in which some thread of a process's cgroup waited for a CPU, by PSI.

    `membership`: the process's /proc/PID/cgroup. None on cgroups v1, and where the kernel was not
    built with CONFIG_PSI, or not started with psi=1.
    """
    for folder in Cgroups(membership, root).folders("cgroup2", ""):
        _, is_there, total = text(f"{folder}/cpu.pressure").partition("\n")[0].partition("total=")
        time = whole_number(total, MOST)
        if is_there and time is not None:
            return time / MICROSECONDS
    return None
