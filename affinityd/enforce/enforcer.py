"""Enforcement after a scan: a decision about each process, then its pins.

One scan after the other, in one thread. Two daemons with different settings would move a job's
threads back and forth for ever: one has the lock of a file, flock(2), and the others observe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from affinityd.audit.mask_owner import MaskOwner, owner_of
from affinityd.audit.model import GpuKey, ProcessFacts, Scan
from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import CpuSet, several
from affinityd.enforce.decide import Backoff, decide
from affinityd.enforce.document import Enforced, TotalsDocument
from affinityd.enforce.model import (
    DRIFTED,
    FITS,
    GIVEN_UP,
    ON_PURPOSE,
    PIN_OUTCOMES,
    Decision,
    PinAttempt,
    TargetCpus,
)
from affinityd.enforce.placement import JobHistory
from affinityd.enforce.policy import PolicyFile
from affinityd.enforce.policy.identity import ProcessIdentities
from affinityd.grouping import Recent, grouped
from affinityd.linux import pinning
from affinityd.linux.processes import INITIAL_PIDS, PROC, status_of
from affinityd.linux.syscalls import SYS_NICE
from affinityd.threads import Readings
from affinityd.topology.model import Topology

#: /proc/self/ns/user if capabilities count for every process: PROC_USER_INIT_INO,
#: kernel include/linux/proc_ns.h.
INITIAL_USERS = "user:[4026531837]"

NO_THREAD = 2**31 - 1  #: above any kernel's PID_MAX_LIMIT

NOT_ALL_PIDS = (
    "the daemon is in a pid namespace of its own, and sees no job's processes: set hostPID: true "
    "in its pod, or podman run --pid=host"
)
NOT_ALL_USERS = (
    "the daemon is in a user namespace of its own, and has no CAP_SYS_NICE over processes outside: "
    "set hostUsers: true in its pod, or run podman as the node's root and without --userns"
)
NO_SYS_NICE = (
    "the daemon has no CAP_SYS_NICE, by which it pins other users' processes: use "
    "affinityd.service.d/enforce.conf for systemd, enforce.mode: pin in the chart, "
    "or podman run --cap-add=SYS_NICE"
)
CALL_REFUSED = (
    "sched_setaffinity(2) is refused to the daemon ({error}): use affinityd.service.d/enforce.conf "
    "for systemd (SystemCallFilter=sched_setaffinity), elsewhere a seccomp profile that allows it"
)

LOCK = "/run/affinityd/enforce.lock"

#: No link leads to another file, and no child inherits the lock.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

TAKEN = (
    "another daemon pins on this node (fuser {path} names it): this daemon observes until the "
    "other has ended"
)
NO_LOCK = "the lock of the one daemon that pins on a node cannot be taken: {path}: {why}"


def lacking(proc: str = PROC) -> str | None:
    """Return why this process cannot pin processes of jobs, with the remedy; None: it can."""
    if _is_apart(f"{proc}/self/ns/pid", INITIAL_PIDS):
        return NOT_ALL_PIDS
    if _is_apart(f"{proc}/self/ns/user", INITIAL_USERS):
        return NOT_ALL_USERS
    if not int(status_of("self", "CapEff", proc) or "0", 16) >> SYS_NICE & 1:
        return NO_SYS_NICE
    # For a thread that cannot exist, which the kernel reports where a filter lets the call pass.
    # The daemon's own mask, set again, would stay when its cpuset changes, since Linux 6.2.
    try:
        os.sched_setaffinity(NO_THREAD, {0})
    except OSError as error:
        if error.errno != errno.ESRCH:
            name = errno.errorcode.get(error.errno or 0, "")
            return CALL_REFUSED.format(error=f"{name}: {error.strerror}")
    return None


def _is_apart(namespace: str, initial: str) -> bool:
    try:
        return os.fspath(Path(namespace).readlink()) != initial
    except OSError:  # a kernel without such namespaces
        return False


class NodeLock:
    """The lock, once it is free; the kernel frees it, however a daemon ends."""

    def __init__(self, path: str = LOCK) -> None:
        self._path = Path(path)
        self._file: int | None = None  # this process has the lock

    def acquire(self) -> str | None:
        """Return why this daemon must not pin; None: it has the lock. Call it before each pass."""
        folder, file = self._path.parent, self._file
        if file is not None:
            return None
        try:
            if not folder.exists():
                folder.mkdir()
                folder.chmod(0o755)  # independent of the umask: sockets are there, too
            file = os.open(self._path, FLAGS, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if file is not None:
                os.close(file)
            is_taken = isinstance(error, BlockingIOError)
            return (TAKEN if is_taken else NO_LOCK).format(path=self._path, why=error.strerror)
        self._file = file
        return None


MAX_PASSES = 6  #: the next scan goes on with a process that starts threads faster

RULES = {FITS: pinning.PINNED, DRIFTED: pinning.CHANGE, ON_PURPOSE: pinning.LEFT_ALONE}


def pin_process(facts: ProcessFacts, to: TargetCpus, deadline: float) -> pinning.PinResult:
    """Give every thread of a drifted process its target CPUs; read them back.

    `deadline`: when to stop, time.monotonic(). An ended process is left alone, and so is
    another one with its pid. No process makes it raise.
    """
    target = pinning.Target(facts.pid, facts.start, to.cpus, lambda mask, _: RULES[to.of(mask)])
    return pinning.pin_threads(lambda: [target], deadline=deadline, max_passes=MAX_PASSES)


PASS = 2.0  #: seconds that the pins after one scan may take together; the next begins with the rest

NO_ENVIRONMENTS = (
    "environments of jobs' processes cannot be read: AFFINITYD=off may be in them, so these are "
    "not pinned, and rules by partition, account and environment match none of them; give the "
    "daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (affinityd.service.d/enforce.conf for systemd, "
    "enforce.readEnvironments in the chart)"
)
NOT_SEEN = "the processes of {gpus} are not known: {why}"


class Enforcer:
    """Looks at one scan after the other, and pins drifted processes if it should."""

    def __init__(
        self,
        wanted: str,
        policy: PolicyFile,
        *,
        why_not_pin: Callable[[], str | None],
        note: Callable[[PinAttempt], None],
        reserved: CpuSet = frozenset(),
    ) -> None:
        """Take the wanted mode, of ENFORCE_VALUES, and the policy.

        `why_not_pin` tells why the daemon cannot pin now; `note` is called after each pin.
        """
        self._wanted = wanted
        self._policy = policy
        self._why_not_pin = why_not_pin
        self._note = note
        self._reserved = reserved
        self._identities = ProcessIdentities()
        self._backoff = Backoff()
        self._history: JobHistory = Recent()
        self._binders: Recent[tuple[int, int], MaskOwner | None] = Recent()  # by pid and start
        self._readings: Readings[tuple[int, int], MaskOwner | None] = Readings()
        self._pins = Counter[str]()
        self._threads = 0

    def enforce(self, topology: Topology, scan: Scan) -> Enforced:
        """Look once; takes as long as deciding, and in `pin_process` about PASS more at most."""
        began = time.monotonic()
        hindrance = self._why_not_pin()
        does = self._wanted if hindrance is None else OBSERVE
        policy = self._policy.current()
        variables = frozenset() if policy is None else policy.variables
        self._identities.begin(scan.boot)
        self._binders.begin(scan.boot)
        decided = decide(
            topology,
            scan,
            reserved=self._reserved,
            policy=policy,
            identify=lambda facts: self._identities.of(facts, variables),
            history=self._history,
            backoff=self._backoff,
        )
        decisions = [*map(self._with_binder, decided)]
        drifted = [it for it in decisions if it.verdict == DRIFTED and not it.is_observed]
        done = self._pin(drifted) if does == PIN else []
        records = {it.facts.pid: self._backoff.record(it.facts) for it in scan.processes}
        return Enforced(
            topology,
            scan,
            wanted=self._wanted,
            does=does,
            hindrance=hindrance,
            policy=self._policy.state,
            decisions=decisions,
            records=records,
            totals=TotalsDocument(
                {outcome: self._pins[outcome] for outcome in PIN_OUTCOMES},
                threads=self._threads,
                resets=self._backoff.resets,
            ),
            done=done,
            notices=[*self._notices(scan.unknown)],
            unreached=len(drifted) - len(done) if does == PIN else 0,
            seconds=time.monotonic() - began,
        )

    def _with_binder(self, decision: Decision) -> Decision:
        """Return the decision; of a process that is reset again and again, by which binder."""
        facts = decision.process.facts
        if decision.reason != GIVEN_UP or self._backoff.record(facts).refusal is not None:
            return decision
        key = facts.pid, facts.start
        if key not in self._binders:
            self._binders[key] = None
            with suppress(FutureTimeoutError):  # then it is not known
                self._binders[key] = self._readings.result(key, lambda: owner_of(facts))
        owner = self._binders.get(key)
        if owner is None or not owner.ends_it:
            return decision
        return replace(decision, why=f"{decision.why}; its CPUs were set by {owner}")

    def _pin(self, drifted: Iterable[Decision]) -> list[PinAttempt]:
        """Pin the processes that can be reached in time."""
        done: list[PinAttempt] = []
        end = time.monotonic() + PASS
        for decision in drifted:
            if time.monotonic() >= end:
                break
            target = decision.target
            assert target is not None  # noqa: S101 - a drifted process has a place
            result = pin_process(decision.process.facts, target, end)
            attempt = PinAttempt(decision, target, result)
            done.append(attempt)
            self._threads += len(attempt.pinned)
            self._pins.update([attempt.outcome] if attempt.outcome else [])
            self._backoff.note(attempt)
            if result.replaced:
                self._note(attempt)
        return done

    def _notices(self, unknown: Mapping[GpuKey, str]) -> Iterator[str]:
        """Yield the limits of this look, for people; `unknown`: GPUs → why."""
        if self._identities.is_blind:
            yield NO_ENVIRONMENTS
        alike = grouped(sorted(unknown), lambda gpu: (gpu[0], unknown[gpu]))
        for (vendor, why), keys in alike.items():
            gpus = f"{vendor} {several('GPU', (index for _, index in keys))}"
            yield NOT_SEEN.format(gpus=gpus, why=why)
