"""The state of each GPU, sentences on the whole node, and the history of the last hour. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.remedies import RESCAN, Remedies, reset_gpu
from affinityd.audit.waits import remedy as wait_remedy
from affinityd.grouping import grouped
from affinityd.json_codec import OneOf
from affinityd.text import count
from affinityd.topology.model import GpuKey, Topology
from affinityd.topology.nearness import LOCAL, MIXED, REMOTE, UNKNOWN, UNPINNED, name_gpus

LOST = "lost"  #: the GPU does not answer any more
ORPHAN = "orphan"  #: a process holds the GPU, and no job owns that process
WAITING = "waiting"  #: a process waits long for CPUs
RESERVED = "reserved"  #: a job has the GPU, and no process uses it
IDLE = "idle"  #: no process uses the GPU
#: States of a GPU, the worst first. States not defined above are placements.
STATES = (LOST, REMOTE, MIXED, ORPHAN, WAITING, UNPINNED, UNKNOWN, LOCAL, RESERVED, IDLE)
FINDING_STATES = STATES[:7]
#: State → its letter in the history; a minute without a scan has a dot.
LETTERS = {state: state[0] for state in STATES} | {LOST: "x", UNPINNED: "p", RESERVED: "j"}
NO_SCAN = "."
WORST_FIRST = "".join(LETTERS.values()) + NO_SCAN

State = Annotated[str, OneOf(STATES)]

HOUR = 60  #: minutes of the history
#: Seconds: if a process's threads wait for longer in each second, that is a finding.
LONG_WAIT = 0.1

IS_GONE = "it is not there any more"
#: For readers who see only counts: the remedy depends on the processes.
SEE_AUDIT = "see affinityd audit as root on the node"


@dataclass(frozen=True)
class Concern:
    """The GPUs of a finding that have the same cause and the same remedy."""

    gpus: str  #: GPU 0, or GPUs 0-3
    why: str  #: the processes with job, user and cause; or why the processes are not known
    remedy: str | None = None  #: None: not known, or the finding's remedy applies


@dataclass(frozen=True)
class Finding:
    """A sentence on the node, and the remedy."""

    state: State
    text: str
    remedy: str | None = None  #: for all readers; None: nothing is wrong
    concerns: Sequence[Concern] = ()  #: these name no process if the reader may see none


PIN_NEAR = "pin the processes near their GPU (affinityd pin), or have the scheduler give near CPUs"
#: State that is a finding → what is wrong with its GPUs, and a general remedy.
FINDINGS: Mapping[str, tuple[str, str | None]] = {
    LOST: ("lost or hung", reset_gpu()),
    REMOTE: ("used from far away", PIN_NEAR),
    MIXED: ("used from near and far CPUs", PIN_NEAR),
    ORPHAN: ("held by processes that have ended, or that no job owns", SEE_AUDIT),
    WAITING: ("waiting for CPUs", SEE_AUDIT),
    UNPINNED: (
        "used by unpinned processes, which may run far away",
        "start jobs by the TaskProlog, affinityd exec or /affinity/run",
    ),
    UNKNOWN: ("impossible to judge", None),
}


def waits_long(process: AuditedProcess, scan: Scan) -> bool:
    """Return whether a process's threads wait for CPUs so long that it is a finding."""
    waits = scan.waits.get(process.facts.pid)
    if waits is None or waits.waited is None:
        return False
    return waits.waited > LONG_WAIT * waits.seconds and waits.cause is not None


def _states_of(process: AuditedProcess, scan: Scan) -> Iterator[str]:
    if process.is_daemon:
        return
    if process.is_mismatch:
        yield process.placement
    if process.orphan is not None:
        yield ORPHAN
    if waits_long(process, scan):
        yield WAITING


def by_state(scan: Scan) -> Mapping[str, Mapping[GpuKey, Sequence[AuditedProcess]]]:
    """Return the GPUs of each state that is a finding, with the processes concerned."""
    found: dict[str, dict[GpuKey, list[AuditedProcess]]] = {state: {} for state in FINDINGS}
    for process in scan.processes:
        for state in _states_of(process, scan):
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
            states |= dict.fromkeys(process.facts.gpus, LOCAL)
    found = by_state(scan)
    for state in reversed(FINDING_STATES):
        states |= dict.fromkeys(found[state], state)
    return states


