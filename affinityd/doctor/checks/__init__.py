"""The checks by name, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.doctor.checks import devices, kernel, slurm
from affinityd.doctor.checks.daemon import daemon, nri
from affinityd.doctor.facts import (
    NOT_APPLICABLE,
    OK,
    CheckResult,
    CheckResults,
    NodeFacts,
    NotApplicableError,
)
from affinityd.errors import InvalidRequestError


@dataclass(frozen=True)
class Check:
    """A check; it has a result on any machine."""

    run: Callable[[NodeFacts], CheckResults]
    looks_at: str
    nvml: bool = False  #: whether it needs NVML's report


CHECKS: Mapping[str, Check] = {
    "daemon": Check(
        daemon,
        "the daemon answers every user; settings are known",
        nvml=True,
    ),
    "nri": Check(nri, "a container runtime asks the daemon, which has placed each container"),
    "gpu-numa-node": Check(devices.gpu_numa_node, "the NUMA node of each GPU is known", nvml=True),
    "offline-cpus": Check(devices.offline_cpus, "no CPU near a GPU is offline"),
    "isolcpus": Check(kernel.isolcpus, "isolcpus= and nohz_full= leave out CPUs near GPUs"),
    "numa-balancing": Check(kernel.numa_balancing, "automatic NUMA balancing is off"),
    "irqbalance": Check(kernel.irqbalance, "interrupts of GPUs and NICs go to near CPUs"),
    "gpu-nics": Check(devices.gpu_nics, "each GPU has an RDMA device near it", nvml=True),
    "nvml": Check(kernel.nvml, "NVML answers, for every GPU", nvml=True),
    "slurm-conf": Check(slurm.slurm_conf, "Slurm keeps cores near GPUs for jobs with GPUs"),
    "slurm-scripts": Check(slurm.slurm_scripts, "TaskProlog= runs the script of this version"),
    "cgroup": Check(kernel.cgroup, "cgroups can confine jobs to their CPUs"),
}


def run_checks(facts: NodeFacts, names: Sequence[str] = ()) -> list[CheckResult]:
    """Run the named checks, or all, in the order of the table; a check may find several things.

    An `ok` is left out if its check found anything else. A program that cannot be run, such as
    Slurm's, is no fault.
    """
    results: list[CheckResult] = []
    for name in CHECKS:
        if names and name not in names:
            continue
        try:
            judged = list(CHECKS[name].run(facts))
        except (NotApplicableError, InvalidRequestError) as why:
            judged = [CheckResult(NOT_APPLICABLE, str(why))]
        findings = [result for result in judged if result.status != OK]
        results += (replace(result, name=name) for result in findings or judged)
    return results
