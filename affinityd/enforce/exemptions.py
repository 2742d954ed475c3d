"""Why a process is let alone, in sentences: what, why, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from affinityd.audit.model import GpuKey
from affinityd.cpuset import several
from affinityd.enforce.model import (
    DAEMON,
    NO_JOB,
    NO_POLICY,
    OPTED_OUT,
    POLICY,
    UNKNOWN_CPUSET,
    UNKNOWN_PLACE,
)
from affinityd.grouping import grouped

#: Of those reasons that are found out before there is a place for it.
WHY: Mapping[str, str] = {
    DAEMON: "it is known to run on every node",
    NO_JOB: (
        "it is in no job, or has left that of the process it works for (its cgroups are "
        "{cgroups}): start it by Slurm or in a container, or name its cgroup in a rule of the "
        "policy"
    ),
    NO_POLICY: "no policy could be read since the start: mend its file, and it counts",
    POLICY: "{which} of the policy leaves it",
    OPTED_OUT: "AFFINITYD=off is in the environment of process {pid} of its job",
    UNKNOWN_PLACE: "nobody knows on which node {gpus} is: affinityd doctor says what would tell",
    UNKNOWN_CPUSET: (
        "the cpuset of process {pid} cannot be read here: have the node's cgroups mounted where "
        "the daemon runs"
    ),
}

#: Of those for which one that has drifted is not to be pinned.
BY_MASKS = (
    "Slurm confines its tasks by masks alone here (task/affinity without task/cgroup's "
    "ConstrainCores=yes), so which CPUs are its job's and which another's is not known; set that "
    "in cgroup.conf, or pin with the TaskProlog"
)
MAY_LEAVE = (
    "rule {rule} of the policy may leave or observe it, and asks for what cannot be read here "
    "({unread}): give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for environments, "
    "/var/log/pods for namespaces and pods; or ask for something else"
)
GIVEN = (
    "it asked for more CPUs than are near its GPUs, and was given CPUs {cpus}: an allocation with "
    "more near ones would help"
)

#: Why it is only observed.
BY_JOB = "AFFINITYD=observe is in the environment of process {pid} of its job"
BY_POLICY = "{which} of the policy has it observed"


class ExemptError(Exception):
    """A process is let alone."""

    def __init__(self, reason: str, why: str | None = None, **said: object) -> None:
        """Take which of REASONS it is, and a sentence, or what the sentence of WHY has to name."""
        super().__init__(WHY[reason].format(**said) if why is None else why)
        self.reason = reason


NO_ENVIRONMENTS = (
    "the environment of processes in jobs cannot be read: AFFINITYD=off is not seen there, nor "
    "what rules ask of partition, account and environment; that takes CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH (affinityd.service.d/enforce.conf for systemd, enforce.readEnvironments "
    "in the chart)"
)
NOT_SEEN = "nothing is known of the processes of {gpus}: {why}"


def notices(unknown: Mapping[GpuKey, str], *, is_blind: bool, refusal: str | None) -> Iterator[str]:
    """Yield them.

    `unknown`: GPUs whose processes are not known → why; `is_blind`: an environment could not be
    read; `refusal`: why memory could not be moved.
    """
    if is_blind:
        yield NO_ENVIRONMENTS
    if refusal is not None:
        yield refusal
    alike = grouped(sorted(unknown), lambda gpu: (gpu[0], unknown[gpu]))
    for (vendor, why), gpus in alike.items():
        yield NOT_SEEN.format(gpus=f"{vendor} {several('GPU', (it for _, it in gpus))}", why=why)
