"""Enforcement after a scan: a decision about each process, then its pins.

One look after the other, in one thread. The result of a look is frozen, and other threads read it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.model import Scan
from affinityd.config.settings import OBSERVE, PIN
from affinityd.cpuset import CpuSet, several
from affinityd.enforce import pinner
from affinityd.enforce.backoff import Backoff, PinRecord
from affinityd.enforce.decide import decide
from affinityd.enforce.document import TotalsDocument
from affinityd.enforce.model import (
    CUT,
    DRIFTED,
    PIN_OUTCOMES,
    PINNED,
    REFUSED,
    UNSETTLED,
    Decision,
    PinAttempt,
    PinOutcome,
)
from affinityd.enforce.placement import JobHistory
from affinityd.enforce.policy.file import PolicyFile
from affinityd.enforce.policy.identity import ProcessIdentities
from affinityd.enforce.policy.model import PolicyState
from affinityd.grouping import grouped
from affinityd.recent import Recent
from affinityd.topology.model import Topology

PASS = 2.0  #: seconds that the pins after one scan may take together; the next begins with the rest

NO_ENVIRONMENTS = (
    "environments of jobs' processes cannot be read: AFFINITYD=off in them has no effect, and "
    "rules by partition, account and environment match no process; give the daemon CAP_SYS_PTRACE "
    "and CAP_DAC_READ_SEARCH (affinityd.service.d/enforce.conf for systemd, "
    "enforce.readEnvironments in the chart)"
)
NOT_SEEN = "the processes of {gpus} are not known: {why}"


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Enforced:
    """One look at all processes that use GPUs, after a scan, with its inputs."""

    topology: Topology
    scan: Scan
    wanted: str  #: of ENFORCE_VALUES: as it was set
    does: str  #: of ENFORCE_VALUES: its actual mode
    hindrance: str | None  #: why it observes where it was to pin
    policy: PolicyState
    decisions: Sequence[Decision]  #: in the scan's order
    records: Mapping[int, PinRecord]  #: the history of the processes, by pid
    totals: TotalsDocument
    done: Sequence[PinAttempt] = ()
    notices: Sequence[str] = ()  #: its limits, for people
    unreached: int = 0  #: processes that should have been pinned and were not reached in time
    seconds: float = 0.0  #: how long it took, without the scan


class Enforcer:
    """Looks at one scan after the other, and pins drifted processes if it should."""

    def __init__(
        self,
        wanted: str,
        policy: PolicyFile,
        *,
        why_not_pin: Callable[[], str | None],
        reserved: CpuSet = frozenset(),
    ) -> None:
        """Take the wanted mode, of ENFORCE_VALUES, and the policy.

        `why_not_pin`: tells why the daemon cannot pin now.
        """
        self._wanted = wanted
        self._policy = policy
        self._why_not_pin = why_not_pin
        self._reserved = reserved
        self._identities = ProcessIdentities()
        self._backoff = Backoff()
        self._history: JobHistory = Recent()
        self._pins = Counter[str]()
        self._threads = 0

    def enforce(self, topology: Topology, scan: Scan) -> Enforced:
        """Look once; takes as long as deciding, and in `pin_process` about PASS more at most."""
        began = time.monotonic()
        hindrance = self._why_not_pin()
        does = self._wanted if hindrance is None else OBSERVE
        decisions = self._decide(topology, scan)
        drifted = [it for it in decisions if it.verdict == DRIFTED and not it.is_observed]
        drifted = drifted if does == PIN else []
        done = self._pin(drifted)
        return Enforced(
            topology,
            scan,
            wanted=self._wanted,
            does=does,
            hindrance=hindrance,
            policy=self._policy.state,
            decisions=decisions,
            records={it.facts.pid: self._backoff.record(it.facts) for it in scan.processes},
            totals=TotalsDocument(
                {outcome: self._pins[outcome] for outcome in PIN_OUTCOMES},
                threads=self._threads,
                resets=self._backoff.resets,
            ),
            done=done,
            notices=[*notices(scan.unknown, is_blind=self._identities.is_blind)],
            unreached=len(drifted) - len(done),
            seconds=time.monotonic() - began,
        )

    def _decide(self, topology: Topology, scan: Scan) -> list[Decision]:
        policy = self._policy.current()
        variables = frozenset() if policy is None else policy.variables
        self._identities.begin(scan.boot)
        self._backoff.begin(scan.boot)
        decisions = decide(
            topology,
            scan,
            reserved=self._reserved,
            policy=policy,
            identify=lambda facts: self._identities.of(facts, variables),
            given=self._backoff.given,
            history=self._history,
        )
        return [*map(self._backoff.after_waiting, decisions)]

    def _pin(self, drifted: Iterable[Decision]) -> list[PinAttempt]:
        """Pin the drifted processes, until the deadline."""
        end = time.monotonic() + PASS
        done = []
        for decision in drifted:
            if time.monotonic() >= end:
                break
            done.append(self._pin_one(decision, end))
        return done

    def _pin_one(self, decision: Decision, end: float) -> PinAttempt:
        """Pin a process, and count it."""
        facts, target = decision.process.facts, decision.target
        assert target is not None  # noqa: S101 - a drifted process has a place
        done = PinAttempt(decision, pinner.pin_process(facts, target, end))
        self._threads += done.outcome.pinned
        self._pins.update(outcomes(done.outcome))
        self._backoff.note(done)
        return done


def outcomes(outcome: PinOutcome) -> Sequence[str]:
    """Return how a pin is counted: once, or not at all where there was nothing left to pin."""
    worst = (
        (REFUSED, outcome.refused),
        (CUT, outcome.cut is not None),
        (UNSETTLED, not outcome.is_settled),
        (PINNED, outcome.pinned),
    )
    return [name for name, is_so in worst if is_so and not outcome.is_gone][:1]


def notices(unknown: Mapping[GpuKey, str], *, is_blind: bool) -> Iterator[str]:
    """Yield the limits of this look, for people.

    `unknown`: GPUs with unknown processes → why; `is_blind`: an environment could not be read.
    """
    if is_blind:
        yield NO_ENVIRONMENTS
    alike = grouped(sorted(unknown), lambda gpu: (gpu[0], unknown[gpu]))
    for (vendor, why), gpus in alike.items():
        yield NOT_SEEN.format(gpus=f"{vendor} {several('GPU', (it for _, it in gpus))}", why=why)
