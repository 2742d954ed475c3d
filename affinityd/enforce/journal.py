"""The journal of pins: the mask of every thread before it was pinned, so that a pin can be undone.

A file of JSON lines in the socket's folder, which outlives the daemon. Enforcement and `affinityd
pin` append to it; `affinityd enforce --undo` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from affinityd.cpuset import CpuSet
from affinityd.grouping import grouped
from affinityd.json_codec import dumps, loads
from affinityd.linux.files import read, write_whole
from affinityd.linux.pinning import ThreadBefore
from affinityd.linux.processes import is_running, mask_of, thread_ids, thread_stat

FILE = "pins.jsonl"  #: beside the socket
PRIVATE = 0o600
MOST = 8 * 1024 * 1024  #: bytes; beyond them the pins of ended processes are dropped
NOTHING: CpuSet = frozenset()


@dataclass(frozen=True)
class JournaledPin:
    """One pin of one process."""

    time: float  #: seconds since the epoch
    pid: int
    start: int  #: clock ticks since boot: with the pid it names one process until the next boot
    name: str
    uid: int | None
    job: str | None  #: as the scheduler numbers it
    reason: str
    cpus: CpuSet  #: the mask that the threads were given
    threads: Sequence[ThreadBefore]


def append(path: Path, pin: JournaledPin) -> None:
    """Append a pin. Raises OSError."""
    line = f"{dumps(pin)}\n".encode()
    if path.exists() and path.stat().st_size + len(line) > MOST:
        living = (it for it in pins(path) if is_running(it.pid, it.start))
        write_whole(path, "".join(f"{dumps(it)}\n" for it in living).encode(), PRIVATE)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, PRIVATE)
    try:
        os.write(file, line)  # as one: other processes append, too
    finally:
        os.close(file)


def pins(path: Path) -> list[JournaledPin]:
    """Return the pins in their order; a line that cannot be read is left out. Raises OSError."""
    found = []
    for line in read(os.fspath(path), 2 * MOST).splitlines():
        with suppress(ValueError):  # a disk was full, or the machine went down
            found.append(loads(JournaledPin, line, "a pin"))
    return found


@dataclass(frozen=True)
class Undone:
    """A process whose pins were undone."""

    pid: int
    name: str
    restored: Mapping[int, CpuSet]  #: tid → the mask that it has again
    changed: tuple[int, ...]  #: threads that have another mask than they were given: they keep it
    refused: str | None  #: why the kernel refused a thread its former mask


def undo(journal: Iterable[JournaledPin], job: str | None = None) -> Iterator[Undone]:
    """Give the threads of each living process, or of a job's, their masks from before the pins.

    A thread that was started after the pin inherited the mask, and gets that of the main thread.
    """
    chosen = (pin for pin in journal if job is None or pin.job == job)
    for (pid, start), pinned in grouped(chosen, lambda pin: (pin.pid, pin.start)).items():
        if is_running(pid, start):
            yield _undo(pinned)


def _undo(pinned: Sequence[JournaledPin]) -> Undone:
    pid, given = pinned[-1].pid, pinned[-1].cpus
    restored, changed, refused = dict[int, CpuSet](), list[int](), None
    for tid in thread_ids(pid):
        stat = thread_stat(pid, tid)
        mask = NOTHING if stat is None else _before(pinned, tid, stat.start)
        mask = mask or _before(pinned, pid, pinned[-1].start)
        held = mask_of(tid)
        if held is None or not mask or held == mask:
            continue
        if not held <= given:  # narrower: the cpuset has shrunk since
            changed.append(tid)
            continue
        try:
            os.sched_setaffinity(tid, mask)
        except OSError as error:
            refused = error.strerror
        else:
            restored[tid] = mask_of(tid) or mask
    return Undone(pid, pinned[-1].name, restored, tuple(changed), refused)


def _before(pinned: Sequence[JournaledPin], tid: int, start: int) -> CpuSet:
    """Return a thread's last mask that no pin gave it; an empty one where none is known."""
    mask, given = NOTHING, set[CpuSet]()
    for pin in pinned:
        for thread in pin.threads:
            if (thread.tid, thread.start) == (tid, start) and thread.mask not in given:
                mask = thread.mask
        given.add(pin.cpus)
    return mask
