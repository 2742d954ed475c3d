"""Measures the node: a process for each NUMA node with CPUs, one after another.

A process is forked from one with one thread, and reports figure by figure. A driver that crashes or
hangs costs the figures that were not reported yet.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

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

PATIENCE = 30.0  #: seconds for one figure, with the start of a driver
GRACE = 2.0  #: seconds for a child to end by itself
OOM_FIRST = "1000"  #: oom_score_adj, proc(5): where memory is short, this process ends, no job

CPUINFO = "/proc/cpuinfo"
VIRTUAL = "this is a virtual machine, which may hide the host's NUMA nodes, or invent some"

Busy = Mapping[tuple[str, int], str]  #: key of a GPU that must be left alone → why
#: Takes each figure, its number from 1, and how many there are.
Progress = Callable[[Figure, int, int], None]


def measure(topology: Topology, busy: Busy, now: str, progress: Progress) -> Measurement:
    """Measure this machine. `now`: the time, for the document."""
    nodes = [node for node in topology.nodes_with_cpus if node is not None]
    total = sum(len(blanks(topology, node)) for node in nodes)
    figures: list[Figure] = []
    for node in nodes:
        for figure in measured(topology, node, busy):
            figures.append(figure)
            progress(figure, len(figures), total)
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


def measured_gpu(topology: Topology, gpu: Gpu) -> MeasuredGpu:
    """Return a GPU with the nodes of its near CPUs."""
    near = [node for node in vicinity(topology, [gpu]).nodes if node is not None]
    return MeasuredGpu(gpu.vendor, gpu.index, gpu.uuid, gpu.pci_bus_id, near)


def is_virtual(cpuinfo: str) -> bool:
    """Return whether the CPUs are a hypervisor's: the flag of x86, in /proc/cpuinfo."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def blanks(topology: Topology, node: int) -> list[Figure]:
    """Return the figures to be measured from a node's CPUs, in order, without values."""
    memory = [
        Figure(quantity, node, memory_node, None)
        for memory_node in topology.nodes_with_memory
        for quantity in OF_MEMORY
    ]
    return memory + [
        Figure(quantity, node, None, gpu.pci_bus_id)
        for gpu in topology.gpus
        for quantity in OF_GPUS
    ]


def measured(topology: Topology, node: int, busy: Busy) -> Iterator[Figure]:
    """Yield the figures from a node's CPUs as a child measures them, then those without a value.

    A child that crashes or hangs costs the rest.
    """
    left_alone = {gpu.pci_bus_id: busy[gpu.key] for gpu in topology.gpus if gpu.key in busy}
    missing = {(blank.quantity, blank.target): blank for blank in blanks(topology, node)}
    why = "the measuring process"
    try:
        for figure in _from_child(topology, node, busy):
            del missing[figure.quantity, figure.target]
            yield figure
    except ChildError as error:
        why += f" {error}"
    except TimeoutError:
        why += f" hung: no figure within {PATIENCE:g} s"
    for blank in missing.values():
        yield replace(blank, why=left_alone.get(blank.gpu or "", why))


def _from_child(topology: Topology, node: int, busy: Busy) -> Iterator[Figure]:
    """Yield a child's figures. Raises ChildError where it fails, TimeoutError where it hangs."""
    parent = os.getpid()

    def work() -> Iterator[bytes]:
        end_with(parent)  # also where a driver hangs
        gpus = [gpu for gpu in topology.gpus if gpu.key not in busy]
        yield from (f"{dumps(figure)}\n".encode() for figure in _figures(topology, node, gpus))
        yield b"\n"  # it has measured everything

    child = Child(work, PATIENCE)
    rest, grace, is_complete = b"", 0.0, False
    try:
        while part := child.read(time.monotonic() + PATIENCE):
            *lines, rest = (rest + part).split(b"\n")
            is_complete = b"" in lines
            yield from (loads(Figure, line.decode(), "figure") for line in lines if line)
        grace = GRACE
    finally:
        status = child.end(grace)
    if not is_complete:
        killed = "was killed, as the kernel does where memory is short"
        raise ChildError(killed if status == -signal.SIGKILL else ending(status))


def _figures(topology: Topology, node: int, gpus: Sequence[Gpu]) -> Iterator[Figure]:
    """Yield the figures of memory and of these GPUs from a node's CPUs, by this process."""
    with suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as file:
        file.write(OOM_FIRST)
    cpus = topology.cpus_of_node(node)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        why = "its CPUs are outside this process's cpuset"
        idle = {None, *(gpu.pci_bus_id for gpu in gpus)}
        yield from (
            replace(blank, why=why) for blank in blanks(topology, node) if blank.gpu in idle
        )
        return
    cache, memory_nodes = last_level_cache(min(cpus)), topology.nodes_with_memory
    is_one = len(memory_nodes) == 1  # then the place of memory is not checked
    for memory_node in memory_nodes:
        blank = partial(Figure, numa_node=node, memory_node=memory_node, gpu=None)
        its_cpus = topology.cpus_of_node(memory_node)
        try:
            with memory_on(memory_node, its_cpus, cache, is_one=is_one) as buffer:
                yield blank(READ, value=read_rate(buffer))
                yield blank(LATENCY, value=latency(buffer))
        except NotMeasuredError as error:
            yield from (blank(quantity, why=str(error)) for quantity in OF_MEMORY)
    home = topology.memory_node(node)
    if not gpus or home is None:
        return
    try:
        with memory_on(home, cpus, cache, is_one=is_one) as buffer:
            for gpu in gpus:
                for result in gpu_results(gpu.vendor, gpu.pci_bus_id, buffer):
                    quantity, value, refusal = result
                    yield Figure(quantity, node, None, gpu.pci_bus_id, value, refusal)
    except NotMeasuredError as error:
        for gpu in gpus:
            for quantity in OF_GPUS:
                yield Figure(quantity, node, None, gpu.pci_bus_id, why=str(error))
