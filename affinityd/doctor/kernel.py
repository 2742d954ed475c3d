"""How the kernel treats the CPUs near GPUs.

Sources: kernel Documentation/admin-guide/sysctl/kernel.rst (numa_balancing), kernel-parameters.txt
(isolcpus=, nohz_full=), timers/no_hz.rst; ABI/testing/sysfs-devices-system-cpu (isolated).
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, format_list
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.values import read_cpus, read_number
from affinityd.doctor.facts import Facts
from affinityd.doctor.finding import Findings, fail, named, not_applicable, ok, several, warn

NUMA_BALANCING = "proc/sys/kernel/numa_balancing"


def numa_balancing(facts: Facts) -> Findings:
    """Judge whether the kernel moves pages between nodes by itself."""
    value = read_number(facts.tree, NUMA_BALANCING)
    if value is None:
        yield not_applicable("there is no kernel.numa_balancing to read")
    elif not value or not facts.has_several_nodes:
        yield ok(f"kernel.numa_balancing is {value}")
    elif not facts.topology.gpus:
        yield not_applicable(f"kernel.numa_balancing is {value}, and there is no GPU")
    else:
        yield warn(
            f"kernel.numa_balancing is {value}: the kernel takes pages from running ranks to see "
            "who uses them, which stalls them for milliseconds",
            "sysctl -w kernel.numa_balancing=0, and the same line in /etc/sysctl.d",
        )


def isolcpus(facts: Facts) -> Findings:
    """Judge whether CPUs that ranks are given are kept from the scheduler, or from its tick."""
    isolated = _cpus(facts, "isolated")
    tickless = _cpus(facts, "nohz_full")
    if isolated is None and tickless is None:
        yield not_applicable("there is no /sys/devices/system/cpu/isolated to read")
        return
    wrong = [*_isolated(facts, isolated or frozenset()), *_tickless(facts, tickless or frozenset())]
    yield from wrong or [ok("ranks are given no CPU of isolcpus= or nohz_full=")]


def _cpus(facts: Facts, name: str) -> CpuSet | None:
    return read_cpus(facts.tree, f"{CPUS}/{name}")


def _isolated(facts: Facts, isolated: CpuSet) -> Findings:
    gpus, cpus = facts.given_of(isolated)
    if gpus:
        yield fail(
            f"isolcpus= takes {several('CPU', cpus)} near {named(gpus)} from the scheduler: it "
            "balances nothing there, and all threads of a rank stay on the CPU where they began",
            "take them out of isolcpus= on the kernel's command line, or give them to no rank: "
            f"--reserved-cpus {format_list(cpus)}",
            gpus,
        )


def _tickless(facts: Facts, tickless: CpuSet) -> Findings:
    gpus, cpus = facts.given_of(tickless)
    if gpus:
        yield warn(
            f"nohz_full= has {several('CPU', cpus)} near {named(gpus)}: every system call costs "
            "more there, and nothing is won where a CPU has more than one thread to run",
            "take them out of nohz_full= on the kernel's command line",
            gpus,
        )
