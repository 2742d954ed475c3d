"""What was set in a process's environment when it was started, as far as that can still be read."""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.audit.model import ProcessFacts
from affinityd.linux.environ import environment_of
from affinityd.linux.processes import cgroups_of, stat_of

ANCESTORS = 8  #: that are asked for one that has written over its own


def environment(facts: ProcessFacts, root: str = "") -> Mapping[str, str] | None:
    """Return the environment of a process; None where it cannot be read.

    Of one that gives itself another title (setproctitle, as Ray's and vLLM's workers) that of the
    nearest ancestor in the same cgroups counts.
    """
    proc, pid, start = f"{root}/proc", facts.pid, facts.start
    for _ in range(ANCESTORS):
        found, stat = environment_of(pid, root), stat_of(pid, proc)
        if found is None or stat is None or stat.start != start:
            return None
        if found:
            return found
        parent = stat_of(stat.parent, proc)
        if parent is None or cgroups_of(parent.number, proc) != facts.cgroups:
            return None
        pid, start = parent.number, parent.start
    return None
