"""One plan beside NVIDIA's gpu_affinity on the same machine.

gpu_affinity runs its own code, with the machine's tree as its root and a stand-in for NVML, in the
process that times both. It looks the machine up at each call; affinityd did that before, and a
second row adds its discovery to each plan.

    python -m bench.planning [--rounds N]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

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


def machine() -> Machine:
    """Return a machine of 8 nodes in 2 packages; hyperthread c is beside c + cores."""
    cores = CPUS // 2
    each = cores // NODES
    nodes = {
        node: frozenset(range(node * each, (node + 1) * each))
        | frozenset(range(cores + node * each, cores + (node + 1) * each))
        for node in range(NODES)
    }
    there = (
        ReportedGpu(f"{at // 32:04x}:{at % 32 + 1:02x}:00.0", at * NODES // GPUS, None)
        for at in range(GPUS)
    )
    online = frozenset(range(CPUS))
    return Machine("made", "made", "nvidia", cores, 2, 2, online, None, nodes, tuple(there))


def measure(rounds: int = 30) -> tuple[Ratio, ...]:
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


def planned(topology: Topology) -> object:
    """Return the plan of one rank a GPU."""
    options = Options(mode="unique_contiguous", share="requested")
    return plan(topology, Demand(topology.gpus, topology.online, topology.online, options))


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    for ratio in measure(parser.parse_args().rounds):
        print(ratio)


if __name__ == "__main__":
    main()
