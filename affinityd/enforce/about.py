"""Who a process is, as far as a policy may ask. Pure: `abouts` finds it out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from affinityd.audit.membership import DELETED
from affinityd.cpuset import CpuSet
from affinityd.switch import ON

_beside = re.compile(r"^(?:/\.\.)+(?=/|$)")

#: Field of `About` → the variable in which Slurm says it.
SLURMS: Mapping[str, str] = {
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "user": "SLURM_JOB_USER",
}


@dataclass(frozen=True)
class About:
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
    unread: frozenset[str] = frozenset()  #: fields of which nobody can say here what they are


@lru_cache(maxsize=1024)  # a job's processes share theirs
def paths(cgroup_text: str) -> tuple[str, ...]:
    """Return the paths of /proc/PID/cgroup, each once, by its lines `ID:controller,…:/path`.

    To a reader in a cgroup namespace those beside it begin with `/..`, up to what they share, which
    nobody tells: cgroup_namespaces(7).
    """
    text = cgroup_text.encode(errors="surrogateescape").decode(errors="replace")  # for people, too
    found = (line.partition(":")[2].partition(":")[2] for line in text.split("\n"))
    told = (_beside.sub("", path.removesuffix(DELETED)) for path in found)
    return tuple(dict.fromkeys(path for path in told if path))
