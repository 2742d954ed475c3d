"""How the kernel treats the CPUs near GPUs.

Sources: kernel Documentation/admin-guide/sysctl/kernel.rst (numa_balancing), kernel-parameters.txt
(isolcpus=, nohz_full=), timers/no_hz.rst; ABI/testing/sysfs-devices-system-cpu (isolated).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, format_list, several
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.values import read_cpus, read_number
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, fail, named, not_applicable, ok, warn
from affinityd.topology.model import Gpu

NUMA_BALANCING = "proc/sys/kernel/numa_balancing"


@dataclass(frozen=True)
class CpuOption:
    """What it does to ranks that CPUs of theirs are kept for somebody else."""

    judge: Callable[[str, str, Iterable[Gpu]], CheckResult]
    found: str  #: with the CPUs and GPUs
    remedy: str  #: with the CPUs


#: A file of /sys/devices/system/cpu → what it means that CPUs of ranks are in it.
CPU_OPTIONS: Mapping[str, CpuOption] = {
    "isolated": CpuOption(
        fail,
        "isolcpus= takes {} from the scheduler: it balances nothing there, and all threads of a "
        "rank stay on the CPU where they began",
        "take them out of isolcpus= on the kernel's command line, or give them to no rank: "
        "--reserved-cpus {}",
    ),
    "nohz_full": CpuOption(
        warn,
        "nohz_full= has {}: every system call costs more there, and nothing is won where a CPU "
        "has more than one thread to run",
        "take them out of nohz_full= on the kernel's command line",
    ),
}


def numa_balancing(facts: NodeFacts) -> CheckResults:
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


def isolcpus(facts: NodeFacts) -> CheckResults:
    """Judge whether CPUs that ranks are given are kept from the scheduler, or from its tick."""
    listed = {name: read_cpus(facts.tree, f"{CPUS}/{name}") for name in CPU_OPTIONS}
    if not any(cpus is not None for cpus in listed.values()):
        yield not_applicable("there is no /sys/devices/system/cpu/isolated to read")
        return
    wrong = [
        it for name, cpus in listed.items() for it in _of_ranks(facts, CPU_OPTIONS[name], cpus)
    ]
    yield from wrong or [ok("ranks are given no CPU of isolcpus= or nohz_full=")]


def _of_ranks(facts: NodeFacts, option: CpuOption, cpus: CpuSet | None) -> CheckResults:
    gpus, taken = facts.used_by_ranks(cpus or frozenset())
    if gpus:
        found = option.found.format(f"{several('CPU', taken)} near {named(gpus)}")
        yield option.judge(found, option.remedy.format(format_list(taken)), gpus)
