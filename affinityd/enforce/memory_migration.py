"""Moves the memory of a pinned process to its node: migrate_pages(2), one process at a time.

Its cost is in docs/enforce.md; kernel mm/mempolicy.c `do_migrate_pages`, mm/migrate.c,
mm/swap.c `lru_cache_disable`. The call cannot be interrupted: the daemon's end waits for it. Pages
that other processes also map (libraries, /dev/shm, pages shared by a fork) stay. With CAP_SYS_NICE
they would move, also those of other jobs: the moving thread gives it up.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Full, Queue

from affinityd.audit.facts.process import ProcessFacts
from affinityd.cpuset import CpuSet, parse_list
from affinityd.linux import syscalls
from affinityd.linux.memory_policy import MemoryPolicy, policy_of
from affinityd.linux.processes import is_running, status_of
from affinityd.topology.model import Topology

Nodes = frozenset[int]

#: The outcomes of a migration; a process that has ended is not counted.
MOVED = "moved"  #: all that may be moved is at home
PARTLY = "partly"  #: some pages stayed: a device uses them, or there was no room
LEFT = "left"  #: it may have no memory at home, or has chosen other nodes, set_mempolicy(2)
REFUSED = "refused"
DROPPED = "dropped"  #: too many others waited
OUTCOMES = (MOVED, PARTLY, LEFT, REFUSED, DROPPED)

WAITING = 4096  #: processes that may wait for their turn

REASONS = {
    errno.EPERM: (
        "another user's memory needs CAP_SYS_PTRACE, and a seccomp filter must allow "
        "capset and migrate_pages: affinityd.service.d/enforce.conf for systemd"
    ),
    errno.EINVAL: "the daemon itself may use no memory there, or the main thread has ended",
}


@dataclass(frozen=True)
class PendingMigration:
    """A process whose memory follows it."""

    pid: int
    start: int  #: clock ticks since boot
    far: Nodes  #: where pages are taken from
    home: Nodes  #: where they should be


def migration_of(topology: Topology, facts: ProcessFacts, cpus: CpuSet) -> PendingMigration | None:
    """Return the migration for a process that runs on these CPUs; None: nothing to move.

    Home is the node on which such a process allocates. Nodes without CPUs are no source: pages in a
    GPU's memory, or in CXL's, were put there on purpose.
    """
    nodes = [number for number in topology.nodes_with_cpus if topology.cpus_of_node(number) & cpus]
    near = {memory_node for number in nodes for memory_node in topology.memory_nodes(number)}
    home = frozenset(number for number in near if number is not None)
    far = frozenset(topology.nodes_with_memory).intersection(topology.nodes_with_cpus) - home
    return PendingMigration(facts.pid, facts.start, far, home) if far and home else None


def destination(home: Nodes, allowed: Nodes, policy: MemoryPolicy | None) -> Nodes:
    """Return the nodes to which pages are moved; none if the process has chosen others itself.

    `allowed`: its Mems_allowed; `policy`: its main thread's, None where that cannot be read.
    """
    home &= allowed
    return frozenset() if policy is not None and policy.nodes - home else home


class MemoryMigrations:
    """Moves memory in a thread of its own: enforcement does not wait for it."""

    def __init__(self, *, enabled: bool) -> None:
        """Take whether memory is moved at all."""
        self.refusal: str | None = None  #: why the last one was refused, in a sentence
        self._enabled = enabled
        self._pending: Queue[PendingMigration] = Queue(WAITING)
        self._totals = dict.fromkeys(OUTCOMES, 0) if enabled else {}
        self._thread: threading.Thread | None = None

    @property
    def totals(self) -> Mapping[str, int]:
        """How many processes had which outcome, by OUTCOMES; {} if no memory is moved."""
        return dict(self._totals)

    def add(self, topology: Topology, facts: ProcessFacts, cpus: CpuSet) -> None:
        """Have a process's memory moved, by and by, to the CPUs where it runs now."""
        pending = migration_of(topology, facts, cpus) if self._enabled else None
        if pending is None:
            return
        try:
            self._pending.put_nowait(pending)
        except Full:
            self._totals[DROPPED] += 1  # which the thread never counts
        if self._thread is None:  # the process ends without waiting for it
            self._thread = threading.Thread(target=self._run, name="migration", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            if (outcome := self._outcome(self._pending.get())) is not None:
                self._totals[outcome] += 1

    def _outcome(self, pending: PendingMigration) -> str | None:
        """Move a process's memory; return the outcome, None if it has ended."""
        pid = pending.pid
        nodes = destination(pending.home, mems_allowed(pid), policy_of(pid))
        if not is_running(pid, pending.start):  # last: the facts may be of another process
            return None
        if not nodes:
            return LEFT
        try:
            syscalls.lay_down(syscalls.SYS_NICE)
            return PARTLY if syscalls.migrate_pages(pid, pending.far, nodes) else MOVED
        except OSError as error:
            if not is_running(pid, pending.start):
                return None
            if error.errno == errno.ENOMEM:
                return PARTLY
            name = errno.errorcode.get(error.errno or 0, "")
            why = REASONS.get(error.errno or 0, error.strerror)
            self.refusal = f"the memory of process {pid} was not moved: {name}: {why}"
            return REFUSED


def mems_allowed(pid: int) -> Nodes:
    """Return the memory nodes of a process, proc_pid_status(5)."""
    return parse_list(status_of(pid, "Mems_allowed_list"))
