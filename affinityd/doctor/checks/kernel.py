"""How the kernel treats the CPUs near GPUs.

Sources: kernel Documentation/admin-guide/sysctl/kernel.rst (numa_balancing), kernel-parameters.txt
(isolcpus=, nohz_full=), timers/no_hz.rst; ABI/testing/sysfs-devices-system-cpu (isolated).
"""

from __future__ import annotations

from affinityd.cpuset import format_list, several
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.values import read_cpus, read_number
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, NotApplicableError, fail, named, ok, warn

NUMA_BALANCING = "proc/sys/kernel/numa_balancing"


def numa_balancing(facts: NodeFacts) -> CheckResults:
    """Judge whether the kernel moves pages between nodes by itself."""
    value = read_number(facts.tree, NUMA_BALANCING)
    if value is None:
        raise NotApplicableError("there is no kernel.numa_balancing to read")
    if value and facts.has_several_nodes:
        if not facts.topology.gpus:
            raise NotApplicableError(f"kernel.numa_balancing is {value}, and there is no GPU")
        yield warn(
            (
                f"kernel.numa_balancing is {value}: the kernel unmaps pages of running ranks to "
                "see which CPUs use them, which stalls the ranks for milliseconds"
            ),
            "sysctl -w kernel.numa_balancing=0, and the same line in /etc/sysctl.d",
        )
    yield ok(f"kernel.numa_balancing is {value}")


def isolcpus(facts: NodeFacts) -> CheckResults:
    """Judge whether CPUs that ranks are given are kept from the scheduler, or from its tick."""
    isolated, without_tick = (
        read_cpus(facts.tree, f"{CPUS}/{name}") for name in ("isolated", "nohz_full")
    )
    if isolated is None and without_tick is None:
        raise NotApplicableError("there is no /sys/devices/system/cpu/isolated to read")
    gpus, taken = facts.used_by_ranks(isolated or frozenset())
    if gpus:
        yield fail(
            (
                f"isolcpus= takes {several('CPU', taken)} near {named(gpus)} out of load "
                "balancing: all threads of a rank stay on the CPU where they began"
            ),
            (
                "remove them from isolcpus= on the kernel's command line, or reserve them: "
                f"--reserved-cpus {format_list(taken)}"
            ),
            gpus,
        )
    gpus, taken = facts.used_by_ranks(without_tick or frozenset())
    if gpus:
        yield warn(
            (
                f"nohz_full= has {several('CPU', taken)} near {named(gpus)}: every system call "
                "costs more there, and nothing is gained if a CPU has more than one thread to "
                "run"
            ),
            "remove them from nohz_full= on the kernel's command line",
            gpus,
        )
    yield ok("ranks are given no CPU of isolcpus= or nohz_full=")
