"""The published rules of tools that are no libraries: a function for each tool.

Each function is written from the source that its docstring names. A rule sees NVML's answers,
nvidia-smi's table and the kernel's refusals as they would be on the machine.
"""

from __future__ import annotations

from collections.abc import Callable

from affinityd.cpuset import CpuSet, parse_list
from bench.compare.judge import Answer
from bench.compare.reported import Question

Rule = Callable[[Question], Answer]

EINVAL = "sched_setaffinity: Invalid argument: no allowed CPU is on NUMA node {}"


class LaunchError(Exception):
    """The rank does not start; the text is what the tool, or the kernel, says."""


def ranks(question: Question, place: Callable[[int], CpuSet | None]) -> Answer:
    """Return the answer of a rule that maps one rank to CPUs, or to None."""
    try:
        return Answer([place(rank) for rank in range(len(question.order))])
    except LaunchError as error:
        return Answer(error=str(error))


def cpunodebind(question: Question, node: int) -> CpuSet:
    """Return what `numactl --cpunodebind` leaves: the kernel cuts the node to the cpuset."""
    cpus = question.machine.nodes[node] & question.allowed
    if not cpus:
        raise LaunchError(EINVAL.format(node))
    return cpus


def numa_affinity(question: Question, gpu: int) -> int | None:
    """Return the column `NUMA Affinity` of `nvidia-smi topo -m`, None where it prints N/A."""
    return question.machine.gpus[gpu].node


def vllm(question: Question) -> Answer:
    """`vllm serve --numa-bind`: the node of the GPU's first CPU.

    Source: vllm 0.33.0, vllm/utils/numa_utils.py (_is_auto_numa_available, _get_numa_node) and
    vllm/platforms/cuda.py (get_device_numa_node).
    """
    machine = question.machine
    is_confined = sorted(question.allowed) != list(range(len(machine.online)))
    if 1 not in machine.nodes or is_confined:
        return Answer(
            error="RuntimeError: NUMA binding was requested, but vLLM could not detect the "
            "GPU-to-NUMA topology automatically."
        )

    def place(rank: int) -> CpuSet:
        return cpunodebind(question, machine.gpu_node(question.order[rank]))

    return ranks(question, place)


def sglang(question: Question) -> Answer:
    """The default of `sglang serve`: the first node of NVML's memory affinity, cut to the cpuset.

    Source: sglang 0.5.23, sglang/srt/utils/numa_utils.py (get_numa_node_if_available,
    _numactl_cpu_mem_args).
    """
    machine = question.machine

    def place(rank: int) -> CpuSet | None:
        node = numa_affinity(question, question.order[rank])
        if 1 not in machine.nodes or node is None:
            return None
        return machine.nodes[node] & question.allowed or None

    return ranks(question, place)


def nemo_rl(question: Question) -> Answer:
    """NeMo RL's probe: the node's CPUs by the column `NUMA Affinity` of `nvidia-smi topo -m`.

    Source: NVIDIA-NeMo/RL at 7ea279a, ray.sub (topology_probe.sh) and
    nemo_rl/distributed/numa_utils.py (bind_to_gpu_numa, resolve_visible_gpu_id).
    """

    def place(rank: int) -> CpuSet | None:
        node = numa_affinity(question, question.order[rank])
        if node is None:
            return None
        return question.machine.nodes[node] & question.allowed or None

    return ranks(question, place)


def cpu_affinity_column(question: Question) -> Answer:
    """`taskset -c` with the column `CPU Affinity` of `nvidia-smi topo -m`, as it is printed."""
    machine = question.machine

    def place(rank: int) -> CpuSet:
        gpu = question.order[rank]
        shown = machine.gpus[gpu].shown
        printed = machine.nodes[machine.gpu_node(gpu)] if shown is None else parse_list(shown)
        if not printed & question.allowed:
            raise LaunchError("taskset: failed to set affinity: Invalid argument")
        return printed & question.allowed

    return ranks(question, place)


def local_id(question: Question) -> Answer:
    """`numactl --cpunodebind=$((LOCALID * nodes / ranks))`, over the nodes that have CPUs."""
    nodes = question.machine.cpu_nodes

    def place(rank: int) -> CpuSet:
        return cpunodebind(question, nodes[rank * len(nodes) // len(question.order)])

    return ranks(question, place)


def numactl_by_rank(question: Question) -> Answer:
    """`numactl --cpunodebind` with the `NUMA Affinity` of the GPU whose index is the local rank.

    That is the wrong row wherever CUDA_VISIBLE_DEVICES is not 0,1,2…
    """

    def place(rank: int) -> CpuSet | None:
        node = numa_affinity(question, rank)
        return None if node is None else cpunodebind(question, node)

    return ranks(question, place)