def findings(topology: Topology, scan: Scan, remedies: Remedies | None = None) -> Iterator[Finding]:
    """Yield the findings on the node, the worst first; if nothing is wrong, the only one says so.

    `remedies` None: the reader may not see processes.
    """
    found = by_state(scan)
    for state, (what, general) in FINDINGS.items():
        names = [_named(topology, found[state])] if found[state] else []
        number = len(found[state])
        concerns = [*_concerns(topology, state, found[state], scan, remedies)]
        if state == LOST and scan.gone:
            gone = [f"GPU {gpu.index} ({gpu.pci_bus_id})" for gpu in scan.gone]
            names += gone
            number += len(gone)
            concerns += [Concern(name, IS_GONE, RESCAN) for name in gone]
        if names:
            verb = "is" if number == 1 else "are"
            yield Finding(state, f"{' and '.join(names)} {verb} {what}", general, concerns)
    if scan.reserved:
        verb = "is" if len(scan.reserved) == 1 else "are"
        text = f"{_named(topology, scan.reserved)} {verb} reserved by a job, and used by no process"
        concerns = []
        for gpu, job in scan.reserved.items() if remedies is not None else ():
            concerns.append(Concern(_named(topology, [gpu]), f"{job} has it"))
        yield Finding(RESERVED, text, None, concerns)
    if any(found.values()) or scan.gone or scan.reserved:
        return
    used = sum(state == LOCAL for state in states(scan).values())
    if not scan.near:
        yield Finding(IDLE, "there is no GPU here")
    elif used:
        yield Finding(LOCAL, f"{count(used, 'GPU')} in use, all from near CPUs")
    else:
        yield Finding(IDLE, "no process uses a GPU")


def _concerns(
    topology: Topology,
    state: str,
    found: Mapping[GpuKey, Sequence[AuditedProcess]],
    scan: Scan,
    remedies: Remedies | None,
) -> Iterator[Concern]:
    """Yield the GPUs of a finding, grouped by cause and remedy."""
    alike: dict[tuple[str, str | None], list[GpuKey]] = {}
    addresses = {gpu.key: gpu.pci_bus_id for gpu in topology.gpus}
    for gpu, processes in found.items():
        if state in {LOST, UNKNOWN}:
            remedy = reset_gpu(addresses[gpu]) if state == LOST else None
            why = scan.unknown.get(gpu, "its NUMA node is not known")
            alike.setdefault((why, remedy), []).append(gpu)
        elif remedies is not None:
            for why, remedy in _reasons(state, processes, scan, remedies):
                alike.setdefault((why, remedy), []).append(gpu)
    for (why, remedy), gpus in alike.items():
        yield Concern(_named(topology, gpus), why, remedy)


def _reasons(
    state: str, processes: Sequence[AuditedProcess], scan: Scan, remedies: Remedies
) -> Iterator[tuple[str, str | None]]:
    """Yield a sentence for each user, job and cause, and the remedy of the first such process."""

    def look(process: AuditedProcess) -> tuple[str | None, int | None, str | None]:
        facts, cause = process.facts, process.cause
        if state == ORPHAN:
            cause = f"orphan: {process.orphan}"
        elif state == WAITING:
            cause = f"waits for CPUs, {scan.waits[facts.pid].cause}"
        return facts.owner, facts.uid, cause

    for (owner, uid, cause), (first, *others) in grouped(processes, look).items():
        remedy = remedies.of(first)
        if state == ORPHAN:
            remedy = remedies.end(first)
        elif state == WAITING:
            remedy = wait_remedy(scan.waits[first.facts.pid], first.facts.membership.scheduler)
        more = f" and {len(others)} more" if others else ""
        job = f" of {owner}" if owner else ""
        user = "" if uid is None else f", user {scan.users.get(uid, uid)}"
        yield f"process {first.facts.pid} ({first.facts.name}){more}{job}{user}: {cause}", remedy


def _named(topology: Topology, keys: Collection[GpuKey]) -> str:
    gpus = [gpu for gpu in topology.gpus if gpu.key in keys]
    return name_gpus(gpus, with_vendor=topology.has_several_vendors)


def later_history(
    before: Mapping[GpuKey, str], minutes: int, states: Mapping[GpuKey, str]
) -> Mapping[GpuKey, str]:
    """Return each GPU's history: a letter for its worst state in each of the last sixty minutes.

    `states` were seen `minutes` after the last letter of `before`.
    """
    passed = NO_SCAN * min(minutes, HOUR)
    letters = {}
    for gpu, state in states.items():
        known = (before.get(gpu, NO_SCAN * HOUR) + passed)[-HOUR:]
        worst = min(known[-1], LETTERS[state], key=WORST_FIRST.index)
        letters[gpu] = known[:-1] + worst
    return letters
