"""Pinning a running process: every thread's mask, again and again until none has missed it.

A thread starts with the mask of the one that starts it, clone(2). So only those that are not pinned
start others that are not: a pass over all threads that finds every one pinned is the last, whatever
is started later. What began before, and does not show yet, is waited for.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

from affinityd.cpuset import CpuSet
from affinityd.processes import descendants, mask_of, stat_of, thread_ids, thread_stat
from affinityd.starters import Starters

PINNED, LEFT_ALONE, REFUSED = "pinned", "left alone", "refused"

#: As many passes in a row must find nothing to do: a single listing can lack a thread that lives.
QUIET_PASSES = 2

#: As many, while a thread that we pinned may be starting another: it has done nothing since but run
#: in the kernel, or wait for a CPU. The pauses between them, the first of PAUSE seconds, double:
#: half a second in all.
PATIENT_PASSES = 10
PAUSE = 0.001

#: Then we give up on a process that starts threads faster than they can be pinned.
MAX_PASSES = 100

REASONS = {
    errno.EPERM: "it is another user's; only root (CAP_SYS_NICE) may pin it",
    errno.EINVAL: "its cpuset has none of these CPUs",
}


@dataclass(frozen=True)
class ThreadPin:
    """What came of one thread."""

    pid: int
    tid: int
    outcome: str  #: PINNED, LEFT_ALONE or REFUSED
    held: CpuSet  #: its mask, as read back at the end
    reason: str | None = None  #: why it was refused, or left alone where nobody had pinned it


@dataclass(frozen=True)
class Pinned:
    """What came of a process, and its descendants. Threads that have ended are not in it."""

    asked: CpuSet
    threads: tuple[ThreadPin, ...]  #: the root's first, main threads before the others; (): gone
    settled: bool  #: whether the last passes found nothing more to do

    def having(self, outcome: str) -> tuple[ThreadPin, ...]:
        """Return the threads with one outcome."""
        return tuple(thread for thread in self.threads if thread.outcome == outcome)

    @property
    def cut(self) -> tuple[ThreadPin, ...]:
        """The threads that were pinned to less than was asked: their cpuset has no more."""
        return tuple(thread for thread in self.having(PINNED) if thread.held != self.asked)

    @property
    def complete(self) -> bool:
        """Whether all threads that are not left alone hold what was asked."""
        refused_or_cut = self.having(REFUSED) or self.cut
        return self.settled and bool(self.threads) and not refused_or_cut


def pin(
    pid: int, cpus: CpuSet, *, tree: bool = False, force: bool = False, dry_run: bool = False
) -> Pinned:
    """Set the mask of every thread of a process, and of its descendants with `tree`.

    Threads that somebody pinned on purpose are left alone unless `force`: those whose mask differs
    from what the process's main thread had before, and descendants whose main thread does. With
    `dry_run` nothing is set, and the result is what would come of it if nothing were refused.

    Never raises for a thread, or a process, that is gone or refused.
    """
    passes = _Passes(pid, cpus, tree=tree, force=force, dry_run=dry_run)
    quiet = 0
    for _ in range(MAX_PASSES):
        needed = PATIENT_PASSES if passes.starters.are_left() else QUIET_PASSES
        quiet = 0 if passes.pin_all() else quiet + 1
        if quiet >= needed:
            return Pinned(cpus, tuple(passes.outcomes), settled=True)
        if quiet and needed == PATIENT_PASSES:
            time.sleep(PAUSE * 2 ** (quiet - 1))
    return Pinned(cpus, tuple(passes.outcomes), settled=False)


class _Passes:
    """Passes over a process: what they have in common, and what came of the last one."""

    def __init__(self, pid: int, asked: CpuSet, *, tree: bool, force: bool, dry_run: bool) -> None:
        self.outcomes: list[ThreadPin] = []
        self.starters = Starters()
        self._pid = pid
        self._asked = asked
        self._tree = tree
        self._force = force
        self._dry_run = dry_run
        stat = stat_of(pid)
        self._start = stat and stat.start
        self._before = mask_of(pid)  # what nobody chose for one thread alone
        self._given = {asked}  # what we gave: as asked, or what the kernel made of it
        self._set: set[int] = set()  # the threads that we gave it to

    def pin_all(self) -> bool:
        """Pin what is there now; return whether anything was set."""
        self.outcomes = []
        before = len(self._set)
        for pid in self._processes():
            leave_alone = pid != self._pid and self._is_on_purpose(mask_of(pid))
            for tid in thread_ids(pid):
                self._pin(pid, tid, leave_alone=leave_alone)
        return len(self._set) > before

    def _processes(self) -> list[int]:
        stat = stat_of(self._pid)
        if stat is None or stat.start != self._start:  # another one may have its number by now
            return []
        below = descendants(self._pid) if self._tree else []
        return [self._pid, *(child.number for child in below)]

    def _pin(self, pid: int, tid: int, *, leave_alone: bool) -> None:
        mask = mask_of(tid)
        if mask is None:
            return
        if mask in self._given or (tid in self._set and mask < self._asked):
            self.outcomes.append(ThreadPin(pid, tid, PINNED, mask))
        elif leave_alone or tid in self._set or self._is_on_purpose(mask):
            self.outcomes.append(ThreadPin(pid, tid, LEFT_ALONE, mask))
        elif self._dry_run:
            self.outcomes.append(ThreadPin(pid, tid, PINNED, self._asked))
        else:
            self._set_mask(pid, tid, mask)

    def _is_on_purpose(self, mask: CpuSet | None) -> bool:
        return not self._force and mask != self._before and mask not in self._given

    def _set_mask(self, pid: int, tid: int, mask: CpuSet) -> None:
        try:
            os.sched_setaffinity(tid, self._asked)
        except OSError as error:
            if error.errno != errno.ESRCH:
                self.outcomes.append(_refused(pid, tid, mask, error))
            return
        held = mask_of(tid)
        if held is None:
            return
        if held <= self._asked:  # else it has just pinned itself
            self._given.add(held)
        self._set.add(tid)
        self.starters.add(pid, tid)
        self.outcomes.append(ThreadPin(pid, tid, PINNED, held))


def _refused(pid: int, tid: int, mask: CpuSet, error: OSError) -> ThreadPin:
    stat = thread_stat(pid, tid)
    if error.errno == errno.EINVAL and stat is not None and not stat.takes_mask:
        # Before Linux 6.3 io_uring's workers are such, in the middle of their process.
        return ThreadPin(pid, tid, LEFT_ALONE, mask, "a worker of the kernel, which sets its mask")
    name = errno.errorcode.get(error.errno or 0, "")
    reason = REASONS.get(error.errno or 0, error.strerror)
    return ThreadPin(pid, tid, REFUSED, mask, f"{name}: {reason}")
