"""Pinning a running process: every thread's mask, again and again until none has missed it.

A thread starts with the mask of the one that starts it, clone(2). So only those that are not pinned
start others that are not: a pass over all threads that finds every one pinned is the last, whatever
is started later. What began before, and does not show yet, is waited for.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from affinityd.cpuset import CpuSet
from affinityd.linux.clone_tracking import Starters
from affinityd.linux.processes import descendants, mask_of, stat_of, thread_ids, thread_stat
from affinityd.linux.procstat import Stat

PINNED, LEFT_ALONE, REFUSED = "pinned", "left alone", "refused"

#: The CPUs of a descendant that has a place of its own.
ItsOwn = Callable[[Stat], CpuSet | None]

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
class ThreadResult:
    """What came of one thread."""

    pid: int
    tid: int
    outcome: str  #: PINNED, LEFT_ALONE or REFUSED
    asked: CpuSet  #: what was asked for its process
    held: CpuSet  #: its mask, as read back at the end
    reason: str | None = None  #: why it was refused, or left alone where nobody had pinned it


@dataclass(frozen=True)
class PinResult:
    """What came of a process, and its descendants. Threads that have ended are not in it."""

    threads: tuple[ThreadResult, ...]  #: the root's first, main threads before the others; (): gone
    settled: bool  #: whether the last passes found nothing more to do

    def having(self, outcome: str) -> tuple[ThreadResult, ...]:
        """Return the threads with one outcome."""
        return tuple(thread for thread in self.threads if thread.outcome == outcome)

    @property
    def cut(self) -> tuple[ThreadResult, ...]:
        """The threads that were pinned to less than was asked: their cpuset has no more."""
        return tuple(thread for thread in self.having(PINNED) if thread.held != thread.asked)

    @property
    def complete(self) -> bool:
        """Whether all threads that are not left alone hold what was asked."""
        refused_or_cut = self.having(REFUSED) or self.cut
        return self.settled and bool(self.threads) and not refused_or_cut


def pin_threads(
    pid: int,
    cpus: CpuSet,
    *,
    tree: bool = False,
    its_own: ItsOwn = lambda _stat: None,
    force: bool = False,
    dry_run: bool = False,
    start: int | None = None,
) -> PinResult:
    """Set the mask of every thread of a process, and of its descendants with `tree`.

    `its_own` returns the CPUs of a descendant that has a place of its own, as a launcher's ranks;
    None: it belongs with its parent.

    Threads that somebody pinned on purpose are left alone unless `force`: those whose mask differs
    from what the process's main thread had before, and descendants whose main thread was confined
    to less than that. With `dry_run` nothing is set, and the result is what would come of it if
    nothing were refused. `start` is the process's start time, where it is known: another one that
    has its number by now is left alone.

    Never raises for a thread, or a process, that is gone or refused.
    """
    passes = _Passes(
        pid, cpus, its_own if tree else None, force=force, dry_run=dry_run, start=start
    )
    quiet = 0
    for _ in range(MAX_PASSES):
        needed = PATIENT_PASSES if passes.starters.are_left() else QUIET_PASSES
        quiet = 0 if passes.pin_all() else quiet + 1
        if quiet >= needed:
            return PinResult(tuple(passes.outcomes), settled=True)
        if quiet and needed == PATIENT_PASSES:
            time.sleep(PAUSE * 2 ** (quiet - 1))
    return PinResult(tuple(passes.outcomes), settled=False)


class _Passes:
    """Passes over a process: what they have in common, and what came of the last one."""

    def __init__(
        self,
        pid: int,
        asked: CpuSet,
        its_own: ItsOwn | None,
        *,
        force: bool,
        dry_run: bool,
        start: int | None = None,
    ) -> None:
        self.outcomes: list[ThreadResult] = []
        self.starters = Starters()
        self._pid = pid
        self._asked = asked
        self._its_own = its_own  # None: no descendants
        self._force = force
        self._dry_run = dry_run
        stat = stat_of(pid)
        self._start = start if start is not None else stat and stat.start
        self._before = mask_of(pid)  # what nobody chose for one thread alone
        self._main_masks: dict[int, CpuSet | None] = {}  # each process's, when first seen
        self._given = {asked: {asked}}  # what we gave: as asked, or what the kernel made of it
        self._set: set[int] = set()  # the threads that we gave it to

    def pin_all(self) -> bool:
        """Pin what is there now; return whether anything was set."""
        self.outcomes = []
        before = len(self._set)
        for pid, asked in self._processes().items():
            given = self._given.setdefault(asked, {asked})
            main = self._main_masks.setdefault(pid, mask_of(pid))
            leave_alone = pid != self._pid and self._is_on_purpose(main) and not self._is_wide(main)
            for tid in thread_ids(pid):
                self._pin(pid, tid, asked, given, leave_alone=leave_alone)
        return len(self._set) > before

    def _processes(self) -> dict[int, CpuSet]:
        """Return what is asked for each process."""
        stat = stat_of(self._pid)
        if stat is None or stat.start != self._start:  # another one may have its number by now
            return {}
        asked = {self._pid: self._asked}
        if self._its_own is not None:
            for child in descendants(self._pid):
                asked[child.number] = self._its_own(child) or asked.get(child.parent, self._asked)
        return asked

    def _pin(
        self, pid: int, tid: int, asked: CpuSet, given: set[CpuSet], *, leave_alone: bool
    ) -> None:
        mask = mask_of(tid)
        if mask is None:
            return
        if mask in given or (tid in self._set and mask < asked):
            self.outcomes.append(ThreadResult(pid, tid, PINNED, asked, mask))
        elif leave_alone or tid in self._set or self._is_on_purpose(mask, self._main_masks[pid]):
            self.outcomes.append(ThreadResult(pid, tid, LEFT_ALONE, asked, mask))
        elif self._dry_run:
            self.outcomes.append(ThreadResult(pid, tid, PINNED, asked, asked))
        else:
            self._set_mask(ThreadResult(pid, tid, PINNED, asked, mask), given)

    def _is_on_purpose(self, mask: CpuSet | None, main: CpuSet | None = None) -> bool:
        is_ours = any(mask in masks for masks in self._given.values())
        return not self._force and not is_ours and mask not in (self._before, main)

    def _is_wide(self, mask: CpuSet | None) -> bool:
        """Whether a process may run wherever its ancestor might: nobody pinned that on purpose."""
        return mask is not None and self._before is not None and mask >= self._before

    def _set_mask(self, wish: ThreadResult, given: set[CpuSet]) -> None:
        try:
            os.sched_setaffinity(wish.tid, wish.asked)
        except OSError as error:
            if error.errno != errno.ESRCH:
                self.outcomes.append(_refused(wish, error))
            return
        held = mask_of(wish.tid)
        if held is None:
            return
        if held <= wish.asked:  # else it has just pinned itself
            given.add(held)
        self._set.add(wish.tid)
        self.starters.add(wish.pid, wish.tid)
        self.outcomes.append(replace(wish, held=held))


def _refused(wish: ThreadResult, error: OSError) -> ThreadResult:
    stat = thread_stat(wish.pid, wish.tid)
    if error.errno == errno.EINVAL and stat is not None and not stat.takes_mask:
        # Before Linux 6.3 io_uring's workers are such, in the middle of their process.
        reason = "a worker of the kernel, which sets its mask"
        return replace(wish, outcome=LEFT_ALONE, reason=reason)
    name = errno.errorcode.get(error.errno or 0, "")
    why = REASONS.get(error.errno or 0, error.strerror)
    return replace(wish, outcome=REFUSED, reason=f"{name}: {why}")
