"""The running process that a command is about, and the plan for it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from affinityd.cli import exec_options
from affinityd.cli.console import say
from affinityd.client import local_plan
from affinityd.client.device_access import granted_gpus, vendors
from affinityd.config import file
from affinityd.cpuset import CpuSet
from affinityd.errors import AffinityError, TargetError
from affinityd.linux.affinity import own_cpuset
from affinityd.linux.cgroup import cpuset_of
from affinityd.linux.environ import environment_of
from affinityd.linux.processes import process_of, stat_of
from affinityd.linux.procstat import Stat
from affinityd.request import environment
from affinityd.request.caller import Caller
from affinityd.request.formats import Reply
from affinityd.text import quote
from affinityd.topology.model import Topology
from affinityd.topology.node import Node

MAX_DIGITS = 10  #: more than any pid has


def process_id(text: str) -> int:
    """Read a PID; for argparse, which makes it bad usage."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if not is_number or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{quote(text)} is no PID; it is a number from 1")
    return int(text)


def living(pid: int) -> Stat:
    """Return a process that can be pinned. Raises TargetError, which says what it is instead."""
    stat = stat_of(pid)
    if stat is None:
        raise TargetError(f"there is no process {pid}")
    process = process_of(pid)
    if process not in (pid, None):
        raise TargetError(f"{pid} is a thread of process {process}; name that")
    if stat.is_kernel_thread:
        raise TargetError(f"{shown(stat)} is a thread of the kernel, which drives no GPU")
    if stat.is_zombie:
        raise TargetError(f"{shown(stat)} has ended; its parent, {stat.parent}, has not noticed")
    return stat


def shown(stat: Stat) -> str:
    """Return a process as a message names it."""
    return f"process {stat.number} ({stat.name})"


def known_node() -> Node:
    """Return the node as commands know it, and say what they do not believe of it.

    Raises AffinityError.
    """
    known = local_plan.find_node(file.sockets(file.variables()))
    if known.doubt is not None:
        say(f"affinityd: {known.doubt}; the node is known from {known.source}")
    return known.node


class ProcessPlanner:
    """Plans for running processes, by what each says of itself."""

    def __init__(self, chosen: Mapping[str, str], said: Mapping[str, str] | None) -> None:
        """Read the node. Raises AffinityError.

        `chosen` are parameters of a plan, `said` AFFINITYD_* variables, of which a process's own
        count more; None: neither counts.
        """
        self._chosen = chosen
        self._said = said
        self._node = known_node()
        self._replies: dict[str, Reply] = {}
        self._cpus: dict[tuple[int, int], CpuSet | None] = {}

    @property
    def topology(self) -> Topology:
        """The node that is planned on."""
        return self._node.topology

    def cpuset(self, pid: int) -> CpuSet:
        """Return what a process may use at most: where that is not known, every online CPU.

        Its mask is no measure: it may be the fault.
        """
        if pid == os.getpid():
            return own_cpuset()
        return cpuset_of(pid) or self.topology.online

    def plan(self, process: Stat) -> Reply:
        """Return the plan for a process. Raises AffinityError where there is none."""
        pid = process.number
        environ = os.environ if pid == os.getpid() else environment_of(pid)
        if environ is None and "gpus" not in self._chosen:
            raise TargetError(
                f"the environment of {shown(process)} cannot be read: it is another user's, or "
                "gone; name --gpus, or run this as root"
            )
        cpus = self.cpuset(pid)
        parent = environment_of(process.parent)
        given = self._given(pid, environ or {})
        questions = list(environment.questions(given, environ or {}, cpus, parent, vendors()))
        known = str(questions)  # ranks of one job have many processes that ask the same
        if known not in self._replies:
            caller = Caller(mask=cpus, cpuset=cpus)
            self._replies[known] = local_plan.plan_on_node(self._node, questions, caller)
        return self._replies[known]

    def cpus(self, process: Stat) -> CpuSet | None:
        """Return the CPUs of a process; None where there is no plan for it."""
        known = (process.number, process.start)
        if known not in self._cpus:
            try:
                self._cpus[known] = self.plan(process).cpus
            except AffinityError:
                self._cpus[known] = None
        return self._cpus[known]

    def doubt(self, process: Stat) -> str | None:
        """Return why the numbers of a process's GPUs may be others here; None: they are not.

        What a device cgroup takes away is not to be seen from outside of it. Slurm, where it
        constrains devices, has every task count from 0.
        """
        pid = process.number
        environ = environment_of(pid) or {}
        job = environ.get("SLURM_JOB_ID")
        seen = (environment.visible(environ, vendors()) or "").split(",")
        counts_from_0 = seen == [str(number) for number in range(len(seen))]
        is_part = counts_from_0 and len(seen) < len(self.topology.gpus)
        is_elsewhere = _cgroups(pid) != _cgroups(os.getpid())
        has_dev = granted_gpus(_dev(pid)) != granted_gpus()  # a container, whose /dev tells it
        if not job or "granted" in self._chosen or not is_part or not is_elsewhere or has_dev:
            return None
        return (
            f"{shown(process)} may count its GPUs otherwise, if Slurm constrains devices: run this "
            f"within its job (srun --overlap --jobid {job}), or name --granted"
        )

    def _given(self, pid: int, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the parameters of a process's plan, with the devices in its own /dev.

        A container has those alone that it was given.
        """
        devices = granted_gpus(_dev(pid))
        facts = {} if devices is None else {"granted": devices}
        own = {name: text for name, text in environ.items() if text}
        said = {**(file.variables() if self._said is None else self._said), **own}
        if self._said is None:  # how many CPUs were asked for is no choice of how to divide them
            said = {
                name: text
                for name, text in said.items()
                if name == file.PARAMETER_VARIABLES["task_cpus"]
            }
        return {**facts, **exec_options.parameters(self._chosen, said)}


def _dev(pid: int) -> str:
    root = "" if pid == os.getpid() else f"/proc/{pid}/root"
    return f"{root}/dev"


def _cgroups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
