"""Measures the node: a process for each NUMA node with CPUs, one after another.

A process is forked from one with one thread, and reports figure by figure. A driver that crashes or
hangs costs the figures that were not reported yet.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from affinityd.cpuset import CpuSet
from affinityd.json_codec import dumps, loads
from affinityd.linux.children import Child, ChildError, ending
from affinityd.linux.files import text
from affinityd.linux.syscalls import end_with
from affinityd.measure.document import (
    LATENCY,
    OF_GPUS,
    OF_MEMORY,
    READ,
    VERSION,
    Figure,
    MeasuredGpu,
    Measurement,
    Target,
    sentence,
)
from affinityd.measure.gpus import gpu_results
from affinityd.measure.memory import (
    NotMeasuredError,
    last_level_cache,
    latency,
    memory_on,
    read_rate,
)
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import vicinity


@dataclass(frozen=True)
class MemoryTarget:
    """A node whose memory is read, and its CPUs, from which it is filled; it may have none."""

    node: int
    cpus: CpuSet


@dataclass(frozen=True)
class NodeTask:
    """The work of one process, on the CPUs of one node."""

    node: int
    cpus: CpuSet
    memory: tuple[MemoryTarget, ...]
    gpus: tuple[Gpu, ...]
    home: int | None  #: the node of the memory that is copied: its own, else the nearest
    is_one_node: bool  #: one node alone has memory: then the place of memory is not checked

    @property
    def blanks(self) -> Iterator[Figure]:
        """The figures to be measured, in order, without values."""
        for target in self.memory:
            for quantity in OF_MEMORY:
                yield Figure(quantity, self.node, target.node, None)
        for gpu in self.gpus:
            for quantity in OF_GPUS:
                yield Figure(quantity, self.node, None, gpu.pci_bus_id)

    def after(self, target: Target) -> NodeTask:
        """Return the rest of it, after a target."""
        order = list(dict.fromkeys(figure.target for figure in self.blanks))
        left = order[order.index(target) + 1 :]
        return replace(
            self,
            memory=tuple(target for target in self.memory if target.node in left),
            gpus=tuple(gpu for gpu in self.gpus if gpu.pci_bus_id in left),
        )


def tasks(topology: Topology, gpus: Collection[Gpu]) -> list[NodeTask]:
    """Return the tasks for a machine and these GPUs of it, by ascending node."""
    memory = tuple(
        MemoryTarget(node, topology.cpus_of_node(node)) for node in topology.nodes_with_memory
    )
    return [
        NodeTask(
            node,
            topology.cpus_of_node(node),
            memory,
            tuple(gpus),
            home=topology.memory_node(node),
            is_one_node=len(memory) == 1,
        )
        for node in topology.nodes_with_cpus
        if node is not None
    ]


def measured_gpu(topology: Topology, gpu: Gpu) -> MeasuredGpu:
    """Return a GPU with the nodes of its near CPUs."""
    near = [node for node in vicinity(topology, [gpu]).nodes if node is not None]
    return MeasuredGpu(gpu.vendor, gpu.index, gpu.uuid, gpu.pci_bus_id, near)


PATIENCE = 30.0  #: seconds for one figure, with the start of a driver
GRACE = 2.0  #: seconds for a child to end by itself
OOM_FIRST = "1000"  #: oom_score_adj, proc(5): where memory is short, this process ends, no job


def measured(task: NodeTask) -> Iterator[Figure]:
    """Yield the task's figures as they are measured.

    A child that crashes costs its present target, and another goes on with the next one. A child
    that hangs costs the rest.
    """
    missing = {(blank.quantity, blank.target): blank for blank in task.blanks}
    try:
        for figure in _from_child(task):
            missing.pop((figure.quantity, figure.target), None)
            yield figure
    except ChildError as error:
        first = next(iter(missing.values())).target
        lost = [blank for blank in missing.values() if blank.target == first]
        yield from (replace(blank, why=f"the measuring process {error}") for blank in lost)
        if len(lost) < len(missing):
            yield from measured(task.after(first))
    except TimeoutError:
        why = f"the measuring process hung: no figure within {PATIENCE:g} s"
        yield from (replace(blank, why=why) for blank in missing.values())


def _from_child(task: NodeTask) -> Iterator[Figure]:
    parent = os.getpid()

    def work() -> Iterator[bytes]:
        end_with(parent)  # also where a driver hangs
        yield from (f"{dumps(figure)}\n".encode() for figure in _figures(task))

    child = Child(work, PATIENCE)
    rest, grace, reported = b"", 0.0, 0
    try:
        while part := child.read(time.monotonic() + PATIENCE):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                reported += 1
                yield loads(Figure, line.decode(), "figure")
        grace = GRACE
    finally:
        status = child.end(grace)
    if reported < len([*task.blanks]):
        killed = "was killed, as the kernel does where memory is short"
        raise ChildError(killed if status == -signal.SIGKILL else ending(status))


def _figures(task: NodeTask) -> Iterator[Figure]:
    with suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as file:
        file.write(OOM_FIRST)
    try:
        os.sched_setaffinity(0, task.cpus)
    except OSError:
        why = "its CPUs are outside this process's cpuset"
        yield from (replace(blank, why=why) for blank in task.blanks)
        return
    cache = last_level_cache(min(task.cpus))
    for target in task.memory:
        yield from _memory_figures(task, target, cache)
    if task.gpus and task.home is not None:
        yield from _gpu_figures(task, task.home, cache)


def _memory_figures(task: NodeTask, target: MemoryTarget, cache: int) -> Iterator[Figure]:
    blank = partial(Figure, numa_node=task.node, memory_node=target.node, gpu=None)
    try:
        with memory_on(target.node, target.cpus, cache, is_one=task.is_one_node) as buffer:
            yield blank(READ, value=read_rate(buffer))
            yield blank(LATENCY, value=latency(buffer))
    except NotMeasuredError as error:
        yield from (blank(quantity, why=str(error)) for quantity in OF_MEMORY)


def _gpu_figures(task: NodeTask, home: int, cache: int) -> Iterator[Figure]:
    try:
        with memory_on(home, task.cpus, cache, is_one=task.is_one_node) as buffer:
            for gpu in task.gpus:
                for quantity, value, why in gpu_results(gpu.vendor, gpu.pci_bus_id, buffer):
                    yield Figure(quantity, task.node, None, gpu.pci_bus_id, value, why)
    except NotMeasuredError as error:
        yield from (
            replace(blank, why=str(error)) for blank in task.blanks if blank.gpu is not None
        )


CPUINFO = "/proc/cpuinfo"
VIRTUAL = "this is a virtual machine, which may hide the host's NUMA nodes, or invent some"

#: Takes each figure, and how many there are.
Progress = Callable[[Figure, int], None]


def measure(
    topology: Topology, busy: Mapping[tuple[str, int], str], now: str, progress: Progress
) -> Measurement:
    """Measure a machine, the one that this runs on.

    `busy`: key of a GPU that must be left alone → why. `now`: the time, for the document.
    """
    whole = tasks(topology, topology.gpus)
    total = sum(len([*task.blanks]) for task in whole)
    figures: list[Figure] = []
    for task in whole:
        for figure in _measured(task, busy):
            figures.append(figure)
            progress(figure, total)
    gpus = [measured_gpu(topology, gpu) for gpu in topology.gpus]
    return Measurement(
        version=VERSION,
        node=topology.name,
        time=now,
        sentence=sentence(figures, gpus, nodes=len(topology.nodes_with_cpus)),
        gpus=gpus,
        figures=figures,
        notices=[VIRTUAL] if is_virtual(text(CPUINFO)) else [],
    )


def is_virtual(cpuinfo: str) -> bool:
    """Return whether the CPUs are a hypervisor's: the flag of x86, in /proc/cpuinfo."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def _measured(task: NodeTask, busy: Mapping[tuple[str, int], str]) -> Iterator[Figure]:
    idle = tuple(gpu for gpu in task.gpus if gpu.key not in busy)
    yield from measured(replace(task, gpus=idle))
    left = {gpu.pci_bus_id: busy[gpu.key] for gpu in task.gpus if gpu.key in busy}
    yield from (replace(blank, why=left[blank.gpu]) for blank in task.blanks if blank.gpu in left)
