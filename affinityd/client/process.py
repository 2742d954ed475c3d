"""The facts of a process: its environment, GPUs, launcher and CPU limit, and its query for a plan.

They are read once, by every client alike; `request/task.py` says what they mean.
"""

from __future__ import annotations

import os
import stat

from affinityd import config
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import ApplyError
from affinityd.linux.cgroup import cpuset_of, own_cpu_limit
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
from affinityd.request.environment import ENV, JOB_CPUS, SENT, local_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from affinityd.linux.processes import Stat
    from affinityd.request.environment import Pairs, Rank

PARENT_SECONDS = 0.3  #: for which the environment of the parent is waited for
MOST_WRAPPERS = 8  #: processes between a rank and its launcher, as shells

#: PCI vendors, in /sys/class/drm/renderDN/device/vendor
AMD, INTEL, HABANA = b"0x1002", b"0x8086", b"0x1da3"
MPS_FOLDER, MPS_DAEMON = "/tmp/nvidia-mps", "nvidia-cuda-mps-control"  # noqa: S108 - by default


class ProcessContext:
    """A process: its environment, and the devices and CPUs it may use; all but the CPUs read once.

    `environ` is None if it cannot be read, as of another user. `devices` are the GPUs whose files
    it may open, as the request's `granted`: None where there are no such files. `cpu_limit` is that
    of its container; None: it has none, or is not known.
    """

    def __init__(
        self,
        pid: int,
        environ: Mapping[str, str] | None,
        find_launchers_mask: Callable[[], CpuSet | None],
        devices: str | None,
        cpu_limit: int | None = None,
    ) -> None:
        self.pid = pid
        self.environ = environ
        self._find_launchers_mask: Callable[[], CpuSet | None] | None = find_launchers_mask
        self.devices = devices
        self.cpu_limit = cpu_limit

    @classmethod
    def of_self(cls) -> ProcessContext:
        """Return the context of this process. Raises ApplyError if its devices are unknown."""
        environ: Mapping[str, str] = os.environ
        limit = own_cpu_limit()
        if limit is not None and not {environment.SLURM_JOB, JOB_CPUS} & environ.keys():
            environ = {**environ, JOB_CPUS: f"{limit}"}
        devices, parent = _devices(), os.getppid()
        return cls(os.getpid(), environ, lambda: launchers_mask(parent, environ), devices, limit)

    @classmethod
    def of(cls, process: Stat) -> ProcessContext:
        """Return the context of a process; the devices of another one are those in its /dev.

        A container has only the devices that it was given. Raises as `of_self`.
        """
        pid, parent = process.number, process.parent
        if pid == os.getpid():
            return cls.of_self()
        devices = _devices(f"/proc/{pid}/root/dev")
        environ = environment_of(pid)
        return cls(pid, environ, lambda: launchers_mask(parent, environ or {}), devices)

    @property
    def rank(self) -> Rank | None:
        """The rank that its launcher gave it. Raises InvalidRequestError."""
        return local_rank(self.environ or {})

    def is_bound(self, cpus: CpuSet) -> bool:
        """Return whether its launcher has bound it to these CPUs, and may have more itself.

        Slurm tells by itself what it bound a task to.
        """
        rank = self.rank
        if rank is None or rank.variable == environment.SLURM_TASK:
            return False
        mask = self.launchers_mask
        return mask is not None and not cpus >= mask

    @property
    def launchers_mask(self) -> CpuSet | None:
        """The mask of the launcher, read once; None: not known."""
        if self._find_launchers_mask is not None:
            self._launchers_mask = self._find_launchers_mask()
            self._find_launchers_mask = None
        return self._launchers_mask

    @property
    def mask(self) -> CpuSet:
        """The CPUs on which its main thread may run. Raises OSError if it has ended."""
        return frozenset(os.sched_getaffinity(self.pid))

    @property
    def cpuset(self) -> CpuSet | None:
        """The CPUs that its cgroup allows; None where that is not known."""
        return cpuset_of(self.pid)

    def query(self, chosen: Mapping[str, str], cpus: CpuSet, switch: str = config.ON) -> Pairs:
        """Return the query for a plan of the process on these CPUs.

        `chosen` are parameters and, in capitals, variables; they override the process's own.
        """
        parameters = {
            "observe": format_list(cpus) if switch == config.OBSERVE else None,
            "cpuset": format_list(cpus),
            "granted": self.devices,
            **{name: text for name, text in chosen.items() if not name.isupper()},
        }
        environ = {**(self.environ or {}), **chosen}
        sent: dict[str, str | None] = {**environ, **self._numberings(environ)}
        known = {name: text for name, text in sent.items() if text is not None}
        is_choice = "choose" in chosen or ("gpus" not in chosen and environment.chooses_gpu(known))
        if "cpuset" in chosen:  # which is a choice, and no limit
            sent |= {environment.SLICE: None, environment.ALLOWED: None}
        else:
            sent |= self._limits(environ, cpus, is_choice=is_choice)
        if is_choice and self._has_own_list():
            sent[environment.OWN_LIST] = "yes"
        variables = [(name, sent[name]) for name in SENT if sent.get(name) is not None]
        return (
            *((name, text) for name, text in parameters.items() if text is not None),
            *((ENV, f"{name}={text}") for name, text in variables),
        )

    def _limits(
        self, environ: Mapping[str, str], cpus: CpuSet, *, is_choice: bool
    ) -> Mapping[str, str | None]:
        """Return the variables of the CPUs that it is limited to; None: such a one is not sent.

        For a choice of GPUs it counts whatever bound it, as a script of the rank, and a launcher
        that is not seen here.
        """
        limit = environment.cpus_to_plan_on(environ, cpus)
        is_pinned = limit != cpus
        if is_pinned:  # the cpuset may have shrunk since that pin, or be another one
            limit &= self.cpuset or limit
        if self.is_bound(limit):
            return {environment.SLICE: format_list(limit), environment.ALLOWED: None}
        narrowed = format_list(limit) if is_choice and not self._is_unbound(limit) else None
        if environment.SLURM_JOB in environ and not is_pinned:
            return {environment.SLICE: narrowed}  # the other is of the pin of its slice, or unset
        return {environment.SLICE: narrowed, environment.ALLOWED: format_list(limit)}

    def _is_unbound(self, cpus: CpuSet) -> bool:
        """Return whether these are all CPUs of its launcher, or of its cgroup."""
        of_launcher = self.launchers_mask
        return (of_launcher is not None and cpus >= of_launcher) or cpus >= (self.cpuset or cpus)

    def _has_own_list(self) -> bool:
        """Return whether its launcher, which can be read, has other visible GPUs or none.

        Slurm's is root's, and sets them for a task.
        """
        rank, own = self.rank, self.environ or {}
        if rank is None or rank.variable == environment.SLURM_TASK or self.root:
            return False
        _, above = find_launcher(os.getppid(), own)
        names = [name for name in environment.VISIBLE_NAMES if own.get(name)]
        return above is not None and any(above.get(name) != own[name] for name in names)

    def _numberings(self, environ: Mapping[str, str]) -> Mapping[str, str | None]:
        """Return the variables of how it counts GPUs and ranks; None: such a one is not sent."""
        facts: dict[str, str | None] = {environment.MPS_PIPE: None}
        own = self.environ or {}
        if own.get(environment.PINNED_FOR) != environment.task_of(own):
            facts[environment.GPUS] = None  # they were chosen for another task
        user = os.geteuid()
        if self.root:
            facts[config.CHOOSE_GPU] = None  # it runs, and has made its choice
            status = _status(f"/proc/{self.pid}")
            user = user if status is None else status.st_uid
        of_daemon = mps_daemon(environ, self.root, user)
        if of_daemon is not None:
            facts[environment.MPS_LIST] = of_daemon.get(environment.CUDA)
            if of_daemon.get(environment.DEVICE_ORDER) != environment.BUS_ORDER:
                facts[environment.DEVICE_ORDER] = None  # the daemon counts first
        has_minors = (self.devices or "").startswith("minor:")
        if not has_minors or not _is_listed(environ, self.root):
            facts[environment.NVIDIA_VISIBLE] = None
        launchers = environ.keys() & environment.LAUNCHERS.keys()
        is_lone_worker = environ.get("LOCAL_WORLD_SIZE") == "1"
        if launchers <= {environment.LOCAL_RANK} and not is_lone_worker:
            facts[environment.TORCHRUN] = None  # it does not count there, and 0.2 refuses it
        return facts

    @property
    def root(self) -> str:
        """What its paths begin with here; "" for this process."""
        return "" if self.pid == os.getpid() else f"/proc/{self.pid}/root"


