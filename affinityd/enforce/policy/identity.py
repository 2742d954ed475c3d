"""The properties of a process by which a policy selects it, and its environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from affinityd import config
from affinityd.audit.gather import is_slurms
from affinityd.audit.model import KUBERNETES, ProcessFacts
from affinityd.config import OBSERVE, ON
from affinityd.cpuset import CpuSet, parse_list
from affinityd.grouping import REMEMBERED, Recent
from affinityd.linux.cgroup import hierarchies
from affinityd.linux.files import environment_of, listed
from affinityd.linux.processes import cgroups_of, is_running, stat_of, user_name
from affinityd.threads import Readings

ANCESTORS = 8  #: tried for a process that has overwritten its own


def environment(facts: ProcessFacts, root: str = "") -> Mapping[str, str] | None:
    """Return the environment of a process; None where it cannot be read.

    For a process that changes its title (setproctitle, as Ray's and vLLM's workers) that of the
    nearest ancestor in the same cgroups counts.
    """
    proc, pid, start = f"{root}/proc", facts.pid, facts.start
    for _ in range(ANCESTORS):
        variables, stat = environment_of(pid, root), stat_of(pid, proc)
        if variables is None or stat is None or stat.start != start:
            return None
        if variables:
            return variables
        parent = stat_of(stat.parent, proc)
        if parent is None or cgroups_of(parent.number, proc) != facts.cgroups:
            return None
        pid, start = parent.number, parent.start
    return None


PODS = "/var/log/pods"
NO_POD: Mapping[str, str | None] = {"namespace": None, "pod": None}

_beside = re.compile(r"^(?:/\.\.)+(?=/|$)")

#: Field of `ProcessIdentity` → Slurm's variable for it.
SLURMS: Mapping[str, str] = {
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "user": "SLURM_JOB_USER",
}


@dataclass(frozen=True)
class ProcessIdentity:
    """A process; None: it has no such value, or, if the field is in `unread`, it is unknown."""

    uid: int | None = None  #: real user id
    user: str | None = None
    partition: str | None = None  #: Slurm's
    account: str | None = None  #: Slurm's
    namespace: str | None = None  #: Kubernetes'
    pod: str | None = None  #: its name
    cgroups: tuple[str, ...] = ()  #: its paths, in the order of /proc/PID/cgroup
    #: Its variables that a rule names; None: its environment cannot be read.
    environment: Mapping[str, str] | None = None
    switch: str = ON  #: AFFINITYD, as that has it; observe if that cannot be read
    #: CPUs, near and far, given because it asked for so many; None: unknown.
    given: CpuSet | None = None
    unread: frozenset[str] = frozenset()  #: fields that cannot be read here


@lru_cache(maxsize=1024)  # a job's processes share theirs
def paths(cgroup_text: str) -> tuple[str, ...]:
    """Return the paths of /proc/PID/cgroup, each once, by its lines `ID:controller,…:/path`.

    To a reader in a cgroup namespace paths outside it begin with `/..`, up to an unknown common
    folder: cgroup_namespaces(7).
    """
    text = cgroup_text.encode(errors="surrogateescape").decode(errors="replace")  # for people, too
    names = (_beside.sub("", path) for _, path in hierarchies(text))
    return tuple(dict.fromkeys(path for path in names if path))


#: Variables that count, besides those that rules name.
CPULIST, LOCALITY = "AFFINITYD_CPULIST", "AFFINITYD_LOCALITY"  #: that clients set for a job
ALWAYS = frozenset((config.SWITCH, CPULIST, LOCALITY))

#: A process, by pid and start, and the requested variables.
Key = tuple[int, int, frozenset[str]]


class ProcessIdentities:
    """The identities of processes. An environment is read once: that takes a lock of its memory."""

    def __init__(self, root: str = "", pods: str = PODS) -> None:
        self.is_blind = False  #: the environment of a process could not be read in this scan
        self._root = root
        self._folder = pods
        self._readings: Readings[Key, Mapping[str, str] | None] = Readings()
        self._pods = cache(pods_of)
        self._user = cache(user_name)  # a directory that does not answer takes seconds
        self._users_began = 0.0  # when the first of them was requested, seconds since boot
        self._known: Recent[Key, Mapping[str, str] | None] = Recent()

    def begin(self, boot: float) -> None:
        """Begin another scan; `boot`: when, seconds since boot."""
        self.is_blind = False
        self._known.begin(boot)
        self._pods = cache(pods_of)
        if boot - self._users_began >= REMEMBERED:  # a directory may answer by now, or otherwise
            self._user, self._users_began = cache(user_name), boot

    def of(self, facts: ProcessFacts, variables: Collection[str]) -> ProcessIdentity:
        """Return the identity of a process, with these variables of its environment.

        Its user is looked up if SLURM_JOB_USER is among them: a directory may take seconds.
        """
        environ = self._environment(facts, ALWAYS.union(variables))
        if environ is None and is_running(facts.pid, facts.start):
            self.is_blind = True
        values, given = environ or {}, None
        if values.get(LOCALITY) == "mixed":
            with suppress(ValueError):
                given = parse_list(values.get(CPULIST, ""))
        switch = config.read_switch_or_off(values.get(config.SWITCH, ""))
        names = {name: values.get(variable) for name, variable in SLURMS.items()}
        if SLURMS["user"] in variables and facts.uid is not None:
            names["user"] = self._user(facts.uid) or names["user"]
        unread = {"environment"} if environ is None else set[str]()
        job = facts.membership.job
        if environ is None and is_slurms(job):
            unread |= {name for name, text in names.items() if text is None}
        if job is not None and job.scheduler == KUBERNETES:
            # By its folder of logs, which has the pod's uid, as its cgroup; else by kubelet's GPUs.
            told = facts.given
            by_kubelet = NO_POD if told is None else {"namespace": told.namespace, "pod": told.pod}
            names |= self._pods(self._folder).get(job.id, by_kubelet)
            unread |= {name for name in NO_POD if names[name] is None}
        return ProcessIdentity(
            uid=facts.uid,
            **names,
            cgroups=paths(facts.cgroups),
            environment=environ,
            switch=switch if environ is not None else OBSERVE,
            given=given,
            unread=frozenset(unread),
        )

    def _environment(
        self, facts: ProcessFacts, variables: frozenset[str]
    ) -> Mapping[str, str] | None:
        """Return these variables of a process; None: they cannot be read, or not in time."""
        key = facts.pid, facts.start, variables
        if key in self._known:
            return self._known.get(key)
        try:
            environ = self._readings.result(key, partial(environment, facts, self._root))
        except FutureTimeoutError:  # the next scan asks again: it may have AFFINITYD=off
            return None
        if environ is not None:
            environ = {name: environ[name] for name in variables if name in environ}
        self._known[key] = environ
        return environ


def pods_of(folder: str) -> Mapping[str, Mapping[str, str | None]]:
    """Return the names of this node's pods, by uid, from the kubelet's folders of logs.

    Their folders are called NAMESPACE_NAME_UID: kubelet pkg/kubelet/kuberuntime/helpers.go
    `BuildPodLogsDirectory`. Neither a namespace nor a pod's name has a `_` in it (RFC 1123), and
    the uid is that of the pod's cgroup: of a static pod, the hash of its manifest. No file of the
    node has a pod's labels.
    """
    pods = {}
    for name in listed(folder):
        named, _, uid = name.rpartition("_")
        namespace, _, pod = named.partition("_")
        pods[uid] = {"namespace": namespace, "pod": pod}
    return pods
