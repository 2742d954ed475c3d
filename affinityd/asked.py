"""How many CPUs each rank of a plan asked for, by what its task asked for. Pure.

A task is a process that a launcher started. It may drive several GPUs, a rank of the plan each,
and several tasks may share a GPU.
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet
from affinityd.ranks import Ranks
from affinityd.request import Request
from affinityd.topology import Topology


def asked_cpus(
    topology: Topology, request: Request, ranks: Ranks, allowed: CpuSet, whole: CpuSet
) -> int | None:
    """Return how many logical CPUs each rank asked for; None where that was not said.

    `allowed` is what the tasks may use together, `whole` what all of the machine could give.
    """
    asked = request.task_cpus
    if asked is None:
        return request.options.cpus
    together = min(len(allowed), request.job_cpus or len(allowed))
    each = max(1, together // _tasks(request, allowed))
    if asked.cpus is not None:  # a variable may be of the job's script, and more than a step's
        each = min(each, asked.cpus)
    elif allowed == whole and together == len(allowed):
        each = min(each, share_of_gpu(topology))
    return -(-each * ranks.tasks_per_gpu // ranks.gpus_per_task)


def _tasks(request: Request, allowed: CpuSet) -> int:
    """Return how many tasks divide the allowed CPUs: of a slice, those that have the same one."""
    tasks = (request.task_cpus and request.task_cpus.tasks) or request.ranks or 1
    masks = request.cpu_bind
    own = masks[request.rank[0] % len(masks)] if masks and request.rank else None
    if own is None or not allowed <= own:
        return tasks
    return sum(masks[task % len(masks)] == own for task in range(tasks))


def asked_each(topology: Topology, granted: int, ranks: int, *, has_node: bool) -> int:
    """Return how many CPUs each rank of a job asked for, that was granted so many for all of them.

    `has_node`: it may use all of the machine.
    """
    each = -(-granted // ranks)
    return min(each, share_of_gpu(topology)) if has_node else each


def share_of_gpu(topology: Topology) -> int:
    """Return the physical cores of a machine for each of its GPUs, at least 1.

    A job that has the machine for itself asked for no more: its CPUs were not counted out.
    """
    return max(1, len(topology.cores) // max(1, len(topology.gpus)))
