"""A plan in the format `shell`: a table of its variables, for reader and writer. Pure.

A rank that asks a daemon imports this module, and not the planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from affinityd.config import ON, SWITCH, read_switch
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import AffinityError
from affinityd.request.environment import ALLOWED, CPULIST, GPUS, VISIBLE_NAMES
from affinityd.text import quote

REPLAYED = "AFFINITYD_REPLAYED"  #: only in a plan of a replayed machine
REPLAYED_MACHINE = (
    "planned on a replayed machine, not on this one: unset the AFFINITYD_SOCKET, AFFINITYD_MACHINE "
    "or AFFINITYD_ROOT that names it, or end the daemon that replays it"
)


class ProcessPlan:
    """A process's plan, as a daemon answered it, or as this process made it."""

    cpus: CpuSet
    allowed: CpuSet
    memory_nodes: CpuSet
    visible_memory: CpuSet = frozenset()  #: memory nodes near any visible GPU
    near: CpuSet | None = None  #: the near allowed CPUs; None: no far CPUs were added
    gpus: CpuSet = frozenset()  #: indices in the node's numbering; empty if uncertain
    visible: Mapping[str, str]  #: variables that restrict the process to GPUs chosen for it
    nodes: CpuSet = frozenset()  #: the home nodes
    locality: str
    threads: int
    switch: str = ON
    rdma: tuple[str, ...] = ()  #: ports, like mlx5_2:1
    warning_codes: tuple[str, ...] = ()
    source: str = "daemon"  #: where the topology is from: a daemon, "node.json" or "sysfs"
    trouble: str | None = None  #: how asking a daemon failed; None: it did not, or no daemon runs
    replayed: bool = False  #: the machine is another one than this

    def __init__(self, **fields: object) -> None:  # importing dataclasses is slow
        self.__dict__.update(fields)


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, dict.fromkeys(text.split(","))))


#: Field of a plan → its variable, its reader and its writer.
FIELDS: Mapping[str, tuple[str, Callable[[str], object], Callable[..., str]]] = {
    "switch": (SWITCH, read_switch, str),
    "cpus": (CPULIST, parse_list, format_list),
    "locality": ("AFFINITYD_LOCALITY", str, str),
    "allowed": (ALLOWED, parse_list, format_list),
    "gpus": (GPUS, parse_list, format_list),
    "nodes": ("AFFINITYD_NODES", parse_list, format_list),
    "memory_nodes": ("AFFINITYD_MEMORY_NODES", parse_list, format_list),
    "visible_memory": ("AFFINITYD_VISIBLE_MEMORY_NODES", parse_list, format_list),
    "threads": ("AFFINITYD_THREADS", int, str),
    "rdma": ("AFFINITYD_RDMA", _words, ",".join),
    "near": ("AFFINITYD_NEAR", parse_list, format_list),
    "warning_codes": ("AFFINITYD_WARNINGS", _words, ",".join),
}


def read_plan(text: str) -> ProcessPlan:
    """Read a plan of the format `shell`. Raises ValueError, one line, for any other text."""
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    visible = {name: values[name] for name in VISIBLE_NAMES if name in values}
    plan = ProcessPlan(visible=visible, replayed=REPLAYED in values)
    required = {"cpus", "allowed", "memory_nodes", "locality", "threads"}  # in all releases
    for field, (variable, read, _) in FIELDS.items():
        if field in required and variable not in values:
            raise ValueError(f"a plan without {variable!r}")
        try:
            if variable in values:
                setattr(plan, field, read(values[variable]))
        except AffinityError as error:
            raise ValueError(str(error)) from None
    if not plan.cpus or not plan.cpus <= plan.allowed:
        raise ValueError(f"a plan for {quote(values[CPULIST])}")
    if plan.threads < 1:
        raise ValueError(f"{plan.threads} threads")
    if plan.locality not in {"local", "mixed", "remote", "unknown"}:
        raise ValueError(f"locality {quote(plan.locality)}")
    return plan
