"""Finds out who processes are, and remembers it: /proc, the users' names, the pods' folders."""

from __future__ import annotations

import pwd
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from affinityd import switch
from affinityd.audit.membership import is_slurms
from affinityd.audit.model import KUBERNETES, ProcessFacts
from affinityd.cpuset import CpuSet, parse_list
from affinityd.enforce.about import SLURMS, About, paths
from affinityd.enforce.environ import environment
from affinityd.enforce.patience import Patience
from affinityd.enforce.pods import PODS, Pods
from affinityd.processes import PROC

#: Variables that count besides those that rules ask for.
CPULIST, LOCALITY = "AFFINITYD_CPULIST", "AFFINITYD_LOCALITY"  #: what clients tell a job
ALWAYS = frozenset((switch.VARIABLE, CPULIST, LOCALITY))

FORGOTTEN = 600.0  #: seconds after which who was not asked for is forgotten, or twice that


@dataclass(frozen=True)
class Known:
    """What was read of a process."""

    variables: frozenset[str]  #: that were looked for
    environment: Mapping[str, str] | None


class Abouts:
    """Who processes are. Each one's environment is read once: its memory's lock is taken for it."""

    def __init__(self, proc: str = PROC, pods: str = PODS) -> None:
        """Take where the processes are, and the pods' folders."""
        self._proc = proc
        self._pods = Pods(pods)
        self._patience = Patience()
        self._users: dict[int, str | None] = {}
        self._known: dict[tuple[int, int], Known] = {}  # by pid and start
        self._before: dict[tuple[int, int], Known] = {}
        self._turn = 0.0  # time.monotonic() when those of `_before` are forgotten

    def of(self, facts: ProcessFacts, variables: Collection[str]) -> About:
        """Return who a process is; of its environment, these variables.

        Its user is told where SLURM_JOB_USER is among them: a directory may take seconds to answer.
        """
        environ = self._environment(facts, ALWAYS | frozenset(variables))
        said = environ or {}
        its = {name: said.get(variable) for name, variable in SLURMS.items()}
        if SLURMS["user"] in variables:
            its["user"] = self._user(facts.uid) or its["user"]
        job = facts.membership.job
        is_pod = job is not None and job.scheduler == KUBERNETES
        pod = self._pods.of(job.id) if job is not None and is_pod else None
        unread = {"environment"} if environ is None else set[str]()
        if environ is None and is_slurms(job):
            unread |= {name for name, text in its.items() if text is None}
        unread |= {"namespace", "pod"} if is_pod and pod is None else set()
        return About(
            uid=facts.uid,
            **its,
            namespace=pod.namespace if pod else None,
            pod=pod.name if pod else None,
            cgroups=paths(facts.cgroups),
            environment=environ,
            switch=switch.heeded(said.get(switch.VARIABLE, "")),
            given=_given(said),
            unread=frozenset(unread),
        )

    def _environment(
        self, facts: ProcessFacts, variables: frozenset[str]
    ) -> Mapping[str, str] | None:
        """Return these of its variables, and maybe others that were asked for earlier."""
        self._forget()
        key = facts.pid, facts.start
        known = self._known.get(key) or self._before.get(key)
        if known is None or not variables <= known.variables:
            read = self._patience.result(lambda: environment(facts, variables, self._proc))
            known = Known(variables, read)
        self._known[key] = known
        return known.environment

    def _forget(self) -> None:
        now = time.monotonic()
        if now >= self._turn:
            self._before, self._known, self._users = self._known, {}, {}
            self._turn = now + FORGOTTEN

    def _user(self, uid: int | None) -> str | None:
        """Return a user's name; None where there is no such user here."""
        if uid is None:
            return None
        if uid not in self._users:  # a directory that does not answer takes seconds
            self._users[uid] = _name_of(uid)
        return self._users[uid]


def _given(said: Mapping[str, str]) -> CpuSet | None:
    if said.get(LOCALITY) != "mixed":
        return None
    try:
        return parse_list(said.get(CPULIST, ""))
    except ValueError:
        return None


def _name_of(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
