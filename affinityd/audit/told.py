"""The CPUs, near and far, that affinityd gave to processes that asked for more than are near.

Their environments say so, where those can be read: who started them asked for them, and no cgroup
tells how many.
"""

from __future__ import annotations

from affinityd.audit.environ import environment
from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet, parse_list
from affinityd.processes import PROC

CPULIST, LOCALITY = "AFFINITYD_CPULIST", "AFFINITYD_LOCALITY"

#: A process, by its pid and start.
Who = tuple[int, int]


class Told:
    """Reads an environment once for each process: its memory's lock is taken for it."""

    def __init__(self, proc: str = PROC) -> None:
        """Take where the processes are."""
        self._proc = proc
        self._known: dict[Who, CpuSet | None] = {}
        self._met: dict[Who, CpuSet | None] = {}

    def begin(self) -> None:
        """Begin a scan; of processes that the one before did not ask about nothing is kept."""
        self._known, self._met = self._met, {}

    def cpus(self, facts: ProcessFacts) -> CpuSet | None:
        """Return what a process was given, near and far; None where nothing says so."""
        who = (facts.pid, facts.start)
        if who not in self._met:
            self._met[who] = self._known[who] if who in self._known else self._read(facts)
        return self._met[who]

    def _read(self, facts: ProcessFacts) -> CpuSet | None:
        said = environment(facts, (CPULIST, LOCALITY), self._proc) or {}
        if said.get(LOCALITY) != "mixed":
            return None
        try:
            return parse_list(said.get(CPULIST, ""))
        except ValueError:
            return None
