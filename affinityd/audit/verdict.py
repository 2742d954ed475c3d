"""The state of each GPU in a word, of the whole node in a sentence, and of the last hour. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.remedies import RESCAN, reset_gpu
from affinityd.cpuset import several
from affinityd.grouping import grouped
from affinityd.json_codec import OneOf
from affinityd.text import count
from affinityd.topology.model import GpuKey, Keys, moved
from affinityd.topology.nearness import UNPINNED

LOST, FAR, ORPHAN, WAITING, UNKNOWN = "lost", "far", "orphan", "waiting", "unknown"
NEAR, RESERVED, IDLE = "near", "reserved", "idle"
#: The worst first. Lost: it computes no more. Unpinned: a process may run anywhere, also near.
#: Unknown: its processes, or its place. Reserved: a job has it, and no process uses it. Idle: none
#: does.
STATES = (LOST, FAR, ORPHAN, WAITING, UNPINNED, UNKNOWN, NEAR, RESERVED, IDLE)
FINDING_STATES = STATES[:6]
#: State → a letter of the history; a minute without a scan has a dot.
LETTERS = {state: state[0] for state in STATES} | {UNPINNED: "p"}
NO_SCAN = "."
WORST_FIRST = "".join(LETTERS.values()) + NO_SCAN

State = Annotated[str, OneOf(STATES)]

HOUR = 60  #: minutes, which the history has
#: Threads of a process that wait for longer than this in a second are a finding.
LONG_WAIT = 0.1

IS_GONE = "it is not there any more"
#: For readers of counts: what helps depends on the processes.
SEE_AUDIT = "see affinityd audit as root on the node"


@dataclass(frozen=True)
class Concern:
    """GPUs of a finding with one cause."""

    gpus: str  #: GPU 0, or GPUs 0-3
    why: str  #: the job and user, or why the GPUs are not known
    remedy: str | None = None  #: None: none is known, or the finding's


@dataclass(frozen=True)
class Finding:
    """A sentence on the node, and what helps."""

    state: State
    text: str
    remedy: str | None = None  #: for every reader; None: nothing is wrong
    concerns: Sequence[Concern] = ()  #: those of processes only for a reader that may see them


def waits_long(process: AuditedProcess, scan: Scan) -> bool:
    """Return whether the threads of a process wait for CPUs so long that it matters."""
    waits = scan.waits.get(process.facts.pid)
    if waits is None or waits.waited is None:
        return False
    return waits.waited > LONG_WAIT * waits.seconds and waits.cause is not None


@dataclass(frozen=True)
class FindingKind:
    """A state that is a finding: what its GPUs are, and what helps in general."""

    text: str
    remedy: str | None = None
    #: Whether a process makes its GPUs such; None: no process does.
    concerns: Callable[[AuditedProcess, Scan], bool] | None = None


FINDINGS: Mapping[str, FindingKind] = {
    LOST: FindingKind("lost or hung", reset_gpu()),
    FAR: FindingKind(
        "used from far away",
        "pin the processes near their GPU (affinityd pin), or have the scheduler give near CPUs",
        lambda process, _: process.is_mismatch and process.cause != UNPINNED,
    ),
    ORPHAN: FindingKind(
        "held by processes of no living job, or that have ended",
        SEE_AUDIT,
        lambda process, _: process.orphan is not None and not process.is_daemon,
    ),
    WAITING: FindingKind("waiting for CPUs", SEE_AUDIT, waits_long),
    UNPINNED: FindingKind(
        "used by unpinned processes, which may run far away",
        "start jobs by the TaskProlog, affinityd exec or /affinity/run",
        lambda process, _: process.cause == UNPINNED,
    ),
    UNKNOWN: FindingKind("impossible to judge"),
}


def by_state(scan: Scan) -> Mapping[str, Mapping[GpuKey, Sequence[AuditedProcess]]]:
    """Return the GPUs of each state that is a finding, each with the processes concerned."""
    found: dict[str, dict[GpuKey, list[AuditedProcess]]] = {state: {} for state in FINDINGS}
    for process in scan.processes:
        for state, kind in FINDINGS.items():
            if kind.concerns and not process.is_daemon and kind.concerns(process, scan):
                for gpu in process.facts.gpus:
                    found[state].setdefault(gpu, []).append(process)
    for gpu, near in scan.near.items():
        if gpu in scan.lost:
            found[LOST][gpu] = []
        elif gpu in scan.unknown or near is None:
            found[UNKNOWN][gpu] = []
    return found


def states(scan: Scan) -> dict[GpuKey, str]:
    """Return the worst state of every GPU."""
    states = dict.fromkeys(scan.near, IDLE) | dict.fromkeys(scan.reserved, RESERVED)
    for process in scan.processes:
        if not process.is_daemon:
            states |= dict.fromkeys(process.facts.gpus, NEAR)
    found = by_state(scan)
    for state in reversed(FINDING_STATES):
        states |= dict.fromkeys(found[state], state)
    return states


def verdict(
    scan: Scan, remedy: Callable[[str, AuditedProcess], str | None] | None = None
) -> Iterator[Finding]:
    """Yield the findings on the node, the worst first; one that all is well where there is none.

    `remedy`: returns that of a process, by its state; None: the reader may not see processes.
    """
    found = by_state(scan)
    for state, kind in FINDINGS.items():
        gpus = [*found[state]]
        names = [_named(gpus, scan)] if gpus else []
        concerns = [*_concerns(state, found[state], scan, remedy)]
        number = len(gpus)
        general = kind.remedy
        if state == LOST and scan.gone:
            general = f"{general}; for one that is gone {RESCAN}" if gpus else RESCAN
            gone = [f"GPU {gpu.index} ({gpu.pci_bus_id})" for gpu in scan.gone]
            names += gone
            concerns += [Concern(name, IS_GONE) for name in gone]
            number += len(gone)
        if names:
            text = f"{' and '.join(names)} {'is' if number == 1 else 'are'} {kind.text}"
            yield Finding(state, text, general, concerns)
    if scan.reserved:
        gpus = [*scan.reserved]
        verb = "is" if len(gpus) == 1 else "are"
        text = f"{_named(gpus, scan)} {verb} reserved by a job, and used by no process"
        jobs = [Concern(_named([gpu], scan), job) for gpu, job in scan.reserved.items()]
        yield Finding(RESERVED, text, None, jobs if remedy is not None else ())
    if any(found.values()) or scan.gone or scan.reserved:
        return
    used = sum(state == NEAR for state in states(scan).values())
    if not scan.near:
        yield Finding(IDLE, "there is no GPU here")
    elif used:
        yield Finding(NEAR, f"{count(used, 'GPU')} in use, from near alone")
    else:
        yield Finding(IDLE, "no process uses a GPU")


def _concerns(
    state: str,
    found: Mapping[GpuKey, Sequence[AuditedProcess]],
    scan: Scan,
    remedy: Callable[[str, AuditedProcess], str | None] | None,
) -> Iterator[Concern]:
    """Yield the GPUs of a finding: for each job and cause the remedy of its first process there."""
    alike: dict[tuple[str, str | None], list[GpuKey]] = {}
    for gpu, processes in found.items():
        if not processes:
            why = scan.unknown.get(gpu, "its NUMA node is not known")
            alike.setdefault((why, None), []).append(gpu)
        if remedy is None:
            continue
        by_cause = grouped(
            processes, lambda process: (_owner(process, scan), _cause(state, process, scan))
        )
        for (owner, _), (first, *others) in by_cause.items():
            more = f" (process {first.facts.pid} and {len(others)} more)" if others else ""
            alike.setdefault((f"{owner}{more}", remedy(state, first)), []).append(gpu)
    for (why, cure), gpus in alike.items():
        yield Concern(_named(gpus, scan), why, cure)


def _cause(state: str, process: AuditedProcess, scan: Scan) -> str | None:
    if state == ORPHAN:
        return process.orphan
    return scan.waits[process.facts.pid].cause if state == WAITING else process.cause


def _owner(process: AuditedProcess, scan: Scan) -> str:
    facts = process.facts
    owner = facts.owner or f"process {facts.pid} ({facts.name})"
    return owner if facts.uid is None else f"{owner}, user {scan.users.get(facts.uid, facts.uid)}"


def _named(gpus: Sequence[GpuKey], scan: Scan) -> str:
    """Return `GPU 0`, or `GPUs 0-1`; of several vendors `amd GPU 0 and intel GPU 0`."""
    noun = "GPU" if len({vendor for vendor, _ in scan.near}) == 1 else "{} GPU"
    by_vendor = grouped(gpus, lambda key: key[0])
    return " and ".join(
        several(noun.format(vendor), (index for _, index in keys))
        for vendor, keys in by_vendor.items()
    )


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
