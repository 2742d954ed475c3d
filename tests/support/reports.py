"""A reported machine that a test makes: two nodes of four cores, two CPUs a core, four GPUs."""

from dataclasses import replace

from affinityd.cpuset import parse_list
from bench.compare.reported import Machine, Question, ReportedGpu

#: Node 0 has the CPUs 0-3 and 8-11, and the GPUs 0 and 2.
TWO_NODES = Machine(
    source="made",
    name="made",
    vendor="nvidia",
    cores=8,
    threads=2,
    sockets=2,
    online=parse_list("0-15"),
    cpuset=None,
    nodes={0: parse_list("0-3,8-11"), 1: parse_list("4-7,12-15")},
    gpus=tuple(ReportedGpu(f"0000:{bus}0:00.0", bus % 2, None) for bus in range(4)),
)
#: The same CPUs in one node; the report does not say on which one the GPUs are.
ONE_NODE = replace(
    TWO_NODES,
    sockets=1,
    nodes={0: TWO_NODES.online},
    gpus=tuple(replace(gpu, node=None) for gpu in TWO_NODES.gpus),
)
MACHINES = {
    "two nodes": TWO_NODES,
    "one node": ONE_NODE,
    "node 0": replace(TWO_NODES, sockets=1, nodes=ONE_NODE.nodes, gpus=TWO_NODES.gpus[::2]),
}


def asked(machine: str, allowed: str, gpus: str) -> Question:
    """Return the question of a job that has these CPUs and sees these GPUs."""
    order = tuple(int(gpu) for gpu in gpus.split(","))
    return Question(MACHINES[machine], "whole", parse_list(allowed), order)