def launchers_mask(parent: int, environ: Mapping[str, str]) -> CpuSet | None:
    """Return the mask of the launcher of a process, as `find_launcher`; None: unknown."""
    return mask_of(find_launcher(parent, environ)[0])


def find_launcher(parent: int, environ: Mapping[str, str]) -> tuple[int, Mapping[str, str] | None]:
    """Return the launcher of a process with this parent and environment, and its environment.

    0: it is not known; None: its environment cannot be read. It is the nearest ancestor that has
    not the same rank: a script of the rank has.
    """
    of_rank = {(name, environ[name]) for name in environment.variables_of_rank(environ)}
    pid = parent
    for _ in range(MOST_WRAPPERS):
        above = _read_soon(pid)
        if above is None or of_rank.isdisjoint(above.items()):
            return pid, above
        pid = _parent_of(pid)
    return 0, None


def _read_soon(pid: int) -> Mapping[str, str] | None:
    """Return the environment of another process; None if it cannot be read within PARENT_SECONDS.

    The kernel lets the reader wait for a lock of that process, which a fault may hold for ever.
    """
    try:
        return in_time(lambda: environment_of(pid), PARENT_SECONDS)
    except TimeoutError:
        return None


def mask_of(pid: int) -> CpuSet | None:
    """Return the mask of a process; None if it has ended, or is in another pid namespace."""
    try:
        return frozenset(os.sched_getaffinity(pid)) if pid else None
    except OSError:
        return None


