"""This process: what it knows of its task, and how it takes its place."""

from __future__ import annotations

import os

from affinityd import task
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import ApplyError
from affinityd.granted import granted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from affinityd.place import Place


def questions(given: Mapping[str, str]) -> list[task.Question]:
    """Return the plan requests for this process, with the parameters that somebody chose."""
    devices = granted()
    facts = {} if devices is None else {"granted": devices}
    cpus = task.plan_on(os.environ, frozenset(os.sched_getaffinity(os.getpid())))
    parent = task.environment_of(os.getppid())
    return list(task.questions({**facts, **given}, os.environ, cpus, parent))


def pin(cpus: CpuSet) -> CpuSet:
    """Set the mask of the calling thread, and return what holds.

    That is what a program inherits that it executes. The kernel silently takes away what the cpuset
    does not allow, sched_setaffinity(2). Raises ApplyError where nothing would be left.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ApplyError(
            f"CPUs {format_list(cpus)} were refused: {error.strerror}; "
            "the cpuset may hold none of them"
        ) from None
    return frozenset(os.sched_getaffinity(0))


def cut(asked: CpuSet, held: CpuSet) -> str:
    """Say what the kernel made of a mask that the cpuset does not allow."""
    return f"CPUs {format_list(asked)} were cut down to {format_list(held)}: the cpuset has no more"


def export(found: Place, held: CpuSet) -> None:
    """Tell children, by the environment, where this process is, and on what it was planned."""
    os.environ["AFFINITYD_CPULIST"] = format_list(held)
    os.environ["AFFINITYD_ALLOWED"] = format_list(found.allowed)
    os.environ["AFFINITYD_LOCALITY"] = found.locality
