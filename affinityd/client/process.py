"""The facts of a process: its environment, GPUs, launcher and CPU limit, and its query for a plan.

Every client reads these facts once, in the same way; `request/task.py` says what they mean.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from affinityd import config
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import ApplyError, InvalidRequestError
from affinityd.linux.cgroup import Cgroups, cpuset_of, mask_of
from affinityd.linux.files import (
    FAILING,
    environment_of,
    in_time,
    is_there,
    numbered,
    present,
    text,
)
from affinityd.request import environment
from affinityd.request.environment import ENV, JOB_CPUS, SENT, Pairs, Rank, local_rank
from affinityd.text import quote

if TYPE_CHECKING:
    from affinityd.linux.processes import Stat

#: The device files of GPUs; the first kind that exists counts. Each has the name in `granted`, the
#: path below /dev without the number, and, if several vendors use the same path, the folder in
#: /sys/class and the PCI vendor.
GPU_DEVICE_FILES = (
    ("minor", "nvidia", None, None),
    ("davinci", "davinci", None, None),
    ("accel", "accel/accel", "accel/accel", b"0x1da3"),  # Habana's
    ("drm", "dri/renderD", "drm/renderD", b"0x1002"),  # AMD's
    ("drm", "dri/renderD", "drm/renderD", b"0x8086"),  # Intel's
)


class ProcessContext:
    """A process: its environment, and the devices and CPUs it may use.

    `environ` is None if it cannot be read, like another user's. `devices` are the request's
    `granted`; None: there are no device files of GPUs. `cpu_limit` is its container's, if known.
    """

    def __init__(
        self,
        pid: int,
        parent: int,
        environ: Mapping[str, str] | None,
        devices: str | None,
        cpu_limit: int | None = None,
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.environ = environ
        self.devices = devices
        self.cpu_limit = cpu_limit
        self._launcher: tuple[CpuSet | None, Mapping[str, str] | None] | None = None

    @classmethod
    def of_self(cls) -> ProcessContext:
        """Return the context of this process. Raises ApplyError if its devices are unknown."""
        environ: Mapping[str, str] = os.environ
        cgroups = Cgroups.of(os.getpid())
        asked = cgroups.container_limit()  # the limit of a service or a login is no request
        if asked is not None and not {environment.SLURM_JOB, JOB_CPUS} & environ.keys():
            environ = {**environ, JOB_CPUS: f"{asked}"}
        return cls(os.getpid(), os.getppid(), environ, _devices(), cgroups.cpu_limit())

    @classmethod
    def of(cls, process: Stat) -> ProcessContext:
        """Return the context of a process, with the devices in its own /dev. Raises ApplyError."""
        pid = process.number
        if pid == os.getpid():
            return cls.of_self()
        return cls(pid, process.parent, environment_of(pid), _devices(f"/proc/{pid}/root/dev"))

    @property
    def rank(self) -> Rank | None:
        """The rank that its launcher gave it. Raises InvalidRequestError."""
        return local_rank(self.environ or {})

    def is_bound(self, cpus: CpuSet) -> bool:
        """Return whether a launcher other than srun bound it to these CPUs, and has more itself."""
        rank = self.rank
        if rank is None or rank.variable == environment.SLURM_TASK:
            return False
        mask, _ = self.launcher
        return mask is not None and not cpus >= mask

    @property
    def launcher(self) -> tuple[CpuSet | None, Mapping[str, str] | None]:
        """The mask and the environment of its launcher, read once; None: not known."""
        if self._launcher is None:
            pid, environ = find_launcher(self.parent, self.environ or {})
            self._launcher = mask_of(pid), environ
        return self._launcher

    @property
    def mask(self) -> CpuSet:
        """The CPUs on which its main thread may run. Raises OSError if it has ended."""
        return frozenset(os.sched_getaffinity(self.pid))

    @property
    def cpuset(self) -> CpuSet | None:
        """The CPUs that its cgroup allows; None where that is not known."""
        return cpuset_of(self.pid)

    def query(self, chosen: Mapping[str, str], cpus: CpuSet, switch: str = config.ON) -> Pairs:
        """Return the query for a plan on these CPUs; in `chosen`, variables are in capitals."""
        parameters = {"cpuset": format_list(cpus)}
        if switch == config.OBSERVE:
            parameters["observe"] = format_list(cpus)
        if self.devices is not None:
            parameters["granted"] = self.devices
        parameters |= {name: text for name, text in chosen.items() if not name.isupper()}
        environ = {**(self.environ or {}), **chosen}
        sent: dict[str, str | None] = {**environ, **self._numberings(environ)}
        known = {name: text for name, text in sent.items() if text is not None}
        is_choice = "choose" in chosen or ("gpus" not in chosen and environment.chooses_gpu(known))
        if "cpuset" in chosen:  # the cpuset is then a choice, not a limit
            sent |= {environment.SLICE: None, environment.ALLOWED: None}
        else:
            sent |= self._limits(environ, cpus, is_choice=is_choice)
        if is_choice and environment.GPUS not in known:
            self._check_list()
        variables = [(ENV, f"{name}={sent[name]}") for name in SENT if sent.get(name) is not None]
        return (*parameters.items(), *variables)

    def _limits(
        self, environ: Mapping[str, str], cpus: CpuSet, *, is_choice: bool
    ) -> Mapping[str, str | None]:
        """Return the variables that limit its CPUs; a variable of None is not sent."""
        limit = environment.cpus_to_plan_on(environ, cpus)
        is_pinned = limit != cpus
        if is_pinned:  # since the pin the cpuset may have shrunk or been replaced
            limit &= self.cpuset or limit
        if self.is_bound(limit):
            return {environment.SLICE: format_list(limit), environment.ALLOWED: None}
        is_unbound = False
        if is_choice:
            of_launcher, _ = self.launcher
            is_unbound = of_launcher is not None and limit >= of_launcher
        is_narrowed = is_choice and not is_unbound and not limit >= (self.cpuset or limit)
        narrowed = format_list(limit) if is_narrowed else None
        if environment.SLURM_JOB in environ and not is_pinned:
            return {environment.SLICE: narrowed}  # ALLOWED is only for a pinned task
        return {environment.SLICE: narrowed, environment.ALLOWED: format_list(limit)}

    def _check_list(self) -> None:
        """Raise InvalidRequestError if each rank may have another list of visible GPUs."""
        rank = self.rank
        own = self.environ or {}
        is_lone = rank is None or environment.is_alone(own, rank)
        if rank is None or is_lone or rank.variable == environment.SLURM_TASK:
            return  # srun's launcher runs as root, and sets the list for each task
        _, above = self.launcher
        here = None if self.devices is None else self.devices.count(",") + 1
        for name in environment.VISIBLE_NAMES:
            listed = own.get(name)
            if not listed or above is None or above.get(name) == listed:
                continue
            if here is None or environment.gpus_in(listed) * (rank.size or 1) <= here:
                raise InvalidRequestError(
                    f"choose: the list of GPUs, {quote(f'{name}={listed}')}, is not the "
                    "launcher's, and may be of this rank alone: set it before the launch, or leave "
                    "choose out"
                )

    def _numberings(self, environ: Mapping[str, str]) -> Mapping[str, str | None]:
        """Return the variables that number its GPUs and ranks; a variable of None is not sent."""
        facts: dict[str, str | None] = {environment.MPS_PIPE: None}
        own = self.environ or {}
        if own.get(environment.PINNED_FOR) != environment.task_of(own):
            facts[environment.GPUS] = None  # those GPUs were chosen for another task
        user = os.geteuid()
        if self.root:
            facts[config.CHOOSE_GPU] = None  # the process already runs with its choice
            status = _status(f"/proc/{self.pid}")
            if status is not None:
                user = status.st_uid
        of_daemon = mps_daemon(environ, self.root, user)
        if of_daemon is not None:
            facts[environment.MPS_LIST] = of_daemon.get(environment.CUDA)
            if of_daemon.get(environment.DEVICE_ORDER) != environment.BUS_ORDER:
                facts[environment.DEVICE_ORDER] = None  # the MPS daemon's order decides
        has_minors = (self.devices or "").startswith("minor:")
        if not has_minors or not _is_listed(environ, self.root):
            facts[environment.NVIDIA_VISIBLE] = None
        launchers = environ.keys() & environment.LAUNCHERS.keys()
        is_lone_worker = environ.get("LOCAL_WORLD_SIZE") == "1"
        if launchers <= {environment.LOCAL_RANK} and not is_lone_worker:
            facts[environment.TORCHRUN] = None  # it has no effect here; 0.2 refuses it
        return facts

    @property
    def root(self) -> str:
        """The root of its paths, seen from this process; "" for this process."""
        return "" if self.pid == os.getpid() else f"/proc/{self.pid}/root"


def find_launcher(parent: int, environ: Mapping[str, str]) -> tuple[int, Mapping[str, str] | None]:
    """Return the pid and environment of a launcher, for a process of this parent and environment.

    The launcher is the nearest ancestor with another rank: a script of the rank has the same rank.
    If the launcher is not known, its pid is 0; if its environment cannot be read, that is None.
    """
    of_rank = {(name, environ[name]) for name in environment.variables_of_rank(environ)}
    pid = parent
    for _ in range(8):  # at most so many processes, such as shells, are in between
        above = _read_soon(pid)
        if above is None or of_rank.isdisjoint(above.items()):
            return pid, above
        fields = text(f"/proc/{pid}/stat").rpartition(")")[2].split()  # proc_pid_stat(5)
        pid = int(fields[1]) if len(fields) > 1 else 0
    return 0, None


def _read_soon(pid: int) -> Mapping[str, str] | None:
    """Return the environment of another process; None if it cannot be read in time."""
    try:
        return in_time(lambda: environment_of(pid), 0.3)  # that process's page fault may block this
    except TimeoutError:
        return None


def _devices(dev: str = "/dev") -> str | None:
    """Return granted_gpus(). Raises ApplyError, with the file's name, instead of OSError."""
    try:
        return granted_gpus(dev)
    except OSError as error:
        raise ApplyError(f"{error.filename or 'a file'}: {error.strerror}") from None


