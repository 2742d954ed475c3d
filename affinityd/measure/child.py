"""One task in a process of its own, on the node's CPUs, that reports figure by figure.

It is forked from a process with one thread. A driver that crashes or hangs costs the figures that
were not reported yet.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from traceback import print_exc
from typing import NoReturn

from affinityd.linux.children import exit_status
from affinityd.linux.syscalls import end_with
from affinityd.measure.document import LATENCY, OF_MEMORY, READ, Figure
from affinityd.measure.gpus import gpu_results
from affinityd.measure.memory import (
    NotMeasuredError,
    last_level_cache,
    latency,
    memory_on,
    read_rate,
)
from affinityd.measure.tasks import MemoryTarget, NodeTask

PATIENCE = 30.0  #: seconds for one figure, with the start of a driver
GRACE = 2.0  #: seconds for a child to end by itself, and for a killed one
PAUSE = 0.01  #: seconds between two looks whether it has ended
OOM_FIRST = "1000"  #: oom_score_adj, proc(5): where memory is short, this process ends, no job


def measured(task: NodeTask) -> Iterator[Figure]:
    """Yield the task's figures as they are measured.

    A child that crashes costs its present target, and another goes on with the next one. A child
    that hangs costs the rest.
    """
    ours, theirs = Pipe(duplex=False)
    missing = {_name(blank): blank for blank in task.blanks}
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        _be_child(task, theirs, parent)
    theirs.close()
    grace, hung = 0.0, f"hung: no figure within {PATIENCE:g} s"
    try:
        while ours.poll(PATIENCE):
            figure = ours.recv()
            missing.pop(_name(figure), None)
            yield figure
    except EOFError:
        grace, hung = GRACE, ""
    finally:
        ours.close()
        how = _end(pid, grace)
    if missing:
        first = next(iter(missing.values())).target
        why = f"the measuring process {hung or how}"
        lost = [it for it in missing.values() if hung or it.target == first]
        yield from (replace(it, why=why) for it in lost)
        if len(lost) < len(missing):
            yield from measured(task.after(first))


def _name(figure: Figure) -> tuple[object, ...]:
    return figure.quantity, figure.target


def _end(pid: int, grace: float) -> str:
    """Wait for a child, kill one that goes on after `grace` seconds; return how it ended."""
    for seconds, is_killed in ((grace, False), (GRACE, True)):
        end = time.monotonic() + seconds
        while True:
            if (code := exit_status(pid)) == -signal.SIGKILL and not is_killed:
                return "was killed, as the kernel does where memory is short"
            if code is not None:
                return f"crashed: {signal.strsignal(-code)}" if code < 0 else "ended early"
            if time.monotonic() >= end:
                break
            time.sleep(PAUSE)
        os.kill(pid, signal.SIGKILL)
    return "cannot be ended: it waits in the kernel"


def _be_child(task: NodeTask, pipe: Connection, parent: int) -> NoReturn:
    """Report the figures, and end without what the parent would do at its end."""
    try:
        end_with(parent)  # also where a driver hangs
        os.dup2(2, 1)  # output of a driver's library is no part of the answer
        for figure in _figures(task):
            pipe.send(figure)
    except OSError:  # the parent has ended
        pass
    except Exception:  # noqa: BLE001 - the parent's code must not go on here
        print_exc()
    finally:
        os._exit(0)


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
        yield from (replace(it, why=str(error)) for it in task.blanks if it.gpu is not None)
