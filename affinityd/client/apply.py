"""A process: its facts and its query for a plan; and this one, to which a plan is applied."""

from __future__ import annotations

import os
import stat

from affinityd import config
from affinityd.cpuset import CpuSet, format_list, parse_list, several
from affinityd.errors import ApplyError, InvalidRequestError
from affinityd.linux.cgroup import cpuset_of, own_cpu_limit
from affinityd.linux.files import (
    FAILING,
    environment_of,
    in_time,
    is_there,
    listed,
    numbered,
    present,
    text,
)
from affinityd.request import environment
from affinityd.request.environment import ENV, JOB_CPUS, NIC_VARIABLES, OF_TASK, local_rank
from affinityd.text import count, one_line, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from affinityd.client.process_plan import ProcessPlan
    from affinityd.linux.memory_policy import MemoryPolicy
    from affinityd.linux.processes import Stat
    from affinityd.request.environment import Pairs

    T = TypeVar("T")

UNPINNED = "AFFINITYD_UNPINNED"  #: why a process was not pinned
PINNED_FOR = "AFFINITYD_PINNED_FOR"  #: the task that a process was pinned for
#: Which libraries are told their NICs: the choice of the site or the user.
NICS = f"{config.PREFIX}NICS"
NO_LIBRARY = "none"
#: Whether OMP_NUM_THREADS is set, where it is not: AUTO, or not.
THREADS, AUTO = f"{config.PREFIX}THREADS", "auto"
OMP_THREADS = "OMP_NUM_THREADS"
#: How many threads libraries start: OpenMP, MKL, OpenBLAS, numexpr, the tokenizers of Hugging Face.
THREAD_COUNTS = (
    OMP_THREADS,
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
EXPORTED_NICS = f"{config.PREFIX}RDMA"  #: the ports of a process, for programs that it starts
ACTIVE = "4:"  #: begins a port's state, enum ib_port_state

UNKNOWN_PLACE = "the machine does not say on which NUMA node its GPU is"

SAME_PLACES = (
    "ranks that share these CPUs put their threads on the same first ones; for CPUs of its own for "
    "each rank: AFFINITYD_MODE=unique_contiguous"
)

#: Remarks on a plan's warnings; the others follow from the question, or are reported anyway.
REMARKS = {
    "visible_cut": (
        "not all of the visible devices are here, and the driver ends the list before the first "
        "that is not"
    ),
    "slow_cores": "all cores of this rank are of a slower kind than others that it may use",
    "widened": "the nearest others were added (AFFINITYD_CPUS=none leaves them out)",
    "share_unavailable": "too few cores for a block for each GPU: only this job's GPUs divide them",
    "ambiguous_index": "which GPU an index means is not certain here: name the GPU by its UUID",
}

PARENT_SECONDS = 0.3  #: for which the environment of the parent is waited for
MOST_WRAPPERS = 8  #: processes between a rank and its launcher, as shells

#: A file that each vendor's driver makes.
DRIVERS = {"nvidia": "/dev/nvidiactl", "amd": "/dev/kfd", "huawei": "/dev/davinci_manager"}
#: PCI vendors, in /sys/class/drm/renderDN/device/vendor
AMD, INTEL, HABANA = b"0x1002", b"0x8086", b"0x1da3"
MPS_FOLDER, MPS_DAEMON = "/tmp/nvidia-mps", "nvidia-cuda-mps-control"  # noqa: S108 - by default


class ProcessContext:
    """A process: its environment, and the devices and CPUs it may use; all but the CPUs read once.

    `environ` is None if it cannot be read, as of another user. `devices` are the GPUs whose files
    it may open, as the request's `granted`: None where there are no such files.
    """

    __slots__ = ("_find_launchers_mask", "devices", "environ", "pid")

    def __init__(
        self,
        pid: int,
        environ: Mapping[str, str] | None,
        find_launchers_mask: Callable[[], CpuSet | None],
        devices: str | None,
    ) -> None:
        self.pid = pid
        self.environ = environ
        self._find_launchers_mask = find_launchers_mask
        self.devices = devices

    @classmethod
    def of_self(cls) -> ProcessContext:
        """Return the context of this process. Raises ApplyError if its devices are unknown."""
        environ: Mapping[str, str] = os.environ
        if not {"SLURM_JOB_ID", JOB_CPUS} & environ.keys():
            limit = own_cpu_limit(len(os.sched_getaffinity(0)))  # of its container
            environ = environ if limit is None else {**environ, JOB_CPUS: f"{limit}"}
        devices = _found(granted_gpus)
        return cls(os.getpid(), environ, lambda: launchers_mask(os.getppid(), environ), devices)

    @classmethod
    def of(cls, process: Stat) -> ProcessContext:
        """Return the context of a process; the devices of another one are those in its /dev.

        A container has only the devices that it was given. Raises as `of_self`.
        """
        pid, parent = process.number, process.parent
        if pid == os.getpid():
            return cls.of_self()
        devices = _found(lambda: granted_gpus(f"/proc/{pid}/root/dev"))
        environ = environment_of(pid)
        return cls(pid, environ, lambda: launchers_mask(parent, environ or {}), devices)

    def is_bound(self, cpus: CpuSet) -> bool:
        """Return whether its launcher has bound it to these CPUs, and may have more itself.

        Slurm tells by itself what it bound a task to.
        """
        rank = local_rank(self.environ or {})
        if rank is None or rank.variable == environment.SLURM_TASK:
            return False
        mask = self._find_launchers_mask()
        return mask is not None and not cpus >= mask

    @property
    def mask(self) -> CpuSet:
        """The CPUs on which its main thread may run. Raises OSError if it has ended."""
        return frozenset(os.sched_getaffinity(self.pid))

    @property
    def unbinding(self) -> str:
        """How its launcher is told not to bind it."""
        rank = local_rank(self.environ or {})
        return environment.UNBINDING.get(rank.variable if rank else "", "another launch")

    @property
    def cpuset(self) -> CpuSet | None:
        """The CPUs that its cgroup allows; None where that is not known."""
        return cpuset_of(self.pid)

    @property
    def visible(self) -> str | None:
        """The request's `visible`: the GPUs that its environment names; None: it names none."""
        vendors = _found(_vendors)
        if not vendors and (self.devices or "").startswith("drm:"):  # AMD's have /dev/kfd
            vendors = ["8086"]
        return environment.visible(self.environ or {}, vendors)

    def query(self, chosen: Mapping[str, str], cpus: CpuSet) -> Pairs:
        """Return the query for a plan of the process on these CPUs.

        `chosen` are parameters and, in capitals, variables; they override the process's own.
        """
        environ, visible = {**(self.environ or {}), **chosen}, self.visible
        facts = {"cpuset": format_list(cpus), "granted": self.devices, "visible": visible}
        stated = {name: text for name, text in facts.items() if text is not None}
        stated |= {name: text for name, text in chosen.items() if not name.isupper()}
        environ.pop(environment.SLICE, None)
        limit = environment.cpus_to_plan_on(environ, cpus)
        if limit != cpus:  # the cpuset may have shrunk since that pin, or be another one
            limit &= self.cpuset or limit
            environ[environment.ALLOWED] = format_list(limit)
        is_limit = "cpuset" not in chosen  # which is a choice
        if not is_limit:
            environ.pop(environment.ALLOWED, None)
        if is_limit and self.is_bound(limit):
            environ[environment.SLICE] = format_list(limit)
        elif is_limit and environment.SLURM_JOB not in environ:
            environ[environment.ALLOWED] = format_list(limit)
        is_lone_worker = environ.get("LOCAL_WORLD_SIZE") == "1"
        if environment.SLURM_JOB not in environ and not is_lone_worker:
            environ.pop(environment.TORCHRUN, None)  # it does not count there, and 0.2 refuses it
        root = "" if self.pid == os.getpid() else f"/proc/{self.pid}/root"
        status = _status(f"/proc/{self.pid}") if root else None
        user = os.geteuid() if status is None else status.st_uid
        of_daemon = mps_daemon(environ, root, user)
        environ.pop(environment.MPS_PIPE, None)
        if of_daemon is not None:
            if of_daemon.get(environment.DEVICE_ORDER) != environment.BUS_ORDER:
                environ.pop(environment.DEVICE_ORDER, None)  # the daemon counts first
            if environment.CUDA in of_daemon:
                environ[environment.MPS_LIST] = of_daemon[environment.CUDA]
        if not (facts["granted"] or "").startswith("minor:") or not _is_listed(environ, root):
            environ.pop(environment.NVIDIA_VISIBLE, None)
        of_gpus = (environment.NVIDIA_VISIBLE, *environment.OF_NUMBERS)
        names = (*OF_TASK, config.CPUS, environment.SLICE, *of_gpus)
        variables = ((ENV, f"{name}={environ[name]}") for name in names if name in environ)
        return (*stated.items(), *variables)


def launchers_mask(parent: int, environ: Mapping[str, str]) -> CpuSet | None:
    """Return the mask of the launcher of a process with this parent and environment; None: unknown.

    It is the nearest ancestor that has not the same rank: a script of the rank has.
    """
    of_rank = {(name, environ[name]) for name in environment.variables_of_rank(environ)}
    pid = parent
    for _ in range(MOST_WRAPPERS):
        above = _read_soon(pid)
        if above is None or of_rank.isdisjoint(above.items()):
            return _mask_of(pid)
        pid = _parent_of(pid)
    return None


def _read_soon(pid: int) -> Mapping[str, str] | None:
    """Return the environment of another process; None if it cannot be read within PARENT_SECONDS.

    The kernel lets the reader wait for a lock of that process, which a fault may hold for ever.
    """
    try:
        return in_time(lambda: environment_of(pid), PARENT_SECONDS)
    except TimeoutError:
        return None


def _mask_of(pid: int) -> CpuSet | None:
    """Return the mask of a process; None if it has ended, or is in another pid namespace."""
    try:
        return frozenset(os.sched_getaffinity(pid)) if pid else None
    except OSError:
        return None


def _parent_of(pid: int) -> int:
    """Return the parent of a process, 0 where it is not known: proc_pid_stat(5)."""
    fields = text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _found(find: Callable[[], T]) -> T:
    """Return what a function finds. Raises ApplyError, which names the file, for its OSError."""
    try:
        return find()
    except OSError as error:
        raise ApplyError(f"{error.filename or 'a file'}: {error.strerror}") from None


def _vendors() -> list[str]:
    """Return the vendors with a loaded driver. Raises OSError if that is unknown."""
    return [vendor for vendor, path in DRIVERS.items() if is_there(path)]


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


def _openable(path: str, numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if _may_open(f"{path}{number}")]


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


def _may_open(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def own_query(
    chosen: Mapping[str, str], switch: str = config.ON, mask: CpuSet | None = None
) -> Pairs:
    """Return the plan requests for this process; `chosen` parameters override its own.

    `mask` is that of its main thread, unless a runtime has bound that. Raises ApplyError if a file
    fails to be read.
    """
    process = ProcessContext.of_self()
    mask = process.mask if mask is None else mask
    observed = {"observe": format_list(mask)} if switch == config.OBSERVE else {}
    return process.query({**observed, **chosen}, mask)


def kept_pin(chosen: Mapping[str, str]) -> CpuSet | None:
    """Return the mask of this process if affinityd has pinned it before, and is to keep that.

    The pin was for this task, and the mask is still that of the pin. A process that names
    parameters of a plan, `chosen`, is planned anew.
    """
    if chosen or os.environ.get(PINNED_FOR) != environment.task_of(os.environ):
        return None
    try:
        pinned = parse_list(os.environ.get("AFFINITYD_CPULIST", ""))
    except ValueError:
        return None
    mask = frozenset(os.sched_getaffinity(os.getpid()))
    return mask if mask == pinned else None


def add_to_pin(
    plan: ProcessPlan, variables: Mapping[str, str], *, policy: str | None, libraries: str | None
) -> tuple[MemoryPolicy | None, list[str]]:
    """Apply a plan's memory policy and NICs to this process, which keeps its mask.

    Return the policy and the remarks, as `pin_self`. Raises ApplyError as `apply_plan`.
    """
    memory, remarks = set_memory(plan, policy)
    if libraries:
        remarks += export_nics(libraries, plan.rdma, variables)
    return memory, remarks


def pin_self(
    plan: ProcessPlan,
    chosen: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    policy: str | None,
    libraries: str | None,
) -> tuple[CpuSet, MemoryPolicy | None, list[str]]:
    """Apply a plan to the calling thread; return as `apply_plan`, with the remarks on all of it.

    `libraries` are told their NICs. Variables that undo the pin are remarked.
    """
    cpus, memory, remarks = apply_plan(plan, policy)
    if libraries:
        remarks += export_nics(libraries, plan.rdma, variables)
    for variable, switch in environment.rebinding(os.environ):
        line = f"{variable} binds threads anew afterwards; to end that: {switch}"
        if variable.startswith("OMP_") and _shares_cpus(plan, chosen):
            line += f"; {SAME_PLACES}"
        remarks.append(line)
    return cpus, memory, [*_gpus_far_apart(plan, chosen), *remarks]


def _shares_cpus(plan: ProcessPlan, chosen: Mapping[str, str]) -> bool:
    """Return whether other ranks of this process's launcher may have the same CPUs."""
    from affinityd.planner.modes import MODES  # noqa: PLC0415 - few have a binder to come

    rank = local_rank(os.environ)
    mode = MODES.get(chosen.get("mode", "node").replace("-", "_"))
    if rank is None or rank.size == 1 or mode is None or not mode.shares:
        return False
    return not ProcessContext.of_self().is_bound(plan.allowed)


def apply_plan(
    plan: ProcessPlan, policy: str | None
) -> tuple[CpuSet, MemoryPolicy | None, list[str]]:
    """Apply a plan to the calling thread, and to the environment of its children.

    Returns the result, as read back: its mask, its memory policy (None: none was requested),
    and the deviations, a line each. Raises ApplyError where the kernel refuses all of
    its CPUs, and where nothing says which CPUs are near.
    """
    if plan.locality == "unknown":
        raise ApplyError(UNKNOWN_PLACE)
    cpus = set_own_mask(plan.cpus)
    memory, refusals = set_memory(plan, policy)
    os.environ.pop(UNPINNED, None)
    os.environ[PINNED_FOR] = environment.task_of(os.environ)
    # Also where nothing was narrowed: a mask that no longer equals it is planned on anew.
    os.environ["AFFINITYD_CPULIST"] = format_list(cpus)
    os.environ["AFFINITYD_ALLOWED"] = format_list(plan.allowed)
    os.environ["AFFINITYD_LOCALITY"] = plan.locality
    return cpus, memory, [*_remarks(plan, cpus), *refusals]


def set_memory(plan: ProcessPlan, policy: str | None) -> tuple[MemoryPolicy | None, list[str]]:
    """Set the memory policy of this process; None: the plan's nodes are left to the kernel.

    Return it as read back, and what was refused, a line each.
    """
    if policy is None:
        return None, []
    if plan.locality == "unknown":
        raise ApplyError(UNKNOWN_PLACE)
    from affinityd.linux.memory_policy import set_policy  # noqa: PLC0415 - few ask for one

    # Memory that is interleaved is all ranks': near to each of their GPUs in turn.
    visible = plan.visible_memory if policy == "interleave" else frozenset()
    memory = set_policy(policy, visible or plan.memory_nodes)
    return memory, [f"memory: {refusal}" for refusal in memory.refusals]


def export_unpinned(reason: str) -> None:
    """Tell children why this process is not pinned."""
    forget_other_pin()
    os.environ[UNPINNED] = one_line(reason)


def forget_other_pin() -> None:
    """Unset the variables of a pin that is not of this process, as of the shell that sent a job."""
    pinned = os.environ.get(environment.CPULIST)
    mask = None if pinned is None else _mask_of(os.getpid())
    if mask is not None and pinned != format_list(mask):
        for name in (environment.CPULIST, environment.ALLOWED, "AFFINITYD_LOCALITY", PINNED_FOR):
            os.environ.pop(name, None)


def export_observed(plan: ProcessPlan) -> None:
    """Leave this process as it is; if the switch is observe, put its plan into the environment."""
    if plan.switch == config.OBSERVE:
        cpus = format_list(plan.cpus)
        export_unpinned(f"observe: would run on CPUs {cpus} ({plan.locality})")


def set_own_mask(cpus: CpuSet) -> CpuSet:
    """Set the mask of the calling thread, and return it as read back.

    A program that it executes inherits it. The kernel silently removes CPUs that the cpuset
    does not allow, sched_setaffinity(2). A mask that is so already is not set: it goes on to
    follow its cpuset when that grows. Raises ApplyError if no CPU is left.
    """
    mask = frozenset(os.sched_getaffinity(0))
    if mask == cpus:
        return mask
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ApplyError(
            f"CPUs {format_list(cpus)} were refused: {error.strerror}; "
            "the cpuset may hold none of them"
        ) from None
    return frozenset(os.sched_getaffinity(0))


def _gpus_far_apart(plan: ProcessPlan, chosen: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for a single process that has the CPUs near GPUs of several nodes.

    A process that named its GPUs knows them, and each rank would repeat it.
    """
    rank = local_rank(os.environ)
    is_alone = rank is None or environment.is_alone(os.environ, rank)
    if is_alone and "gpus" not in chosen and len(plan.gpus) > 1 and len(plan.nodes) > 1:
        gpus, nodes = several("GPU", plan.gpus), several("node", plan.nodes)
        yield (
            f"this process sees {gpus} of {nodes} and has the CPUs near any of them; if it uses "
            "only one GPU, name it: --gpus N, in Python bind(gpus=N)"
        )


def threads_to_start(cpus: CpuSet, number: int | None) -> Iterator[str]:
    """Yield a line if libraries of this process will start more threads than it has CPUs.

    `number`: what OMP_NUM_THREADS becomes, at most, where it is not set; None: it stays so.
    """
    limit = own_cpu_limit(len(cpus))
    usable = len(cpus) if limit is None else min(limit, len(cpus))
    if number is not None and not os.environ.get(OMP_THREADS):
        os.environ[OMP_THREADS] = f"{min(number, usable)}"
    for variable in THREAD_COUNTS:
        asked = environment.number(os.environ.get(variable, "").partition(",")[0])
        if asked is not None and asked > usable:
            yield (
                f"{variable}={asked} is more than the {count(usable, 'CPU')} of this process: its "
                "threads will wait for each other"
            )
    if usable < len(cpus) and not os.environ.get(OMP_THREADS):
        yield (
            f"{OMP_THREADS} is unset, and the CPU limit is {usable} of {len(cpus)} CPUs: libraries "
            "start a thread for each; --threads sets it"
        )


def summary(plan: ProcessPlan, cpus: CpuSet, chosen: Mapping[str, str]) -> str:
    """Return the place of this process in a line: its rank, its GPUs, their nodes, its CPUs."""
    rank = local_rank(os.environ)
    if "rank" in chosen:
        task = f"rank {chosen['rank']}"
    elif rank is None:
        task = "no rank"
    else:
        size = "" if rank.size is None else f" of {rank.size}"
        task = f"rank {rank.number}{size} ({rank.variable})"
    gpus = several("GPU", plan.gpus) if plan.gpus else "GPU unknown"
    nodes = several("node", plan.nodes) if plan.nodes else "node unknown"
    place = f"{gpus}, {nodes}, {several('CPU', cpus)}"
    return f"{task}: {place} ({plan.locality}, planned from {plan.source})"


def _remarks(plan: ProcessPlan, cpus: CpuSet) -> Iterator[str]:
    if plan.replayed is not None:
        yield plan.replayed
    if plan.trouble is not None:
        yield f"{plan.trouble}; planned from {plan.source}"
    asked = format_list(plan.cpus)
    if plan.locality == "remote":
        process = ProcessContext.of_self()
        if process.is_bound(plan.allowed):
            yield (
                f"CPUs {asked} are not near the GPU: the launcher, or numactl or taskset in its "
                f"script, bound this rank; {process.unbinding} leaves the choice to affinityd"
            )
        else:
            yield f"CPUs {asked} are not near the GPU; allowed are {format_list(plan.allowed)}"
    if cpus != plan.cpus:
        yield f"CPUs {asked} were cut down to {format_list(cpus)}: the cpuset has no more"
    for code in plan.warnings:
        if code in REMARKS:
            yield f"{_lack(plan)}: {REMARKS[code]}" if code == "widened" else REMARKS[code]


def _lack(plan: ProcessPlan) -> str:
    """Return that fewer CPUs are near than were asked for, with their numbers where known."""
    if plan.near is None:
        return "fewer CPUs are near the GPU than were asked for"
    are = "is" if len(plan.near) == 1 else "are"
    allowed = count(len(plan.allowed), "allowed CPU")
    return f"{len(plan.near)} of {allowed} {are} near the GPU, fewer than were asked for"


def nic_libraries(names: str) -> tuple[str, ...]:
    """Read the names of libraries, like `ucx,nccl`. Raises InvalidRequestError."""
    libraries = tuple(dict.fromkeys(name.strip() for name in names.lower().split(",")))
    if libraries == (NO_LIBRARY,):
        return ()
    for name in libraries:
        if name not in NIC_VARIABLES:
            raise InvalidRequestError(
                f"nics: {quote(name)} is not one of {', '.join(NIC_VARIABLES)} "
                f"({NO_LIBRARY} stands alone)"
            )
    return libraries


def export_nics(names: str, ports: Sequence[str], settings: Mapping[str, str]) -> Iterator[str]:
    """Set variables of this process for libraries; yield what is not as asked for, a line each.

    `names` are the libraries, `ports` the plan's, like `mlx5_2:1`, `settings` the AFFINITYD_*
    variables. A variable that the user has set stays, and no device is named that this process
    cannot open: a library that may use nothing else would fail.
    """
    try:
        libraries = nic_libraries(names)
    except InvalidRequestError as error:
        yield f"{error}; no library is told"
        return
    if not libraries:
        return
    root = settings.get(f"{config.PREFIX}ROOT", "").rstrip("/") + "/"
    active = [port for port in ports if _is_active(port, root)]
    usable = [port for port in active if _may_use(port, root)]
    former = os.environ.get(EXPORTED_NICS, "").split(",")
    unset = []
    for library in libraries:
        variable, near = NIC_VARIABLES[library], environment.nic_value(library, usable)
        set_before = os.environ.get(variable)
        if set_before and set_before not in {near, environment.nic_value(library, former)}:
            yield f"{variable}={quote(set_before)} was set before, and stays"
        elif usable:
            os.environ[variable] = near
        else:
            os.environ.pop(variable, None)
            unset.append(variable)
    why = "the plan has no active device of InfiniBand, RoCE or EFA"
    if active:
        why = f"this process cannot open {', '.join(active)} in /dev/infiniband"
    elif ports:
        why = f"not active here: {', '.join(ports)}"
    if unset:
        yield f"not set: {', '.join(unset)}; {why}"
    os.environ[EXPORTED_NICS] = ",".join(usable)


def _is_active(port: str, root: str) -> bool:
    device, _, number = port.partition(":")
    state = text(f"{root}sys/class/infiniband/{device}/ports/{number}/state")
    return state.startswith(ACTIVE)


def _may_use(port: str, root: str) -> bool:
    """Whether a port's device can be opened here."""
    files = verbs_files(port.partition(":")[0], root)
    return any(_may_open(f"{root}dev/infiniband/{name}") for name in files)


def verbs_files(device: str, root: str = "/") -> list[str]:
    """Return the names of an RDMA device's files in /dev/infiniband."""
    files = f"{root}sys/class/infiniband/{device}/device/infiniband_verbs"
    # An adapter may have several devices.
    return [name for name in listed(files) if text(f"{files}/{name}/ibdev") == device]
