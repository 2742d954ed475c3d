"""The reported machines, and the questions about each of them.

Sources are public issue threads, named in tests/data/reported_machines.tsv. A report gives a
machine's NUMA nodes and which one each GPU is on. It does not give PCI bus ids (here they follow
the GPUs' order), distances (here: nodes of one package are nearer than those of two), or the
numbering of hyperthreads (here: Linux's usual one, c and c + cores, unless the nodes rule that
out).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.machines import build
from affinityd.topology.model import Topology
from tests.support.paths import DATA

REPORTS = DATA / "reported_machines.tsv"

#: Distances of the SLIT between nodes of one package, and of two.
SAME_PACKAGE, OTHER_PACKAGE = 12, 21


def union(sets: Iterable[CpuSet]) -> CpuSet:
    return frozenset[int]().union(*sets)


@dataclass(frozen=True)
class ReportedGpu:
    pci_bus_id: str
    node: int | None  #: None: the report does not say, or names several nodes
    shown: str | None  #: the CPU affinity as printed, if the display cut it


@dataclass(frozen=True)
class Machine:
    source: str
    name: str
    vendor: str
    cores: int | None  #: None: cores differ in their CPUs, and the report does not say how
    threads: int
    sockets: int
    online: CpuSet
    cpuset: CpuSet | None  #: the reporter's cpuset, as far as the report shows it
    nodes: Mapping[int, CpuSet]
    gpus: tuple[ReportedGpu, ...]

    @property
    def unfit(self) -> str | None:
        """Return why the report does not suffice to judge a placement; None: it suffices."""
        if self.cores is None:
            return "cores of several kinds, in an order that is not reported"
        if len(self.cpu_nodes) > 1 and any(gpu.node is None for gpu in self.gpus):
            return "a virtual machine that hides which node a GPU is on"
        return None

    @property
    def cpu_nodes(self) -> list[int]:
        return [node for node, cpus in self.nodes.items() if cpus]

    def gpu_node(self, gpu: int) -> int:
        """Return the node of a GPU; if the report names none, the only node with CPUs."""
        node = self.gpus[gpu].node
        return self.cpu_nodes[0] if node is None else node

    @cached_property
    def siblings(self) -> str:
        """Return how hyperthreads are numbered: "split", or "adjacent" if nodes exclude that."""
        return "split" if self._fits("split") else "adjacent"

    def _fits(self, siblings: str) -> bool:
        owners = {cpu: node for node, cpus in self.nodes.items() for cpu in cpus}
        return all(len({owners[cpu] for cpu in core}) == 1 for core in self._cores(siblings))

    def _cores(self, siblings: str) -> list[CpuSet]:
        cores = self.cores or 0
        first, step = (1, cores) if siblings == "split" else (self.threads, 1)
        return [
            frozenset(range(core * first, core * first + self.threads * step, step))
            for core in range(cores)
        ]

    @cached_property
    def core_of(self) -> Mapping[int, CpuSet]:
        """Return the online CPUs of each CPU's core."""
        cores = [core & self.online for core in self._cores(self.siblings)]
        return {cpu: core for core in cores for cpu in core}

    @cached_property
    def packages(self) -> Mapping[int, CpuSet]:
        """Return the packages' CPUs: nodes, or cores if nodes are too few, are divided in order."""
        parts = [self.nodes[node] for node in self.cpu_nodes]
        if len(parts) % self.sockets:
            parts = self._cores(self.siblings)
        size = len(parts) // self.sockets
        starts = range(0, len(parts), size)
        return {at // size: union(parts[at : at + size]) for at in starts}

    def distance(self, one: int, other: int) -> int:
        """Return the distance that the machine's table of distances has."""
        both = self.nodes[one], self.nodes[other]
        near = any(cpus & both[0] and cpus & both[1] for cpus in self.packages.values())
        return 10 if one == other else SAME_PACKAGE if near else OTHER_PACKAGE

    @cached_property
    def topology(self) -> Topology:
        """Return the machine as affinityd builds its own machines."""
        nodes = list(self.nodes)
        facts = {
            "name": self.source,
            "cores": self.cores,
            "threads": self.threads,
            "siblings": self.siblings,
            "online": format_list(self.online),
            "packages": {str(it): format_list(cpus) for it, cpus in self.packages.items()},
            "nodes": [
                {"nodes": str(it), "cpus": format_list(cpus), "memory_mib": 1024}
                for it, cpus in self.nodes.items()
            ],
            "cores_per_llc": None,
            "distances": [
                [str(one), str(other), self.distance(one, other)]
                for one in nodes
                for other in nodes
            ],
            "gpus": [
                {
                    "vendor": self.vendor,
                    "devices": [{"pci": it.pci_bus_id, "node": it.node} for it in self.gpus],
                }
            ],
        }
        return build(facts)


@dataclass(frozen=True)
class Question:
    """Where does each rank run? Rank i drives the i-th GPU of `order`."""

    machine: Machine
    kind: str
    allowed: CpuSet
    order: tuple[int, ...]
    is_apart: bool = False  #: each rank is a job of its own, which sees only its GPU

    @property
    def visible(self) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES."""
        return ",".join(map(str, self.order))

    @property
    def jobs(self) -> list[Question]:
        if not self.is_apart:
            return [self]
        return [replace(self, order=(gpu,), is_apart=False) for gpu in self.order]


#: The kinds of questions, which bench/machines.md explains.
KINDS = ("whole", "reversed", "reporter's", "one node's", "other nodes'", "apart")


def questions(machine: Machine) -> Iterator[Question]:
    """Yield the questions that differ: on a small machine some are the same."""
    order = tuple(range(len(machine.gpus)))
    whole = Question(machine, "whole", machine.online, order)
    first = machine.nodes[machine.cpu_nodes[0]] & machine.online
    yield whole
    if len(order) > 1:
        yield replace(whole, kind="reversed", order=order[::-1])
        yield replace(whole, kind="apart", is_apart=True)
    if machine.cpuset:
        yield replace(whole, kind="reporter's", allowed=machine.cpuset)
    if len(machine.cpu_nodes) > 1:
        yield replace(whole, kind="one node's", allowed=first)
    if len(machine.cpu_nodes) > 2:
        others = machine.online - machine.nodes[machine.gpu_node(0)]
        yield replace(whole, kind="other nodes'", allowed=others)


def machines() -> list[Machine]:
    """Return every reported machine whose nodes are known, including the unfit machines."""
    lines = REPORTS.read_text().splitlines()
    return [_machine(line.split("\t")) for line in lines if not line.startswith("#")]


def _machine(columns: list[str]) -> Machine:
    source, name, vendor, cores, threads, sockets, online, cpuset, nodes, gpus = columns
    lists = dict(pair.split("=") for pair in nodes.split())
    sets = {int(node): parse_list(cpus) for node, cpus in lists.items()}
    return Machine(
        source=source,
        name=name,
        vendor=vendor,
        cores=None if cores == "?" else int(cores),
        threads=int(threads),
        sockets=int(sockets),
        online=union(sets.values()) if online == "-" else parse_list(online),
        cpuset=None if cpuset == "-" else parse_list(cpuset),
        nodes=sets,
        gpus=tuple(_gpu(number, text) for number, text in enumerate(gpus.split())),
    )


def _gpu(number: int, text: str) -> ReportedGpu:
    pci, _, place = text.rpartition("=")
    node, _, shown = place.partition("|")
    return ReportedGpu(
        pci or f"0000:{16 * (number + 1):02x}:00.0",
        int(node) if node.isdigit() else None,
        shown or None,
    )