def granted_gpus(dev: str = "/dev", sys: str = "/sys") -> str | None:
    """Return the request's `granted`, by GPU_DEVICE_FILES; None if no device files show it.

    access(2) honors the device cgroup and opens nothing. If the process may open none of NVIDIA's
    files, the answer is "none"; files of other vendors may also be closed to users outside their
    group. Raises OSError.
    """
    for kind, files, of_class, vendor in GPU_DEVICE_FILES:
        folder, _, prefix = f"{dev}/{files}".rpartition("/")
        numbers = numbered(folder, prefix, FAILING)
        usable = [number for number in numbers if may_open(f"{dev}/{files}{number}")]
        if vendor is not None:
            path = f"{sys}/class/{of_class}"
            of_number = {number: present(f"{path}{number}/device/vendor") for number in usable}
            usable = [number for number in usable if (of_number[number] or b"").strip() == vendor]
        if usable:
            return ",".join(f"{kind}:{number}" for number in usable)
        if numbers and kind == "minor":
            return "none"
    return None


def may_open(path: str) -> bool:
    """Return whether this process may open a file, by permissions and by its device cgroup."""
    return os.access(path, os.R_OK | os.W_OK)


def _is_listed(environ: Mapping[str, str], root: str) -> bool:
    """Return whether NVIDIA_VISIBLE_DEVICES lists the GPUs of a container."""
    listed = environ.get(environment.NVIDIA_VISIBLE, "")
    if not listed[:1].isdigit() and not listed.startswith(("GPU-", "MIG-")):
        return False
    files = (f"{root}/.dockerenv", f"{root}/run/.containerenv")  # Docker's and Podman's
    return "KUBERNETES_SERVICE_HOST" in environ or any(map(is_there, files))


def mps_daemon(
    environ: Mapping[str, str], root: str = "", user: int = 0
) -> Mapping[str, str] | None:
    """Return the environment of the MPS daemon that a user's process uses; None: no daemon.

    Only daemons of root and of the user count. Other users cannot read the list of root's daemon.
    """
    name = "nvidia-cuda-mps-control"
    folder = root + (environ.get(environment.MPS_PIPE) or "/tmp/nvidia-mps")  # noqa: S108
    control = _status(f"{folder}/control")
    if control is None or not stat.S_ISSOCK(control.st_mode) or control.st_uid not in {0, user}:
        return None
    unknown = {environment.CUDA: environment.MPS_UNKNOWN}
    pid = environment.number(text(f"{folder}/{name}.pid"))
    comm = text(f"/proc/{pid or 0}/comm")  # the first 15 characters of its name
    if not pid or not comm or not name.startswith(comm):
        return unknown
    owner = _status(f"/proc/{pid}")
    if owner is None or owner.st_uid != control.st_uid:
        return unknown
    environ_of_daemon = _read_soon(pid)
    return unknown if environ_of_daemon is None else environ_of_daemon


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
