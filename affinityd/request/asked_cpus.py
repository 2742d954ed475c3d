"""The number of CPUs that each rank of a plan asked for, by its task's request. Pure.

A task is a process that a launcher started. It may drive several GPUs, a rank of the plan each,
and several tasks may share a GPU.
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet
from affinityd.planner.domains import usable
from affinityd.request.parameters import Request
from affinityd.request.ranks import Ranks
from affinityd.topology.model import Topology

TOLERATED = 8  #: one core in so many may be kept from a job that has a machine for itself


def asked_cpus(
    topology: Topology, request: Request, ranks: Ranks, allowed: CpuSet, usable_cpus: CpuSet
) -> int | None:
    """Return how many logical CPUs each rank asked for; None: no number was given.

    The tasks together may use `allowed`; the whole machine could give `usable_cpus`.
    """
    asked = request.task_cpus
    if asked is None:
        return request.options.cpus
    together = min(len(allowed), asked.of_job or len(allowed))
    each = max(1, together // (asked.tasks or request.ranks or 1))
    if asked.cpus is not None:  # a variable may be of the job's script, and more than a step's
        each = min(each, asked.cpus)
    else:
        each = at_most_of_whole_node(topology, each, together, allowed, usable_cpus)
    return -(-each * ranks.tasks_per_gpu // ranks.gpus_per_task)


def asked_each(
    topology: Topology, granted: int, ranks: int, cpus: CpuSet, usable_cpus: CpuSet
) -> int:
    """Return how many CPUs each rank of a job asked for, by the number granted to the job.

    The job may use `cpus`.
    """
    return at_most_of_whole_node(topology, -(-granted // ranks), granted, cpus, usable_cpus)


def at_most_of_whole_node(
    topology: Topology, each: int, granted: int, cpus: CpuSet, usable_cpus: CpuSet
) -> int:
    """Return `each`, at most a GPU's part of the cores where a job has the machine for itself.

    Then its CPUs were not counted out. A few cores may be kept from it (Slurm's CoreSpecCount), and
    all second threads of cores (--hint=nomultithread).
    """
    cores = usable(topology.cores, usable_cpus)
    lacking = sum(cpus.isdisjoint(core.cpus) for core in cores)
    is_less = lacking * TOLERATED > len(cores) or granted * TOLERATED <= len(cpus) * (TOLERATED - 1)
    of_gpu = max(1, len(topology.cores) // max(1, len(topology.gpus)))
    return each if is_less else min(each, of_gpu)
