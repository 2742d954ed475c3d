"""The hand that pins: every thread of one process that is not where it is to run.

Passes are made until one finds nothing to do. What a thread starts has its mask, clone(2): only
those that are not pinned start others that are not. Nobody is waited for: what shows later, as the
child of a long fork(2), is for the next scan.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from affinityd.audit.judge import ENDED
from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.enforce.model import DRIFTED, ON_PURPOSE, Outcome, Standard
from affinityd.linux.files import content, numbered
from affinityd.linux.processes import PROC, mask_of
from affinityd.linux.procstat import Stat, parse

MAX_PASSES = 5

#: Why a mask is refused: sched_setaffinity(2), kernel kernel/sched/syscalls.c.
REASONS = {
    errno.EPERM: "it is another user's, which takes CAP_SYS_NICE",
    errno.EACCES: "a security module, as SELinux, forbids it",
    errno.EINVAL: "its cpuset has none of these CPUs by now",
    errno.EBUSY: "it runs by deadlines (SCHED_DEADLINE), which takes every CPU of its cpuset",
}


def pin_process(
    facts: ProcessFacts, standard: Standard, deadline: float, proc: str = PROC
) -> Outcome:
    """Give every thread of a process that has drifted the CPUs where it is to run; read them back.

    `deadline`: when to stop, time.monotonic(). A process that has ended is left alone, and so is
    another one that has its number by now. Never raises for what processes do.
    """
    with _opened(f"{proc}/{facts.pid}") as folder:
        if folder is None:
            return Outcome(is_gone=True)
        passes = _Passes(facts, standard, folder, deadline)
        is_settled = any(not passes.pin_all() for _ in range(MAX_PASSES))
        return passes.outcome(is_settled=is_settled and not passes.is_late)


@contextmanager
def _opened(folder: str) -> Iterator[str | None]:
    """Open a process's folder, and yield a path to it; None where it has ended.

    By that path no other process is ever found: in the folder of one that has ended nothing can be
    read, whoever has its number by then. Source: kernel fs/proc/base.c, `get_proc_task`.
    """
    try:
        file = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


class _Passes:
    """Passes over the threads of one process, and what came of each thread."""

    def __init__(
        self, facts: ProcessFacts, standard: Standard, folder: str, deadline: float
    ) -> None:
        self.is_late = False
        self._is_gone = False
        self._facts = facts
        self._standard = standard
        self._folder = folder
        self._deadline = deadline
        self._alive: list[int] = []  # as last listed
        self._held: dict[int, CpuSet] = {}  # thread → what it held after we had set its mask
        self._left: set[int] = set()
        self._refused: dict[int, str] = {}  # thread → why

    def pin_all(self) -> bool:
        """Pin what is there now; return whether anything was set."""
        self._alive = self._threads()
        was_set = False
        for tid in self._alive:
            self.is_late = time.monotonic() >= self._deadline
            if self.is_late:
                return False
            was_set |= self._pin(tid)
        return was_set

    def outcome(self, *, is_settled: bool) -> Outcome:
        """Say what came of the threads that the last pass listed."""
        alive = frozenset(self._alive)
        held = [mask for tid, mask in self._held.items() if tid in alive]
        errors = [why for tid, why in self._refused.items() if tid in alive]
        return Outcome(
            pinned=len(held),
            left=len(self._left & alive),
            refused=len(errors),
            cut=next((mask for mask in held if mask < self._standard.cpus), None),
            error=errors[0] if errors else None,
            is_gone=not alive,
            is_settled=is_settled,
            is_late=self.is_late,
        )

    def _threads(self) -> list[int]:
        """Return the threads that run; none where the process has ended, or is another."""
        stat = self._stat()
        if stat is None or stat.start != self._facts.start:
            return []
        threads = numbered(f"{self._folder}/task")
        return [tid for tid in threads if tid != stat.number or stat.state not in ENDED]

    def _pin(self, tid: int) -> bool:
        """Pin a thread that has drifted; return whether its mask was set.

        A thread's number, unlike the process's folder, may be a stranger's at any moment: that it
        is not is asked right before, and after; then its mask is given back.
        """
        mask = mask_of(tid)
        verdict = self._standard.of(mask) if mask is not None else None
        if verdict not in {DRIFTED, ON_PURPOSE} or not self._is_its(tid):
            return False
        if verdict == ON_PURPOSE:
            self._left.add(tid)
            return False
        before = mask_of(tid)
        return before is not None and self._set(tid, before)

    def _set(self, tid: int, before: CpuSet) -> bool:
        """Set a thread's mask, instead of the one `before`; return whether that was done."""
        try:
            os.sched_setaffinity(tid, self._standard.cpus)
        except OSError as error:
            self._note(tid, error)
            return False
        held = mask_of(tid)
        if not self._is_its(tid):
            with suppress(OSError):
                os.sched_setaffinity(tid, before)
        elif held is not None:
            self._held[tid] = held
        return True

    def _is_its(self, tid: int) -> bool:
        """Whether a number is that of a thread of the process."""
        return self._stat(f"task/{tid}/") is not None

    def _note(self, tid: int, error: OSError) -> None:
        """Note a refusal; that of a thread which has ended, or never takes a mask, is none."""
        stat = self._stat(f"task/{tid}/")
        if stat is None:
            return
        if error.errno == errno.EINVAL and not stat.takes_mask:
            self._left.add(tid)  # a worker of the kernel: io_uring's are such before Linux 6.3
            return
        name = errno.errorcode.get(error.errno or 0, "")
        self._refused[tid] = f"{name}: {REASONS.get(error.errno or 0, error.strerror)}"

    def _stat(self, place: str = "") -> Stat | None:
        return parse(content(f"{self._folder}/{place}stat"))
