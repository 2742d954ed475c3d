"""Measures the node: a process for each NUMA node with CPUs, in turns.

A process is forked from one with one thread, waits for its turn in each round, and reports figure
by figure. A driver that crashes or hangs costs the figures that were not reported yet.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from affinityd.json_codec import dumps, loads
from affinityd.linux.children import Child, ChildError, ending
from affinityd.linux.files import text
from affinityd.linux.syscalls import end_with
from affinityd.measure.document import (
    OF_GPUS,
    READ,
    TO_ALL_DEVICES,
    VERSION,
    Figure,
    MeasuredGpu,
    Measurement,
    Target,
    compared,
    sentence,
)
from affinityd.measure.gpus import figures_at_once, gpu_figures, missing
from affinityd.measure.memory import NotMeasuredError, memory_on, read_rate
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import vicinity

ROUNDS = 7
PATIENCE = 30.0  #: seconds for one figure, with the start of a driver
GRACE = 2.0  #: seconds for a child to end by itself
GO = signal.SIGUSR1  #: tells a child to take its next step
STEP_ENDS = b""  #: the line of a child behind a step
OOM_FIRST = "1000"  #: oom_score_adj, proc(5): where memory is short, this process ends, no job

CPUINFO, LOADAVG = "/proc/cpuinfo", "/proc/loadavg"
VIRTUAL = "this is a virtual machine, which may hide the host's NUMA nodes, or invent some"
SOME_LOAD = 0.1  #: runnable threads for each CPU beside which figures vary

Busy = Mapping[tuple[str, int], str]  #: key of a GPU that must be left alone → why
Progress = Callable[[str], None]  #: takes what is measured now; "": all is
Phase = Mapping[int, Sequence[Gpu]]  #: NUMA node of CPUs → the GPUs that it copies to at once


def measure(
    topology: Topology, busy: Busy, now: str, progress: Progress, *, at_once: bool = False
) -> Measurement:
    """Measure this machine in rounds, in each of which every node has its turn.

    So a disturbance meets near and far alike. `now`: the time, for the document. `at_once`: also
    copies to all GPUs at the same time, from near CPUs, and from far ones.
    """
    flags = next((it for it in text(CPUINFO).splitlines() if it.startswith("flags")), "")
    notices = [VIRTUAL] if "hypervisor" in flags.split() else []  # of x86
    load, cpus = float((text(LOADAVG).split() or ["0"])[0]), len(topology.online)
    if load >= SOME_LOAD * cpus:
        notices.append(f"other work ran when this began: a load of {load:g} on {cpus} CPUs")
    gpus = [measured_gpu(topology, gpu) for gpu in topology.gpus]
    idle = [gpu for gpu in topology.gpus if gpu.key not in busy]
    phases = phases_at_once(topology, idle) if at_once else []
    nodes = [
        _Node(topology, node, idle, phases) for node in topology.nodes_with_cpus if node is not None
    ]
    try:
        for number in range(ROUNDS):
            for node in nodes[:: -1 if number % 2 else 1]:
                progress(f"round {number + 1} of {ROUNDS}: from node {node.number}")
                node.go()
                node.collect()
            for _ in phases:
                progress(f"round {number + 1} of {ROUNDS}: all GPUs at once")
                for node in nodes:
                    node.go()  # it prepares its copies
                    node.collect()
                for node in nodes:
                    node.go()
                for node in nodes:
                    node.collect()
    finally:
        progress("")
        for node in nodes:
            node.end()
    figures = [figure for node in nodes for figure in node.figures(busy)]
    comparisons = compared(figures, gpus)
    return Measurement(
        version=VERSION,
        node=topology.name,
        time=now,
        sentence=sentence(comparisons, nodes=len(topology.nodes_with_cpus)),
        comparisons=comparisons,
        gpus=gpus,
        figures=figures,
        notices=notices,
    )


def measured_gpu(topology: Topology, gpu: Gpu) -> MeasuredGpu:
    """Return a GPU with the nodes of its near CPUs."""
    near = [node for node in vicinity(topology, [gpu]).nodes if node is not None]
    return MeasuredGpu(gpu.vendor, gpu.index, gpu.uuid, gpu.pci_bus_id, near)


def phases_at_once(topology: Topology, gpus: Sequence[Gpu]) -> list[Phase]:
    """Return which node copies to which GPUs: each GPU's near node, then a far one.

    Far is half way round from near, so that GPUs of several nodes do not meet on one. GPUs without
    a near and a far node are left out.
    """
    nodes = [node for node in topology.nodes_with_cpus if node is not None]
    near: dict[int, list[Gpu]] = {}
    far: dict[int, list[Gpu]] = {}
    for gpu in gpus:
        homes = [node for node in measured_gpu(topology, gpu).near if node in nodes]
        others = [node for node in nodes if node not in homes]
        if homes and others:
            place = (nodes.index(homes[0]) + len(nodes) // 2) % len(nodes)
            away = nodes[place] if nodes[place] in others else others[0]
            near.setdefault(homes[0], []).append(gpu)
            far.setdefault(away, []).append(gpu)
    return [near, far] if near else []


def blanks(topology: Topology, node: int, phases: Sequence[Phase] = ()) -> list[Figure]:
    """Return the figures to be measured from a node's CPUs, in order, without values."""
    at_once = [gpu for phase in phases for gpu in phase.get(node, ())]
    of_gpus = [(gpu, quantity) for gpu in topology.gpus for quantity in OF_GPUS]
    of_gpus += [(gpu, TO_ALL_DEVICES) for gpu in at_once]
    return [
        *(Figure(READ, node, memory_node, None) for memory_node in topology.nodes_with_memory),
        *(Figure(quantity, node, None, gpu.pci_bus_id) for gpu, quantity in of_gpus),
    ]


