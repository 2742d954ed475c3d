"""One plan beside NVIDIA's gpu_affinity on the same machine, and how plans and discovery grow.

gpu_affinity runs its own code, with the machine's tree as its root and a stand-in for NVML, in the
process that times both. It looks the machine up at each call; affinityd did that before, and a
second row adds its discovery to each plan.

    python -m bench.planning [--rounds N] [--plot FILE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from affinityd.discovery import discover, open_tree
from affinityd.planner import Demand, Options
from affinityd.planner.planner import plan
from affinityd.topology.model import Topology
from bench.compare import fetch, stand_ins
from bench.compare.own_code import in_tree
from bench.compare.reported import Machine, Question, ReportedGpu
from bench.ratio import Ratio
from tests.support.machines.sysfs_tree import write_tree

CPUS, GPUS, NODES = 1024, 16, 8
PEER = "gpu_affinity"
TRIES = 5  #: of each point of a curve, of which the fastest counts

#: The points of each curve; the other sizes are CPUS and GPUS.
SIZES: Mapping[str, Sequence[int]] = {
    "CPUs": (64, 128, 256, 512, 1024, 2048, 4096),
    "GPUs": (1, 2, 4, 8, 16, 32, 64),
    "ranks": (1, 2, 4, 8, 16, 32, 64, 128, 256),
}


def machine(cpus: int = CPUS, gpus: int = GPUS) -> Machine:
    """Return a machine of 8 nodes in 2 packages; hyperthread c is beside c + cores."""
    cores = cpus // 2
    each = cores // NODES
    nodes = {
        node: frozenset(range(node * each, (node + 1) * each))
        | frozenset(range(cores + node * each, cores + (node + 1) * each))
        for node in range(NODES)
    }
    there = (
        ReportedGpu(f"{at // 32:04x}:{at % 32 + 1:02x}:00.0", at * NODES // gpus, None)
        for at in range(gpus)
    )
    online = frozenset(range(cpus))
    return Machine("made", "made", "nvidia", cores, 2, 2, online, None, nodes, tuple(there))


def beside_gpu_affinity(rounds: int) -> tuple[Ratio, ...]:
    """Return one plan's time by gpu_affinity's, if its code can be had."""
    where = f"{CPUS} CPUs, {GPUS} GPUs"
    goals = {"plan": (f"one plan, {where}", "≤ 0.2")}
    goals["discovery and plan"] = (f"discovery and one plan, {where}", "≤ 1")
    if fault := fetch.gpu_affinity():
        return tuple(Ratio(name, PEER, goal, lack=fault) for name, goal in goals.values())
    asked = machine()
    question = Question(asked, "whole", asked.online, tuple(range(GPUS)))
    reader, writer = os.pipe()

    def prepare() -> Callable[[int], object]:
        sys.modules["pynvml"] = stand_ins.pynvml(question)
        sys.path.insert(0, str(fetch.GPU_AFFINITY))
        peer = importlib.import_module("gpu_affinity")
        topology = asked.topology
        tree = open_tree("/")

        def ask_peer() -> None:
            os.sched_setaffinity(0, asked.online)  # it plans within the mask that it set before
            peer.set_affinity(0, GPUS)

        ways: dict[str, Callable[[], object]] = {
            PEER: ask_peer,
            "plan": lambda: planned(topology),
            "discovery and plan": lambda: planned(discover(tree, None)),
        }

        def bind(rank: int) -> None:
            if rank == 0:
                found = [
                    {name: _seconds(way) for name, way in ways.items()} for _ in range(rounds + 1)
                ]
                os.write(writer, json.dumps(found[1:]).encode())
            ask_peer()

        return bind

    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as folder:
        answer = in_tree(question, write_tree(asked.topology, Path(folder)), prepare)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found: list[dict[str, float]] = json.loads(pipe.read() or "[]")
    if not found:
        raise RuntimeError(str(answer.error))
    return tuple(
        Ratio(name, PEER, goal, [it[way] / it[PEER] for it in found])
        for way, (name, goal) in goals.items()
    )


def planned(topology: Topology, ranks: int | None = None) -> object:
    """Return the plan of one rank a GPU, or of so many on them in turn."""
    gpus = [topology.gpus[at % len(topology.gpus)] for at in range(ranks or len(topology.gpus))]
    options = Options(mode="node" if ranks else "unique_contiguous", share="requested")
    return plan(topology, Demand(tuple(gpus), topology.online, topology.online, options))


def _seconds(work: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    began = clock()
    work()
    return clock() - began


def _least(work: Callable[[], object], tries: int) -> float:
    """Return the CPU time of work, which other programs disturb less than the time on the clock."""
    return min(_seconds(work, process_time) for _ in range(tries))


def growth() -> dict[str, list[tuple[int, float]]]:
    """Return the CPU time of plans and discoveries, by sizes of the machine."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for what, sizes in SIZES.items():
        for size in sizes:
            topology = _sized(what, size)
            ranks = size if what == "ranks" else None
            found = _least(lambda: planned(topology, ranks), TRIES)  # noqa: B023
            curves.setdefault(f"plan, by {what}", []).append((size, found))
            if what != "ranks":
                curves.setdefault(f"discovery, by {what}", []).append((size, _discovery(topology)))
    return curves


def _sized(what: str, size: int) -> Topology:
    chosen = {"CPUs": {"cpus": size}, "GPUs": {"gpus": size}, "ranks": {}}[what]
    return machine(**chosen).topology


def _discovery(topology: Topology) -> float:
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-", dir="/dev/shm") as folder:
        tree = open_tree(str(write_tree(topology, Path(folder))))
        return _least(lambda: discover(tree, None), 2)


def exponent(curve: Sequence[tuple[int, float]]) -> float:
    """Return by which power of its size a curve grows over its last three points: 1 is linear."""
    (first, began), *_, (last, ended) = curve[-3:]
    return log2(ended / began) / log2(last / first)


def plot(curves: Mapping[str, Sequence[tuple[int, float]]], file: Path) -> None:
    """Draw the curves; both axes are logarithmic, so that linear growth is the dotted line."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "affinityd"
    figure, axes = importlib.import_module("matplotlib.pyplot").subplots(figsize=(7, 5))
    for name, curve in curves.items():
        axes.loglog(
            [size for size, _ in curve], [s / curve[0][1] for _, s in curve], marker=".", label=name
        )
    axes.loglog([1, 64], [1, 64], linestyle=":", color="grey", label="linear")
    axes.set_xlabel("size")
    axes.set_ylabel("CPU time, by that of the smallest size")
    axes.legend()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    for ratio in beside_gpu_affinity(arguments.rounds):
        print(ratio)
    curves = growth()
    for name, curve in curves.items():
        print(f"{name:22} grows by the power {exponent(curve):.2f} (goal ≤ 1.1)")
    if arguments.plot:
        plot(curves, arguments.plot)


if __name__ == "__main__":
    main()
