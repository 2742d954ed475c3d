"""Measures the node: a process for each NUMA node with CPUs, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from affinityd.linux.files import text
from affinityd.measure.child import measured
from affinityd.measure.document import VERSION, Figure, Measurement
from affinityd.measure.ratios import sentence
from affinityd.measure.tasks import NodeTask, measured_gpu, tasks
from affinityd.topology.model import Topology

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
        for figure in _figures(task, busy):
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


def _figures(task: NodeTask, busy: Mapping[tuple[str, int], str]) -> Iterator[Figure]:
    """Yield the figures of a task; those of busy GPUs say so."""
    idle = tuple(gpu for gpu in task.gpus if gpu.key not in busy)
    yield from measured(replace(task, gpus=idle))
    left = {gpu.pci_bus_id: busy[gpu.key] for gpu in task.gpus if gpu.key in busy}
    yield from (replace(it, why=left[it.gpu]) for it in task.blanks if it.gpu in left)
