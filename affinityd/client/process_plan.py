"""A process's plan, as its clients use it."""

from __future__ import annotations

from affinityd import config
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import AffinityError
from affinityd.text import quote

LOCALITIES = ("local", "mixed", "remote", "unknown")


class ProcessPlan:
    """A process's plan, as a daemon answered it, or as it was made here."""

    cpus: CpuSet
    allowed: CpuSet
    memory_nodes: CpuSet
    visible_memory: CpuSet  #: the nodes near any GPU that it sees
    near: CpuSet | None  #: of the allowed CPUs; told where others were added
    gpus: CpuSet  #: the node's own indices; none where they are not certain
    nodes: CpuSet  #: the home nodes
    locality: str
    threads: int
    switch: str
    rdma: tuple[str, ...]  #: ports, like mlx5_2:1
    warnings: tuple[str, ...]
    source: str = "daemon"  #: of the topology: or "node.json" or "sysfs"
    trouble: str | None = None  #: why no daemon planned it; None: there was none, or no trouble
    replayed: str | None = None  #: the setting that names another machine than this one

    def __init__(self, **fields: object) -> None:  # a dataclass takes as long as Python's start
        self.__dict__.update(fields)


def read_plan(text: str) -> ProcessPlan:
    """Read a plan of the format `shell`. Raises ValueError, one line, for a text that is none."""
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    try:
        near = values.get("AFFINITYD_NEAR")
        plan = ProcessPlan(
            cpus=parse_list(values["AFFINITYD_CPULIST"]),
            allowed=parse_list(values["AFFINITYD_ALLOWED"]),
            memory_nodes=parse_list(values["AFFINITYD_MEMORY_NODES"]),
            visible_memory=parse_list(values.get("AFFINITYD_VISIBLE_MEMORY_NODES", "")),
            near=None if near is None else parse_list(near),
            gpus=parse_list(values.get("AFFINITYD_GPUS", "")),
            nodes=parse_list(values.get("AFFINITYD_NODES", "")),
            locality=values["AFFINITYD_LOCALITY"],
            threads=int(values["AFFINITYD_THREADS"]),
            switch=config.read_switch(values.get(config.SWITCH, "")),
            rdma=_words(values.get("AFFINITYD_RDMA", "")),
            warnings=_words(values.get("AFFINITYD_WARNINGS", "")),
        )
    except KeyError as error:
        raise ValueError(f"a plan without {error}") from None
    except AffinityError as error:
        raise ValueError(str(error)) from None
    if not plan.cpus or not plan.cpus <= plan.allowed:
        raise ValueError(f"a plan for {quote(values['AFFINITYD_CPULIST'])}")
    if plan.threads < 1:
        raise ValueError(f"{plan.threads} threads")
    if plan.locality not in LOCALITIES:
        raise ValueError(f"locality {quote(plan.locality)}")
    return plan


def _words(text: str) -> tuple[str, ...]:
    """Return the different words that commas separate."""
    return tuple(filter(None, dict.fromkeys(text.split(","))))
