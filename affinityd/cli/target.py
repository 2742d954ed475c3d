"""The running process that a command is about, and the plan for it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from affinityd import config
from affinityd.client import local_plan
from affinityd.client.apply import ProcessContext
from affinityd.cpuset import CpuSet
from affinityd.errors import AffinityError, InvalidRequestError, TargetError
from affinityd.linux.processes import Stat, cgroups_of, process_of, stat_of
from affinityd.request.resolve import Caller, Reply
from affinityd.text import quote
from affinityd.topology.model import Node, Topology

MAX_DIGITS = 10  #: more than any pid has


def process_id(text: str) -> int:
    """Read a PID; for argparse, which makes it bad usage."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if not is_number or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a PID; a PID is a number from 1")
    return int(text)


def living(pid: int) -> Stat:
    """Return a process that can be pinned. Raises TargetError, which explains why not."""
    stat = stat_of(pid)
    if stat is None:
        raise TargetError(f"there is no process {pid}")
    process = process_of(pid)
    if process not in (pid, None):
        raise TargetError(f"{pid} is a thread of process {process}; name that")
    if stat.is_kernel_thread:
        raise TargetError(f"{shown(stat)} is a thread of the kernel, which uses no GPU")
    if stat.is_zombie:
        raise TargetError(
            f"{shown(stat)} has ended; its parent, {stat.parent}, has not waited for it"
        )
    return stat


def shown(stat: Stat) -> str:
    """Return a process as a message names it."""
    return f"process {stat.number} ({stat.name})"


def known_node() -> Node:
    """Return the node as commands know it. Raises AffinityError."""
    return local_plan.find_node(config.sockets(config.variables())).node


def this_machine(lack: str) -> Node:
    """Return the machine that this command runs on.

    Raises AffinityError for a replayed one, with its `lack`.
    """
    node = known_node()
    if node.replayed:
        raise InvalidRequestError(
            f"{quote(node.topology.name)} is a replayed machine, which {lack}: "
            "unset the AFFINITYD_ROOT, AFFINITYD_MACHINE or AFFINITYD_SOCKET that names it"
        )
    return node


@dataclass(frozen=True)
class ProcessPlanner:
    """Plans for running processes, by the facts of each; reads the node when it is made."""

    chosen: Mapping[str, str]  #: parameters of a plan
    #: How cores are divided counts as well, as the site's settings and the process's variables say.
    divides: bool
    node: Node = field(default_factory=known_node)
    context: Callable[[Stat], ProcessContext] = field(
        default_factory=lambda: cache(ProcessContext.of)
    )

    @property
    def topology(self) -> Topology:
        """The node that is planned on."""
        return self.node.topology

    def cpuset(self, stat: Stat) -> CpuSet:
        """Return the most CPUs a process may use: if that is unknown, every online CPU.

        Its mask is no measure: it may be the fault.
        """
        return self.context(stat).cpuset or self.topology.online

    def plan(self, stat: Stat) -> Reply:
        """Return the plan for a process. Raises AffinityError where there is none."""
        process, cpus = self.context(stat), self.cpuset(stat)
        if process.environ is None and "gpus" not in self.chosen:
            raise TargetError(
                f"the environment of {shown(stat)} cannot be read: it is another user's, or has "
                "ended; give --gpus, or run this as root"
            )
        query = process.query(self._given(process.environ or {}), cpus)
        return local_plan.plan_on_node(self.node, query, Caller(mask=cpus, cpuset=cpus))

    def plan_or_none(self, stat: Stat) -> Reply | None:
        """Return the plan for a process; None where there is none."""
        try:
            return self.plan(stat)
        except AffinityError:
            return None

    def doubt(self, stat: Stat) -> str | None:
        """Return why the numbers of a process's GPUs may be others here; None: they are not.

        The limits of a device cgroup cannot be read from outside it. Slurm, where it
        constrains devices, has every task count from 0.
        """
        process, own = self.context(stat), ProcessContext.of_self()
        job = (process.environ or {}).get("SLURM_JOB_ID")
        seen = (process.visible or "").split(",")
        counts_from_0 = seen == [str(number) for number in range(len(seen))]
        is_part = counts_from_0 and len(seen) < len(self.topology.gpus)
        is_elsewhere = cgroups_of(process.pid) != cgroups_of(own.pid)
        has_dev = process.devices != own.devices  # a container: its /dev lists them
        if not job or "granted" in self.chosen or not is_part or not is_elsewhere or has_dev:
            return None
        return (
            f"{shown(stat)} may number its GPUs differently, if Slurm constrains devices: "
            f"run this within its job (srun --overlap --jobid {job}), or give --granted"
        )

    def _given(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the chosen parameters, and those that variables choose for a process."""
        variables = {**config.variables(), **{name: it for name, it in environ.items() if it}}
        if not self.divides:  # the number of CPUs is no choice of how to divide them
            variables = {name: it for name, it in variables.items() if name == config.CPUS}
        return config.plan_parameters(variables, self.chosen)
