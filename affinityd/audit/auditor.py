"""One scan: who holds the GPUs, what those processes are, how they are judged, what they cost."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from affinityd.audit import orphans
from affinityd.audit.gather import TICKS, Gathering
from affinityd.audit.judge import Judge
from affinityd.audit.ledger import Ledger
from affinityd.audit.model import Audited, Held, Holding, Scan
from affinityd.audit.overlap import overlap
from affinityd.processes import PROC
from affinityd.topology import Topology

READING = 5.0  #: seconds that a scan may read /proc, whatever runs


class Source(Protocol):
    """Who knows the processes of the GPUs."""

    def held(self, topology: Topology) -> Held:
        """Return who uses the GPUs now, and of which of them nobody knows."""


class Auditor:
    """Looks at the processes again and again, and remembers what it needs from look to look."""

    def __init__(self, holders: Source, proc: str = PROC) -> None:
        """Take who knows the holders, and where the processes are."""
        self._holders = holders
        self._proc = proc
        self._ledger = Ledger(TICKS)
        self._stepds = orphans.Stepds(proc)
        self._ghosts = orphans.Ghosts(proc)
        self._judged_by: tuple[Topology, Judge] | None = None

    def scan(self, topology: Topology) -> Scan:
        """Look once. Takes as long as the holders, and READING seconds at most.

        Most of it waits for the kernel. Who plans meanwhile shares the interpreter, so each process
        is judged as it is read: no loop over all of them holds on to it for long.
        """
        now, began = time.time(), time.monotonic()
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        judge = self._judge(topology)
        held = self._holders.held(topology)
        gathering = Gathering(held, time.monotonic() + READING, self._proc)
        found = [*self._audited(judge, gathering), *self._gone(gathering)]
        found.sort(key=lambda process: (process.facts.gpu, process.facts.pid))
        near = judge.near
        self._ledger.book(found, near, boot)
        self._ledger.note(found, held.unknown, now)
        return Scan(
            time=now,
            monotonic=began,
            seconds=time.monotonic() - began,
            processes=tuple(found),
            near=near,
            unknown=held.unknown,
            overlap=overlap(found, near),
            skipped=gathering.skipped + held.skipped,
            gpu_time=self._ledger.gpu_time,
            job_time=self._ledger.job_time,
            since=self._ledger.since,
            numa_balancing=_numa_balancing(self._proc),
            notices=tuple(self._notices(gathering.unseen)),
        )

    def _judge(self, topology: Topology) -> Judge:
        """Return the judge for a topology, which is another object when it was read anew."""
        if self._judged_by is None or self._judged_by[0] is not topology:
            self._judged_by = topology, Judge(topology)
        return self._judged_by[1]

    def _audited(self, judge: Judge, gathering: Gathering) -> Iterator[Audited]:
        """Yield the judgement of every process; what a known daemon starts is a part of it."""
        self._stepds.begin()
        daemons: set[int] = set()
        for facts in gathering:
            of_daemon = facts.holding is None and facts.parent in daemons
            audited = judge.judge(facts, of_daemon=of_daemon)
            if audited.is_daemon:
                daemons.add(facts.pid)
                yield audited
            else:
                yield _with_orphan(audited, orphans.why(facts, self._stepds))

    def _gone(self, gathering: Gathering) -> list[Audited]:
        """Return what holds a GPU and is not there; to be asked when the gathering is over."""
        return [orphans.ghost(it) for it in self._ghosts.found(gathering.unseen)]

    def _notices(self, unseen: Collection[Holding]) -> Iterator[str]:
        """Yield what of the holders cannot be seen from here."""
        hidden = [it for it in unseen if not self._ghosts.sees_all or orphans.runs(it.pid)]
        if hidden:
            yield (
                f"{len(hidden)} of the processes that use GPUs cannot be seen here: run this as "
                "root (/proc is mounted with hidepid) and in the host's pid namespace (hostPID)"
            )


def _with_orphan(audited: Audited, why: str | None) -> Audited:
    return audited if why is None else replace(audited, orphan=why)


def _numa_balancing(proc: str) -> int | None:
    """Return /proc/sys/kernel/numa_balancing; None where the kernel has none."""
    try:
        return int(Path(proc, "sys/kernel/numa_balancing").read_bytes())
    except (OSError, ValueError):
        return None
