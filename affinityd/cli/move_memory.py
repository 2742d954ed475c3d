"""`affinityd pin --memory`: the memory of processes moves to the nodes near their GPUs.

All that can be refused is refused before anything is changed.
"""

from __future__ import annotations

import errno
import signal
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from affinityd.cli.console import progress, say
from affinityd.cli.target import shown
from affinityd.cpuset import parse_list, several
from affinityd.errors import ApplyError, TargetError
from affinityd.linux import syscalls
from affinityd.linux.migration import BATCH, Migration, room_in_cgroups, room_on
from affinityd.linux.processes import Stat, is_running, status_of
from affinityd.linux.resident import FILES, resident_memory, wait_for_lock
from affinityd.text import amount, one_line
from affinityd.topology.nearness import Vicinity

ENDED = "it has ended meanwhile"
EVERY = 0.2  #: seconds between two lines of progress
NOTHING = "no memory is moved, and no thread is pinned"
TOLERATED = 0.1  #: of a process's memory may stay, besides files, which others may map as well


@dataclass(frozen=True)
class MemoryMove:
    """A process whose memory is to move."""

    stat: Stat
    near: tuple[int, ...]  #: nodes that it may use
    far: frozenset[int]
    size: int  #: bytes of all its memory
    expected: float  #: bytes that are far, by a sample

    def __str__(self) -> str:
        """Return the plan of the move as a sentence."""
        much = f"about {amount(self.expected)} of {amount(self.size)}"
        return f"{shown(self.stat)}: {much} would move to {several('node', self.near)}"


def planned_moves(targets: Sequence[tuple[Stat, Vicinity]]) -> list[MemoryMove]:
    """Return the moves of processes. Raises TargetError or ApplyError where one cannot be made."""
    moves, needed = [], Counter[tuple[int, ...]]()
    for stat, near in targets:
        wait_for_lock(stat.number)
        try:
            syscalls.move_pages(stat.number, array("Q", [0]))
        except OSError as error:
            raise TargetError(
                f"the memory of {shown(stat)} cannot be moved: {error.strerror}; it takes the "
                "process's own user, or root with CAP_SYS_PTRACE"
            ) from None
        allowed = parse_list(status_of(stat.number, "Mems_allowed_list"))
        nodes = tuple(sorted(near.memory & allowed))
        if not nodes:
            its = several("node", allowed)
            raise ApplyError(
                f"{shown(stat)}: its cpuset allows it the memory of {its}, and {near}; {NOTHING}"
            )
        if room_in_cgroups(stat.number) < BATCH:
            raise ApplyError(f"{shown(stat)}: its memory cgroup is at its limit; {NOTHING}")
        memory = resident_memory(stat.number)
        share = memory.share(near.far_memory)
        expected = memory.size * share.part if share else 0.0
        moves.append(MemoryMove(stat, nodes, near.far_memory, memory.size, expected))
        needed[nodes] += round(expected)
    for nodes, size in needed.items():
        if size > (room := sum(map(room_on, nodes))):
            raise ApplyError(
                f"{several('node', nodes)} has room for {amount(room)}, and about {amount(size)} "
                f"would have to move there; {NOTHING}"
            )
    return moves


def move_memory(moves: Sequence[MemoryMove]) -> int:
    """Move memory, and print how much moved, and how much stayed and why.

    Return the exit status: 1 if much stayed, or a process ended; of a signal as a shell has it.
    """
    signals: list[int] = []
    watched = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda it, _: signals.append(it)) for number in watched]
    try:
        results = [_moved(move, signals) for move in moves]
    finally:
        for number, handler in zip(watched, before, strict=True):
            signal.signal(number, handler)
    if signals:
        name = signal.Signals(signals[0]).name
        say(f"affinityd pin: {name}: the rest of the memory is where it was; run this again")
        return 128 + signals[0]
    return 0 if all(results) else 1


def _moved(move: MemoryMove, signals: Sequence[int]) -> bool:
    """Move the memory of a process until there is a signal; return whether most of it is near."""
    migration, name = Migration(move.stat.number, move.far, move.near), shown(move.stat)
    trouble, shown_at = "", time.monotonic()
    try:
        for _ in () if signals else migration.batches():
            if signals or not is_running(move.stat.number, move.stat.start):
                break  # another process may have its pid by now
            if time.monotonic() - shown_at > EVERY:
                shown_at = time.monotonic()
                progress(f"{name}: {amount(migration.moved.total())} of {amount(move.expected)}")
    except OSError as error:  # EINVAL: it has no memory any more
        trouble = ENDED if error.errno == errno.EINVAL else str(error.strerror)
    if not is_running(move.stat.number, move.stat.start):
        trouble = ENDED
    progress("")
    moved = migration.moved.total()
    stayed = sum(size for (kind, _), size in migration.stayed.items() if kind != FILES)
    of = f" of about {amount(move.expected)}" if signals or trouble else ""
    happened = f"{amount(moved)}{of} moved to {several('node', move.near)}"
    if not (moved or migration.stayed or of):
        happened = f"none of its {amount(move.size)} of memory is far from its GPUs"
    print(one_line(f"{name}: {happened}"))
    for (kind, reason), size in migration.stayed.most_common():
        print(one_line(f"{name}: {amount(size)} of {kind} stayed: {reason}"))
    if trouble:
        say(f"affinityd pin: {name}: {trouble}")
    return not trouble and stayed <= TOLERATED * move.size
