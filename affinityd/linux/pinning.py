"""Pins the threads of running processes, repeatedly until no thread was missed.

A thread starts with its parent's mask, clone(2). So only unpinned threads start unpinned threads: a
pass that finds every thread pinned is the last, even if more start later. A thread that is being
started, and is not listed yet, has the mask that its parent had when clone(2) began (kernel/fork.c
`copy_process`): passes wait for such a thread if there is time.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from affinityd.cpuset import CpuSet
from affinityd.linux.cgroup import mask_of
from affinityd.linux.processes import ENDED, stat_of, thread_ids, thread_stat

PINNED = "pinned"
LEFT_ALONE = "left alone"
REFUSED = "refused"
CHANGE = "change"  #: a rule's answer: replace the mask

#: How many passes in a row must find nothing to do: one listing may lack a living thread.
QUIET_PASSES = 2

MAX_PASSES = 100  #: a limit for a process that starts threads faster than they can be pinned

#: How many such passes there must be while a pinned thread is awake: it may be in a fork(2) that
#: began earlier, of a large process. The pauses double from PINNING_PAUSE seconds on: 0.5 s in all.
PATIENT_PASSES = 10
PINNING_PAUSE = 0.001

#: Why a mask is refused: sched_setaffinity(2), Linux kernel/sched/syscalls.c.
REASONS = {
    errno.EPERM: "it is another user's; only root (CAP_SYS_NICE) may pin it",
    errno.EACCES: "a security module, such as SELinux, forbids it",
    errno.EINVAL: "its cpuset has none of these CPUs",
    errno.EBUSY: "it is SCHED_DEADLINE, which needs every CPU of its cpuset",
}

#: How to treat a thread, by its mask and the masks given so far: CHANGE or LEFT_ALONE.
Rule = Callable[[CpuSet, Collection[CpuSet]], str]


def is_on_purpose(mask: CpuSet, usual: Collection[CpuSet], cpuset: CpuSet) -> bool:
    """Return whether a mask was probably chosen for its thread, so that a pin should leave it.

    `usual`: masks that were chosen for the whole process, or that affinityd gave. A thread with all
    CPUs that its process may use, `cpuset`, has not been pinned.
    """
    return mask not in usual and not mask >= cpuset


@dataclass(frozen=True)
class Target:
    """A process with threads to pin."""

    pid: int
    start: int  #: clock ticks since boot: a later process with the same pid has another start
    cpus: CpuSet
    rule: Rule = lambda _mask, _masks: CHANGE


@dataclass(frozen=True)
class ThreadResult:
    """The result of one thread."""

    pid: int
    tid: int
    outcome: str  #: PINNED, LEFT_ALONE or REFUSED
    asked: CpuSet  #: the CPUs requested for its process
    held: CpuSet  #: the thread's mask, as read back at the end
    reason: str | None = None  #: why refused; or why left alone, if not for its mask
    was_set: bool = False  #: whether the thread's mask was replaced


@dataclass(frozen=True)
class PinResult:
    """The results of all threads that have not ended."""

    threads: tuple[ThreadResult, ...]  #: by process, main threads first; (): all have ended
    is_settled: bool  #: whether the last passes found nothing more to do

    def having(self, outcome: str) -> tuple[ThreadResult, ...]:
        """Return the threads with one outcome."""
        return tuple(thread for thread in self.threads if thread.outcome == outcome)

    @property
    def cut(self) -> tuple[ThreadResult, ...]:
        """The threads pinned to fewer CPUs than requested, as their cpuset lacks the others."""
        return tuple(thread for thread in self.having(PINNED) if thread.held != thread.asked)

    @property
    def is_complete(self) -> bool:
        """Whether all threads that are not left alone have the requested CPUs."""
        refused_or_cut = self.having(REFUSED) or self.cut
        return self.is_settled and bool(self.threads) and not refused_or_cut


def pin_threads(targets: Callable[[], Iterable[Target]], *, dry_run: bool = False) -> PinResult:
    """Set the masks of all threads that the rules of their processes do not leave alone.

    `targets` is called before each pass: processes may come and go. A thread that changes its mask
    after it was set is left alone. With `dry_run` nothing is set, and the result is that of a pin
    without refusals.

    Never raises for a thread, or a process, that has ended or was refused.
    """
    passes = _Passes(dry_run=dry_run)
    quiet = 0
    for _ in range(MAX_PASSES):
        is_patient = passes.may_show_more()
        quiet = 0 if passes.pin_all(targets()) else quiet + 1
        if quiet >= (PATIENT_PASSES if is_patient else QUIET_PASSES):
            return PinResult(tuple(passes.results), is_settled=True)
        if quiet and is_patient:
            time.sleep(PINNING_PAUSE * 2 ** (quiet - 1))
    return PinResult(tuple(passes.results), is_settled=False)


class _Passes:
    """Passes over all threads: their common state, and the results of the last pass."""

    def __init__(self, *, dry_run: bool) -> None:
        self.results: list[ThreadResult] = []
        self._dry_run = dry_run
        self._replaced: set[tuple[int, int]] = set()  # (pid, tid) of threads with replaced masks
        self._has_set = False  # whether the current pass has set a mask
        self._user_time: dict[int, int] = {}  # by thread, when first seen pinned
        self._masks: dict[CpuSet, set[CpuSet]] = {}  # requested mask → masks that it led to

    def pin_all(self, targets: Iterable[Target]) -> bool:
        """Pin the present threads; return whether any mask was set."""
        self.results = []
        self._has_set = False
        for target in targets:
            stat = stat_of(target.pid)
            if stat is None or stat.start != target.start:
                continue
            tids = thread_ids(target.pid)
            if stat.state in ENDED and target.pid in tids:  # the other threads may run
                tids.remove(target.pid)
            for tid in tids:
                if (result := self._pin(target, tid)) is not None:
                    self.results.append(result)
        return self._has_set

    def may_show_more(self) -> bool:
        """Whether a thread whose mask was replaced may be starting one with the old mask."""
        this_thread = threading.get_native_id()
        may_start = False
        for result in self.results:
            if result.was_set and result.tid != this_thread:
                stat = thread_stat(result.pid, result.tid)
                # The thread may be in clone(2) while it runs (R) or waits for the kernel (D), until
                # it has computed for two clock ticks.
                if stat is not None and stat.state in {"R", "D"}:
                    first = self._user_time.setdefault(result.tid, stat.user_time)
                    may_start |= stat.user_time - first < 2  # noqa: PLR2004
        return may_start

    def _pin(self, target: Target, tid: int) -> ThreadResult | None:
        mask = mask_of(tid)
        if mask is None:
            return None
        was_set = (target.pid, tid) in self._replaced
        is_held = mask in self._masks.setdefault(target.cpus, {target.cpus})
        result = ThreadResult(target.pid, tid, PINNED, target.cpus, mask, was_set=was_set)
        if is_held or (was_set and mask < target.cpus):  # the cpuset may have shrunk since then
            return result
        masks = frozenset[CpuSet]().union(*self._masks.values())
        outcome = LEFT_ALONE if was_set else target.rule(mask, masks)
        if outcome != CHANGE:
            return replace(result, outcome=outcome)
        return replace(result, held=target.cpus) if self._dry_run else self._set_mask(result)

    def _set_mask(self, wish: ThreadResult) -> ThreadResult | None:
        if thread_stat(wish.pid, wish.tid) is None:  # another process may have this tid now
            return None
        try:
            os.sched_setaffinity(wish.tid, wish.asked)
        except OSError as error:
            stat = thread_stat(wish.pid, wish.tid)
            if stat is None:
                return None
            if error.errno == errno.EINVAL and not stat.takes_mask:
                # Before Linux 6.3 workers of io_uring are such threads of their process.
                reason = "a kernel worker, whose mask the kernel sets"
                return replace(wish, outcome=LEFT_ALONE, reason=reason)
            name = errno.errorcode.get(error.errno or 0, "")
            why = REASONS.get(error.errno or 0, error.strerror)
            return replace(wish, outcome=REFUSED, reason=f"{name}: {why}")
        held = mask_of(wish.tid)
        if held is None:
            return None
        if held <= wish.asked:  # otherwise the thread has just pinned itself
            self._masks[wish.asked].add(held)
        self._replaced.add((wish.pid, wish.tid))
        self._has_set = True
        return replace(wish, held=held, was_set=True)
