"""The checks by name, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.doctor.checks import (
    daemon,
    daemon_process,
    drivers,
    gpu_nodes,
    interrupts,
    kernel,
    nics,
    pcie_links,
    schedulers,
    variables,
)
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, concluded
from affinityd.errors import InvalidRequestError
from affinityd.text import quote


@dataclass(frozen=True)
class Check:
    """A check; it has a result for any machine."""

    run: Callable[[NodeFacts], CheckResults]
    looks_at: str
    asks_nvml: bool = False  #: it needs NVML's report


CHECKS: Mapping[str, Check] = {
    "socket": Check(
        daemon.socket,
        "the daemon answers, every user reaches it, node.json is right",
        asks_nvml=True,
    ),
    "variables": Check(
        variables.variables, "AFFINITYD_* variables and the settings file are spelled right"
    ),
    "daemon-cpuset": Check(daemon_process.daemon_cpuset, "the daemon itself may use every CPU"),
    "hidepid": Check(daemon_process.hidepid, "the daemon sees every user's processes"),
    "caller": Check(daemon.caller, "the daemon identifies callers"),
    "sandbox": Check(
        daemon_process.sandbox, "the daemon has the devices and users of this machine"
    ),
    "enforce": Check(
        daemon.enforce, "a daemon that was told to pin can pin, and sees what it needs"
    ),
    "gpu-numa-node": Check(
        gpu_nodes.gpu_numa_node, "the NUMA node of each GPU is known", asks_nvml=True
    ),
    "gpu-node-cpus": Check(
        gpu_nodes.gpu_node_cpus, "the NUMA node of each GPU has CPUs", asks_nvml=True
    ),
    "offline-cpus": Check(gpu_nodes.offline_cpus, "no CPU near a GPU is offline"),
    "isolcpus": Check(kernel.isolcpus, "isolcpus= and nohz_full= leave out CPUs near GPUs"),
    "numa-balancing": Check(kernel.numa_balancing, "automatic NUMA balancing is off"),
    "irqbalance": Check(
        interrupts.irqbalance, "interrupts go to near CPUs, and not to those of ranks"
    ),
    "pcie-link": Check(pcie_links.pcie_link, "the links to the GPUs have all their lanes"),
    "rdma-ports": Check(nics.rdma_ports, "RDMA ports are up, and as fast as their siblings"),
    "gpu-nics": Check(nics.gpu_nics, "each GPU has an RDMA device near it", asks_nvml=True),
    "nvml": Check(drivers.nvml, "NVML answers, for every GPU", asks_nvml=True),
    "persistence": Check(
        drivers.persistence, "the driver keeps idle GPUs initialized", asks_nvml=True
    ),
    "gres-conf": Check(schedulers.gres_conf, "Slurm's gres.conf fits the node", asks_nvml=True),
    "cgroup": Check(schedulers.cgroup, "cgroups can confine jobs to their CPUs"),
}


def run_checks(facts: NodeFacts, names: Sequence[str] = ()) -> list[CheckResult]:
    """Run these checks, or all, in the order of the table; a check may find several things."""
    chosen = {name: it for name, it in CHECKS.items() if not names or name in names}
    return [
        replace(found, name=name)
        for name, check in chosen.items()
        for found in concluded(check.run(facts))
    ]


def check_name(name: str) -> str:
    """Return the name of a check. Raises InvalidRequestError, which lists them, for another."""
    if name not in CHECKS:
        raise InvalidRequestError(f"{quote(name)} is not a check; there are {', '.join(CHECKS)}")
    return name
