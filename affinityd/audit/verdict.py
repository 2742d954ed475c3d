"""The state of each GPU in a word, of the whole node in a sentence, and of the last hour. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from affinityd.audit.model import AuditedProcess, Scan
from affinityd.json_codec import OneOf
from affinityd.text import count
from affinityd.topology.model import GpuKey, Keys, moved
from affinityd.topology.nearness import UNPINNED

FAR, ORPHAN, WAITING, UNKNOWN = "far", "orphan", "waiting", "unknown"
NEAR, IDLE = "near", "idle"
#: The worst first. Unpinned: a process may run anywhere, also near. Unknown: its processes, or its
#: place. Idle: no process uses it.
STATES = (FAR, ORPHAN, WAITING, UNPINNED, UNKNOWN, NEAR, IDLE)
FINDING_STATES = STATES[:5]
#: State → a letter of the history; a minute without a scan has a dot.
LETTERS = {FAR: "f", ORPHAN: "o", WAITING: "w", UNPINNED: "p", UNKNOWN: "u", NEAR: "n", IDLE: "i"}
NO_SCAN = "."
WORST_FIRST = "".join(LETTERS.values()) + NO_SCAN

State = Annotated[str, OneOf(STATES)]

HOUR = 60  #: minutes, which the history has
#: Threads of a process that wait for longer than this in a second are a finding.
LONG_WAIT = 0.1


@dataclass(frozen=True)
class Finding:
    """A sentence on the node, and what helps."""

    state: State
    text: str
    remedy: str | None = None  #: of the first process concerned; None: it may not be seen


def waits_long(process: AuditedProcess, scan: Scan) -> bool:
    """Return whether the threads of a process wait for CPUs so long that it matters."""
    waits = scan.waits.get(process.facts.pid)
    if waits is None or waits.waited is None:
        return False
    return waits.waited > LONG_WAIT * waits.seconds and waits.cause is not None


#: State → the sentence, for one GPU and for several, of so many; and which processes it is of.
FINDINGS: Mapping[str, tuple[str, str, Callable[[AuditedProcess, Scan], bool]]] = {
    FAR: (
        "is used from far away",
        "are used from far away",
        lambda it, _: it.is_mismatch and it.cause != UNPINNED,
    ),
    ORPHAN: (
        "is held by an ended job",
        "are held by ended jobs",
        lambda it, _: it.orphan is not None and not it.is_daemon,
    ),
    WAITING: ("waits for CPUs", "wait for CPUs", waits_long),
    UNPINNED: (
        "is used by unpinned processes, which may run far away",
        "are used by unpinned processes, which may run far away",
        lambda it, _: it.cause == UNPINNED,
    ),
}


def by_state(scan: Scan) -> Mapping[str, Mapping[GpuKey, AuditedProcess | None]]:
    """Return the GPUs of each state that is a finding, each with the first process concerned."""
    found: dict[str, dict[GpuKey, AuditedProcess | None]] = {state: {} for state in FINDING_STATES}
    for process in scan.processes:
        for state, (_, _, concerns) in FINDINGS.items():
            if not process.is_daemon and concerns(process, scan):
                for gpu in process.facts.gpus:
                    found[state].setdefault(gpu, process)
    for gpu, near in scan.near.items():
        if gpu in scan.unknown or near is None:
            found[UNKNOWN][gpu] = None
    return found


def states(scan: Scan) -> dict[GpuKey, str]:
    """Return the worst state of every GPU."""
    found = by_state(scan)
    used = {gpu for it in scan.processes if not it.is_daemon for gpu in it.facts.gpus}
    return {
        gpu: next(
            (state for state in FINDING_STATES if gpu in found[state]),
            NEAR if gpu in used else IDLE,
        )
        for gpu in scan.near
    }


def verdict(
    scan: Scan, remedy: Callable[[str, AuditedProcess], str | None] | None = None
) -> Iterator[Finding]:
    """Yield the findings on the node, the worst first; one that all is well where there is none.

    `remedy`: returns that of a process, by its state; None: the reader may not see it. Without it
    there are no remedies.
    """
    found, gpus = by_state(scan), len(scan.near)
    for state in FINDINGS:
        concerned = found[state]
        if concerned:
            one, many, _ = FINDINGS[state]
            first = next(iter(concerned.values()))
            number = f"{len(concerned)} of {count(gpus, 'GPU')}"
            cure = None if first is None or remedy is None else remedy(state, first)
            yield Finding(state, f"{number} {one if len(concerned) == 1 else many}", cure)
    if unknown := found[UNKNOWN]:
        why = next((scan.unknown[gpu] for gpu in unknown if gpu in scan.unknown), None)
        text = f"{len(unknown)} of {count(gpus, 'GPU')} cannot be judged"
        yield Finding(UNKNOWN, text, why)
    elif not any(found.values()):
        used = sum(state == NEAR for state in states(scan).values())
        if not gpus:
            yield Finding(IDLE, "there is no GPU here")
        elif used:
            yield Finding(NEAR, f"{count(used, 'GPU')} in use, from near alone")
        else:
            yield Finding(IDLE, "no process uses a GPU")


class History:
    """The worst state of each GPU in each of the last sixty minutes, as letters."""

    def __init__(self) -> None:
        self._letters: Mapping[GpuKey, str] = {}
        self._minute = 0  # of their last ones

    def renumber(self, keys: Keys) -> None:
        """Take over the letters of GPUs that have another index now."""
        self._letters = moved(self._letters, keys)

    def add(self, now: float, found: Mapping[GpuKey, str]) -> Mapping[GpuKey, str]:
        """Add the states of a scan at `now`, seconds; return the letters of its GPUs."""
        minute = int(now // 60)
        passed = NO_SCAN * min(minute - self._minute, HOUR)
        letters = {}
        for gpu, state in found.items():
            before = (self._letters.get(gpu, NO_SCAN * HOUR) + passed)[-HOUR:]
            worst = min(before[-1], LETTERS[state], key=WORST_FIRST.index)
            letters[gpu] = before[:-1] + worst
        self._letters, self._minute = letters, minute
        return letters