class _Node:
    """A child on the CPUs of a NUMA node, which measures step by step, and what it reported.

    A child that crashes or hangs costs what it had not reported.
    """

    def __init__(
        self, topology: Topology, number: int, gpus: Sequence[Gpu], phases: Sequence[Phase]
    ) -> None:
        """Start nothing yet. `gpus`: those that may be measured."""
        self.number = number
        self._topology, self._gpus, self._phases = topology, gpus, phases
        self._child: Child | None = None
        self._rest = b""
        self._values: defaultdict[tuple[str, Target], list[float]] = defaultdict(list)
        self._reasons: dict[tuple[str, Target], str | None] = {}
        self._why: str | None = None  #: the child has failed

    def go(self) -> None:
        """Begin the next step; the first one forks."""
        if self._why is not None:
            return
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, GO)
            return
        here = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, self._topology.cpus_of_node(self.number))  # the child's, too
            self._child = Child(partial(self._work, os.getpid()), PATIENCE)
        except OSError:
            self._why = "its CPUs are outside this process's cpuset"
        except ChildError as error:
            self._why = f"the measuring process {error}"
        finally:
            os.sched_setaffinity(0, here)

    def collect(self) -> None:
        """Wait for the end of the step, and keep its figures."""
        while self._child is not None and self._why is None:
            line, is_line, rest = self._rest.partition(b"\n")
            if is_line:
                self._rest = rest
                if line == STEP_ENDS:
                    return
                figure = loads(Figure, line.decode(), "figure")
                name = figure.quantity, figure.target
                if figure.value is None:
                    self._reasons[name] = figure.why
                else:
                    self._values[name].append(figure.value)
                continue
            try:
                part = self._child.read(time.monotonic() + PATIENCE)
            except TimeoutError:
                self._why = f"the measuring process hung: no figure within {PATIENCE:g} s"
                return
            self._rest += part
            if not part:
                status, self._child = self._child.end(GRACE), None
                killed = "was killed, as the kernel does where memory is short"
                how = killed if status == -signal.SIGKILL else ending(status)
                self._why = f"the measuring process {how}"

    def end(self) -> None:
        """End the child, which waits for its next turn, or hangs."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def figures(self, busy: Busy) -> Iterator[Figure]:
        """Yield a figure for each blank one: the median of its rounds, or why there is none."""
        alone = {gpu.pci_bus_id: busy[gpu.key] for gpu in self._topology.gpus if gpu.key in busy}
        for blank in blanks(self._topology, self.number, self._phases):
            name = blank.quantity, blank.target
            if values := self._values.get(name):
                yield replace(blank, value=median(values), values=tuple(values))
            else:
                why = alone.get(blank.gpu or "") or self._reasons.get(name) or self._why
                yield replace(blank, why=why)

    def _work(self, parent: int) -> Iterator[bytes]:
        end_with(parent)  # also where a driver hangs
        signal.pthread_sigmask(signal.SIG_BLOCK, {GO})
        with suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as file:
            file.write(OOM_FIRST)
        for figure in self._steps():
            if figure is not None:
                yield f"{dumps(figure)}\n".encode()
                continue
            yield STEP_ENDS + b"\n"
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # the others' steps may take longer
            signal.sigwait({GO})
            signal.setitimer(signal.ITIMER_REAL, PATIENCE + GRACE)

    def _steps(self) -> Iterator[Figure | None]:
        """Yield the figures of this process, and None behind each step."""
        for _ in range(ROUNDS):
            yield from _one_by_one(self._topology, self.number, self._gpus)
            yield None
            for phase in self._phases:
                yield from _at_once(self._topology, self.number, phase.get(self.number, ()))
                yield None


def _one_by_one(topology: Topology, node: int, gpus: Sequence[Gpu]) -> Iterator[Figure]:
    """Yield the figures of memory and of these GPUs, one after another."""
    for memory_node in topology.nodes_with_memory:
        blank = Figure(READ, node, memory_node, None)
        try:
            with memory_on(topology, memory_node, reader=node) as buffer:
                yield replace(blank, value=read_rate(buffer))
        except NotMeasuredError as error:
            yield replace(blank, why=str(error))
    home = topology.memory_node(node)
    if not gpus or home is None:
        return
    try:
        with memory_on(topology, home, reader=node) as buffer:
            for gpu in gpus:
                yield from gpu_figures(gpu, node, buffer)
    except NotMeasuredError as error:
        yield from (missing(gpu, node, it, error) for gpu in gpus for it in OF_GPUS)


def _at_once(topology: Topology, node: int, gpus: Sequence[Gpu]) -> Iterator[Figure | None]:
    """Yield None when this node's copies can start, and then their figures."""
    home = topology.memory_node(node)
    if not gpus or home is None:
        yield None
        return
    try:
        with memory_on(topology, home, reader=node) as buffer:
            yield from figures_at_once(gpus, node, buffer)
    except NotMeasuredError as error:
        yield from (missing(gpu, node, TO_ALL_DEVICES, error) for gpu in gpus)
        yield None
