"""A node whose jobs are looked at scan after scan, and pinned as the kernel would: for tests."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from affinityd.audit.allocations import with_allocations
from affinityd.audit.auditor import FirstMasks, with_first_mask
from affinityd.audit.judge import Judge
from affinityd.audit.model import AuditedProcess, GpuKey, Membership, ProcessFacts
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.daemon.policy_document import parse
from affinityd.enforce.decide import Backoff, decide
from affinityd.enforce.model import DRIFTED, Decision
from affinityd.enforce.placement import JobHistory
from affinityd.enforce.policy.identity import ProcessIdentity, paths
from affinityd.grouping import Recent
from affinityd.topology.model import Topology
from tests.support.audit_facts import SLURM_JOB, process, scan_of
from tests.support.enforce_reports import done, result
from tests.support.machines.by_hand import made

NOW = 10_000.0  #: seconds since boot: who started with it is not young any more


class Site:
    """A machine, its policy, and what is remembered of the processes on it."""

    def __init__(
        self,
        topology: Topology,
        policy: str | None = "",
        *,
        reserved: str = "",
        identities: Mapping[int, ProcessIdentity] | None = None,
    ) -> None:
        """Take a policy's text, None: none could be read; and who processes are, by pid."""
        self.topology = topology
        self.policy = None if policy is None else parse(policy)
        self.backoff = Backoff()
        self.asked: list[int] = []  #: of whom somebody asked who they are, by pid
        self._identities = identities or {}
        self._reserved = parse_list(reserved)
        self._judge = Judge(topology)
        self._history: JobHistory = Recent()
        self._first_masks = FirstMasks()

    @property
    def near(self) -> Mapping[GpuKey, CpuSet | None]:
        """The near CPUs of every GPU; None: not known."""
        return self._judge.near

    def audited(self, facts: ProcessFacts) -> AuditedProcess:
        return self._judge.judge(with_first_mask(facts, self._first_masks))

    def look(self, *processes: ProcessFacts | AuditedProcess, boot: float = NOW) -> list[Decision]:
        """Return what is to become of what a scan found; `boot`: when it began."""
        self._first_masks.begin(boot)
        judged = [it if isinstance(it, AuditedProcess) else self.audited(it) for it in processes]
        found = with_allocations(self.topology, self._reserved, judged)
        return decide(
            self.topology,
            replace(scan_of(self.topology, *found), boot=boot),
            reserved=self._reserved,
            policy=self.policy,
            identify=self._identify,
            history=self._history,
            backoff=self.backoff,
        )

    def pin(self, *processes: ProcessFacts, boot: float = NOW) -> list[ProcessFacts]:
        """Look, pin those that have drifted, and return what all of them are then."""
        decisions = self.look(*processes, boot=boot)
        for decision in decisions:
            if decision.verdict == DRIFTED:
                self.backoff.note(done(decision, result(decision.drifted)))
        return [mended(decision) for decision in decisions]

    def _identify(self, facts: ProcessFacts) -> ProcessIdentity:
        self.asked.append(facts.pid)
        return self._identities.get(
            facts.pid, ProcessIdentity(facts.uid, cgroups=paths(facts.cgroups))
        )


TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
NO_JOB = Membership()

#: A policy under which a job's size does not matter.
NEAR_ALONE = 'cpus = "none"'


def rank(
    *masks: str,
    gpu: int | GpuKey = 0,
    cpuset: str | None = "0-7",
    membership: Membership = SLURM_JOB,
    cgroups: str = "",
    **more: Any,  # noqa: ANN401 - what `process` takes
) -> ProcessFacts:
    """Return a process that holds a GPU: of pid 100 where that is the first, of 200 the second."""
    key = ("nvidia", gpu) if isinstance(gpu, int) else gpu
    its = {"pid": 100 * (key[1] + 1), **more}
    facts = process(*masks, gpu=key, cpuset=cpuset, membership=membership, **its)
    return replace(facts, cgroups=cgroups)


def worker(
    *masks: str, of: ProcessFacts, pid: int = 900, cpuset: str | None = None
) -> ProcessFacts:
    """Return a process that works for another, which started it, and is in all else as that."""
    facts = process(*masks, pid=pid, gpu=of.gpu, holder=of.pid, parent=of.pid, beside=of.beside)
    cpus = of.cpuset if cpuset is None else parse_list(cpuset)
    return replace(facts, cpuset=cpus, membership=of.membership, cgroups=of.cgroups)


def moved(facts: ProcessFacts, *masks: str) -> ProcessFacts:
    """Return a process with other masks, or one for all of its threads."""
    of = masks if len(masks) > 1 else masks * len(facts.threads)
    threads = zip(facts.threads, of, strict=True)
    return replace(facts, threads=tuple(replace(it, mask=parse_list(mask)) for it, mask in threads))


def mended(decision: Decision) -> ProcessFacts:
    facts, target = decision.process.facts, decision.target
    if decision.verdict != DRIFTED or target is None:
        return facts
    drifted = {thread.tid for thread in target.threads(facts, DRIFTED)}
    threads = (replace(it, mask=target.cpus) if it.tid in drifted else it for it in facts.threads)
    return replace(facts, threads=tuple(threads))


def said(*decisions: Decision) -> list[str]:
    """Return the verdicts, each with its cause or reason: `fits`, `drifted mask`, `left daemon`."""
    return [" ".join(filter(None, (it.verdict, it.reason or it.cause))) for it in decisions]


def places(decisions: Iterable[Decision]) -> list[str | None]:
    """Return where each is to run; None: there is no place for it."""
    return [None if it.target is None else format_list(it.target.cpus) for it in decisions]


def masks(facts: ProcessFacts) -> list[str]:
    return [format_list(thread.mask) for thread in facts.threads]
