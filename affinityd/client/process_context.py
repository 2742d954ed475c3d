"""The facts about a process for its plan: this process, or another one by its pid."""

from __future__ import annotations

import os

from affinityd.config import CPUS
from affinityd.cpuset import CpuSet, format_list
from affinityd.linux.cgroup import cpuset_of, own_cpu_limit, widest_mask
from affinityd.linux.files import environment_of, numbered, text
from affinityd.request import environment
from affinityd.request.environment import ENV, JOB_CPUS, OF_TASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from affinityd.linux.processes import Stat
    from affinityd.request.environment import Pairs


#: A file that each vendor's driver makes.
DRIVERS = {"nvidia": "/dev/nvidiactl", "amd": "/dev/kfd", "huawei": "/dev/davinci_manager"}
AMD = "0x1002"  #: the PCI vendor, in /sys/class/drm/renderDN/device/vendor


class ProcessContext:
    """A process: its environment, and the devices and CPUs it may use; all but the CPUs read once.

    `environ` is None if it cannot be read, as of another user; so is `parent_environ`.
    `devices` are the GPUs whose files it may open, as the request's `granted`: None where there
    are no such files.
    """

    __slots__ = ("devices", "environ", "parent_environ", "pid")

    def __init__(
        self,
        pid: int,
        environ: Mapping[str, str] | None,
        parent_environ: Mapping[str, str] | None,
        devices: str | None,
    ) -> None:
        self.pid = pid
        self.environ = environ
        self.parent_environ = parent_environ
        self.devices = devices

    @classmethod
    def of_self(cls) -> ProcessContext:
        """Return the context of this process."""
        environ = _with_cpu_limit(os.environ)
        return cls(os.getpid(), environ, environment_of(os.getppid()), granted_gpus())

    @classmethod
    def of(cls, process: Stat) -> ProcessContext:
        """Return the context of a process; the devices of another one are those in its /dev.

        A container has only the devices that it was given.
        """
        pid, parent = process.number, process.parent
        if pid == os.getpid():
            return cls.of_self()
        devices = granted_gpus(f"/proc/{pid}/root/dev")
        return cls(pid, environment_of(pid), environment_of(parent), devices)

    @property
    def mask(self) -> CpuSet:
        """The CPUs on which its main thread may run. Raises OSError if it has ended."""
        return frozenset(os.sched_getaffinity(self.pid))

    @property
    def cpuset(self) -> CpuSet | None:
        """The CPUs that its cgroup allows; None where that is not known."""
        cpus = cpuset_of(self.pid)
        return widest_mask() if cpus is None and self.pid == os.getpid() else cpus

    @property
    def visible(self) -> str | None:
        """The request's `visible`: the GPUs that its environment names; None: it names none."""
        return environment.visible(self.environ or {}, _vendors())

    def query(self, chosen: Mapping[str, str], cpus: CpuSet) -> Pairs:
        """Return the query for a plan of the process on these CPUs.

        `chosen` are parameters and, in capitals, variables; they override the process's own.
        """
        environ, visible = {**(self.environ or {}), **chosen}, self.visible
        facts = {"cpuset": format_list(cpus), "granted": self.devices, "visible": visible}
        stated = {name: text for name, text in facts.items() if text is not None}
        stated |= {name: text for name, text in chosen.items() if not name.isupper()}
        if not {"gpus", "rank"} & chosen.keys() and self._shares(visible):
            rank = environment.local_rank(environ)
            if rank is not None and rank.variable != environment.SLURM_TASK:
                stated["rank"] = f"{rank.number}"
                stated |= {} if rank.size is None else {"ranks": f"{rank.size}"}
        variables = [name for name in (*OF_TASK, CPUS) if name in environ]
        return (*stated.items(), *((ENV, f"{name}={environ[name]}") for name in variables))

    def _shares(self, visible: str | None) -> bool:
        """Return whether its single visible GPU is its siblings', too: their parent has the same.

        Slurm says by itself which GPUs a task has.
        """
        if visible is None or self.parent_environ is None or environment.gpus_in(visible) > 1:
            return False
        return environment.visible(self.parent_environ, _vendors()) == visible


def _with_cpu_limit(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment, with its container's number of CPUs if no variable has that."""
    if {"SLURM_JOB_ID", JOB_CPUS} & environ.keys():
        return environ
    limit = own_cpu_limit(len(os.sched_getaffinity(0)))
    return environ if limit is None else {**environ, JOB_CPUS: f"{limit}"}


def _vendors() -> list[str]:
    """Return the vendors with a loaded driver."""
    return [vendor for vendor, path in DRIVERS.items() if os.path.exists(path)]  # noqa: PTH110


def granted_gpus(dev: str = "/dev", sys: str = "/sys") -> str | None:
    """Return the request's `granted`; None if no device files show it.

    NVIDIA's /dev/nvidiaN, else AMD's /dev/dri/renderDN: N is the device's minor, not the
    process's GPU number. access(2) honors the device cgroup and opens nothing. If NVIDIA's
    files exist and none of them may be opened it is "none"; AMD's may also be closed to a user
    that is in no group of theirs.
    """
    minors = numbered(dev, "nvidia")
    if minors:
        usable = [minor for minor in minors if _may_open(f"{dev}/nvidia{minor}")]
        return ",".join(f"minor:{minor}" for minor in usable) or "none"
    minors = numbered(f"{dev}/dri", "renderD")
    renders = [minor for minor in minors if _may_open(f"{dev}/dri/renderD{minor}")]
    vendor = {minor: text(f"{sys}/class/drm/renderD{minor}/device/vendor") for minor in renders}
    return ",".join(f"drm:{minor}" for minor in renders if vendor[minor] == AMD) or None


def _may_open(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)
