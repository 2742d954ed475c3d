"""The checks by name, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.doctor.checks import devices, kernel, schedulers
from affinityd.doctor.checks.daemon import daemon
from affinityd.doctor.facts import CheckResult, CheckResults, NodeFacts, concluded
from affinityd.errors import InvalidRequestError
from affinityd.text import quote


@dataclass(frozen=True)
class Check:
    """A check; it has a result for any machine."""

    run: Callable[[NodeFacts], CheckResults]
    looks_at: str
    asks_nvml: bool = False  #: it needs NVML's report


CHECKS: Mapping[str, Check] = {
    "daemon": Check(
        daemon,
        "the daemon answers every user, sees this node, may pin as told; settings are known",
        asks_nvml=True,
    ),
    "gpu-numa-node": Check(
        devices.gpu_numa_node, "the NUMA node of each GPU is known", asks_nvml=True
    ),
    "gpu-node-cpus": Check(
        devices.gpu_node_cpus, "the NUMA node of each GPU has CPUs", asks_nvml=True
    ),
    "offline-cpus": Check(devices.offline_cpus, "no CPU near a GPU is offline"),
    "isolcpus": Check(kernel.isolcpus, "isolcpus= and nohz_full= leave out CPUs near GPUs"),
    "numa-balancing": Check(kernel.numa_balancing, "automatic NUMA balancing is off"),
    "irqbalance": Check(kernel.irqbalance, "interrupts go to near CPUs, and not to those of ranks"),
    "pcie-link": Check(devices.pcie_link, "the links to the GPUs have all their lanes"),
    "rdma-ports": Check(devices.rdma_ports, "RDMA ports are up, and as fast as their siblings"),
    "gpu-nics": Check(devices.gpu_nics, "each GPU has an RDMA device near it", asks_nvml=True),
    "nvml": Check(kernel.nvml, "NVML answers, for every GPU", asks_nvml=True),
    "persistence": Check(
        kernel.persistence, "the driver keeps idle GPUs initialized", asks_nvml=True
    ),
    "gres-conf": Check(schedulers.gres_conf, "Slurm's gres.conf fits the node", asks_nvml=True),
    "cgroup": Check(schedulers.cgroup, "cgroups can confine jobs to their CPUs"),
}


def run_checks(facts: NodeFacts, names: Sequence[str] = ()) -> list[CheckResult]:
    """Run these checks, or all, in the order of the table; a check may find several things."""
    chosen = {name: check for name, check in CHECKS.items() if not names or name in names}
    return [
        replace(result, name=name)
        for name, check in chosen.items()
        for result in concluded(check.run(facts))
    ]


def check_name(name: str) -> str:
    """Return the name if it is a check's. Raises InvalidRequestError, which lists all checks."""
    if name not in CHECKS:
        raise InvalidRequestError(f"{quote(name)} is not a check; there are {', '.join(CHECKS)}")
    return name
