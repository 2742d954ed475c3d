"""What is known of a process that a plan is for: of this one, or of another one by its pid.

`affinityd exec` imports this: no dataclasses, nothing that only other processes take.
"""

from __future__ import annotations

import os

from affinityd.client.device_access import granted_gpus, vendors
from affinityd.cpuset import CpuSet
from affinityd.linux.cpu_limit import own_cpu_limit
from affinityd.linux.files import environment_of
from affinityd.request import environment
from affinityd.request.environment_cpus import JOB_CPUS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from affinityd.linux.processes import Stat
    from affinityd.request.environment import Question


class ProcessContext:
    """A process, by what it was started with and what it may use; read once, all but the CPUs.

    `environ` is None where it cannot be read, as another user's; `parent_environ` likewise.
    `devices` are the GPUs whose files it may open, as the request's `granted`: None where there
    are no such files.
    """

    __slots__ = ("_root", "devices", "environ", "parent_environ", "pid")

    def __init__(
        self,
        pid: int,
        environ: Mapping[str, str] | None,
        parent_environ: Mapping[str, str] | None,
        devices: str | None,
        root: str = "",
    ) -> None:
        self.pid = pid
        self.environ = environ
        self.parent_environ = parent_environ
        self.devices = devices
        self._root = root

    @classmethod
    def of_self(cls) -> ProcessContext:
        """Return what this process knows of itself."""
        environ = _with_cpu_limit(os.environ)
        return cls(os.getpid(), environ, environment_of(os.getppid()), granted_gpus())

    @classmethod
    def of(cls, process: Stat, root: str = "") -> ProcessContext:
        """Return what is known of a process; of another one its own /dev tells the devices.

        A container has those alone that it was given. `root`: where the machine's files are.
        """
        pid = process.number
        if pid == os.getpid() and not root:
            return cls.of_self()
        return cls(
            pid,
            environment_of(pid, root),
            environment_of(process.parent, root),
            granted_gpus(f"{root}/proc/{pid}/root/dev"),
            root,
        )

    @property
    def mask(self) -> CpuSet:
        """The CPUs on which its main thread may run. Raises OSError where it is gone."""
        return frozenset(os.sched_getaffinity(self.pid))

    @property
    def cpuset(self) -> CpuSet | None:
        """The CPUs that its cgroup allows; None where that is not known."""
        from affinityd.linux import cgroup  # noqa: PLC0415 - exec plans on its mask

        found = cgroup.cpuset_of(self.pid, self._root or "/")
        is_own = self.pid == os.getpid() and not self._root
        return cgroup.widest_mask() if found is None and is_own else found

    @property
    def visible(self) -> str | None:
        """The request's `visible`: the GPUs that its environment names; None: it names none."""
        return environment.visible(self.environ or {}, vendors())

    def questions(self, given: Mapping[str, str], cpus: CpuSet) -> list[Question]:
        """Return the plan requests of the process on these CPUs; `given` parameters count more."""
        facts = {} if self.devices is None else {"granted": self.devices}
        given = {**facts, **given}
        environ, parent = self.environ or {}, self.parent_environ
        return list(environment.process_questions(given, environ, cpus, parent, vendors()))


def _with_cpu_limit(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment, and how many CPUs its container may use where nothing says that."""
    if {"SLURM_JOB_ID", JOB_CPUS} & environ.keys():
        return environ
    limit = own_cpu_limit()
    return environ if limit is None else {**environ, JOB_CPUS: f"{limit}"}
