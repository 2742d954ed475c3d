"""What a check needs to have something to judge; elsewhere it is not applicable, and says why."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from affinityd.doctor.facts import DaemonFacts, NodeFacts
from affinityd.doctor.result import CheckResults, not_applicable

REPLAYED = "the machine is replayed, and no daemon is its own"

CheckFunction = Callable[[NodeFacts], CheckResults]
ProcessCheck = Callable[[NodeFacts, DaemonFacts, int], CheckResults]


def of_gpus(check: CheckFunction) -> CheckFunction:
    """Judge nodes that have a GPU alone."""

    @wraps(check)
    def judge(facts: NodeFacts) -> CheckResults:
        return check(facts) if facts.topology.gpus else iter([not_applicable("there is no GPU")])

    return judge


def of_daemon(check: Callable[[NodeFacts, DaemonFacts], CheckResults]) -> CheckFunction:
    """Judge the daemon of this machine, or its absence; a replayed machine has none."""

    @wraps(check)
    def judge(facts: NodeFacts) -> CheckResults:
        return check(facts, facts.daemon) if facts.daemon else iter([not_applicable(REPLAYED)])

    return judge


def of_daemon_process(check: ProcessCheck) -> CheckFunction:
    """Judge the daemon's process, by its pid, where that is seen."""

    @of_daemon
    @wraps(check)
    def judge(facts: NodeFacts, daemon: DaemonFacts) -> CheckResults:
        if daemon.pid is None:
            return iter([not_applicable("no daemon's process is seen")])
        return check(facts, daemon, daemon.pid)

    return judge
