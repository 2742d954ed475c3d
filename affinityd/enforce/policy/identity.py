"""The identity of a process, as far as a policy may ask."""

from __future__ import annotations

import pwd
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from affinityd.audit.membership import DELETED, is_slurms
from affinityd.audit.model import KUBERNETES, ProcessFacts
from affinityd.config import switch
from affinityd.config.switch import ON
from affinityd.cpuset import CpuSet, parse_list
from affinityd.enforce.policy.environ import environment
from affinityd.enforce.policy.pods import PODS, Pods
from affinityd.enforce.policy.timed_call import TimedCalls
from affinityd.recent import REMEMBERED, Recent

_beside = re.compile(r"^(?:/\.\.)+(?=/|$)")

#: Field of `ProcessIdentity` → the variable in which Slurm says it.
SLURMS: Mapping[str, str] = {
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "user": "SLURM_JOB_USER",
}


@dataclass(frozen=True)
class ProcessIdentity:
    """A process; what is None it has not, or that is not known: then the field is in `unread`."""

    uid: int | None = None  #: real user id
    user: str | None = None
    partition: str | None = None  #: Slurm's
    account: str | None = None  #: Slurm's
    namespace: str | None = None  #: Kubernetes'
    pod: str | None = None  #: its name
    cgroups: tuple[str, ...] = ()  #: its paths, in the order of /proc/PID/cgroup
    #: Its variables, as far as a rule asks for them; None: its environment cannot be read.
    environment: Mapping[str, str] | None = None
    switch: str = ON  #: AFFINITYD, as that has it
    #: CPUs, near and far, that it was given as it had asked for so many; None: not known.
    given: CpuSet | None = None
    unread: frozenset[str] = frozenset()  #: fields that cannot be read here


@lru_cache(maxsize=1024)  # a job's processes share theirs
def paths(cgroup_text: str) -> tuple[str, ...]:
    """Return the paths of /proc/PID/cgroup, each once, by its lines `ID:controller,…:/path`.

    To a reader in a cgroup namespace those beside it begin with `/..`, up to what they share, which
    is not known: cgroup_namespaces(7).
    """
    text = cgroup_text.encode(errors="surrogateescape").decode(errors="replace")  # for people, too
    found = (line.partition(":")[2].partition(":")[2] for line in text.split("\n"))
    told = (_beside.sub("", path.removesuffix(DELETED)) for path in found)
    return tuple(dict.fromkeys(path for path in told if path))


#: Variables that count besides those that rules ask for.
CPULIST, LOCALITY = "AFFINITYD_CPULIST", "AFFINITYD_LOCALITY"  #: what clients tell a job
ALWAYS = frozenset((switch.VARIABLE, CPULIST, LOCALITY))


class ProcessIdentities:
    """The identities of processes. An environment is read once: that takes a lock of its memory."""

    def __init__(self, root: str = "", pods: str = PODS) -> None:
        """Take where the machine's files are, and the pods' folders."""
        self._root = root
        self._pods = Pods(pods)
        self._timed_calls = TimedCalls()
        self._users: dict[int, str | None] = {}
        self._users_began = 0.0  # when the first of them was asked for, seconds since boot
        self._known: Recent[tuple[int, int, frozenset[str]], Mapping[str, str] | None] = Recent()

    def begin(self, boot: float) -> None:
        """Begin another scan; `boot`: when, seconds since boot."""
        self._known.begin(boot)
        if boot - self._users_began >= REMEMBERED:  # a directory may answer by now, or otherwise
            self._users, self._users_began = {}, boot

    def of(self, facts: ProcessFacts, variables: Collection[str]) -> ProcessIdentity:
        """Return the identity of a process, with these variables of its environment.

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
        return ProcessIdentity(
            uid=facts.uid,
            **its,
            namespace=pod.namespace if pod else None,
            pod=pod.name if pod else None,
            cgroups=paths(facts.cgroups),
            environment=environ,
            switch=switch.read_or_off(said.get(switch.VARIABLE, "")),
            given=_given(said),
            unread=frozenset(unread),
        )

    def _environment(
        self, facts: ProcessFacts, variables: frozenset[str]
    ) -> Mapping[str, str] | None:
        key = facts.pid, facts.start, variables
        if key not in self._known:
            its = self._timed_calls.result(lambda: environment(facts, self._root))
            if its is not None:
                its = {name: its[name] for name in variables if name in its}
            self._known[key] = its
        return self._known.get(key)

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