def _parent_of(pid: int) -> int:
    """Return the parent of a process, 0 where it is not known: proc_pid_stat(5)."""
    fields = text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _devices(dev: str = "/dev") -> str | None:
    """Return as `granted_gpus`. Raises ApplyError, which names the file, for its OSError."""
    try:
        return granted_gpus(dev)
    except OSError as error:
        raise ApplyError(f"{error.filename or 'a file'}: {error.strerror}") from None


def granted_gpus(dev: str = "/dev", sys: str = "/sys") -> str | None:
    """Return the request's `granted`; None if no device files show it.

    The numbers are those of the node's files: /dev/nvidiaN, else /dev/davinciN, else /dev/accel/
    accelN of Habana, else AMD's or Intel's /dev/dri/renderDN. access(2) honors the device cgroup
    and opens nothing. If NVIDIA's files exist and none of them may be opened it is "none"; others
    may also be closed to a user that is in no group of theirs. Raises OSError if an existing file
    fails to be read.
    """
    minors = numbered(dev, "nvidia", FAILING)
    if minors:
        return _granted("minor", _openable(f"{dev}/nvidia", minors)) or "none"
    davincis = _openable(f"{dev}/davinci", numbered(dev, "davinci", FAILING))
    if davincis:
        return _granted("davinci", davincis)
    accels = _openable(f"{dev}/accel/accel", numbered(f"{dev}/accel", "accel", FAILING))
    renders = _openable(f"{dev}/dri/renderD", numbered(f"{dev}/dri", "renderD", FAILING))
    return (
        _granted("accel", _of_vendor(f"{sys}/class/accel/accel", accels, HABANA))
        or _granted("drm", _of_vendor(f"{sys}/class/drm/renderD", renders, AMD))
        or _granted("drm", _of_vendor(f"{sys}/class/drm/renderD", renders, INTEL))
    )


def may_open(path: str) -> bool:
    """Return whether this process may open a file, also by its device cgroup."""
    return os.access(path, os.R_OK | os.W_OK)


def _openable(path: str, numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if may_open(f"{path}{number}")]


def _of_vendor(path: str, numbers: Sequence[int], vendor: bytes) -> list[int]:
    """Return the numbers of the devices of a PCI vendor."""
    vendors = {number: present(f"{path}{number}/device/vendor") or b"" for number in numbers}
    return [number for number in numbers if vendors[number].strip() == vendor]


def _granted(kind: str, numbers: Sequence[int]) -> str | None:
    return ",".join(f"{kind}:{number}" for number in numbers) or None


def _is_listed(environ: Mapping[str, str], root: str) -> bool:
    """Return whether NVIDIA_VISIBLE_DEVICES is a container's, and lists GPUs.

    On a node itself nothing reads it; `all`, `void`, `none` and a folder prove nothing.
    """
    listed = environ.get(environment.NVIDIA_VISIBLE, "")
    if not listed[:1].isdigit() and not listed.startswith(("GPU-", "MIG-")):
        return False
    files = (f"{root}/.dockerenv", f"{root}/run/.containerenv")  # Docker's and Podman's
    return "KUBERNETES_SERVICE_HOST" in environ or any(map(is_there, files))


def mps_daemon(
    environ: Mapping[str, str], root: str = "", user: int = 0
) -> Mapping[str, str] | None:
    """Return the environment of the MPS daemon of a process of a user; None: there is no daemon.

    The daemon's folder has its socket and its pid. It is root's, whose list other users do not
    know, or the user's own: any user may make MPS_FOLDER.
    """
    folder = root + (environ.get(environment.MPS_PIPE) or MPS_FOLDER)
    control = _status(f"{folder}/control")
    if control is None or not stat.S_ISSOCK(control.st_mode) or control.st_uid not in {0, user}:
        return None
    pid = environment.number(text(f"{folder}/{MPS_DAEMON}.pid"))
    name = "" if pid is None else text(f"/proc/{pid}/comm")  # its first 15 characters
    is_daemon = name != "" and MPS_DAEMON.startswith(name)
    owner = _status(f"/proc/{pid}") if is_daemon else None
    is_owners = owner is not None and owner.st_uid == control.st_uid
    of_daemon = _read_soon(pid) if pid and is_owners else None
    return {environment.CUDA: environment.MPS_UNKNOWN} if of_daemon is None else of_daemon


def _status(path: str) -> os.stat_result | None:
    """Return the status of a file, or of a link; None where it cannot be read."""
    try:
        return os.lstat(path)
    except (OSError, ValueError):  # the latter for a NUL
        return None
