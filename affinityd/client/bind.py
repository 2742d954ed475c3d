"""`affinityd.bind`: a running Python process applies its plan, and reports the result.

`set_affinity` and its enums have the names and results of NVIDIA's gpu_affinity package: with
`import affinityd as gpu_affinity` a training script needs no other change. Source:
https://github.com/NVIDIA/gpu_affinity, README.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from affinityd import config
from affinityd.client import apply, ask_daemon, openmp
from affinityd.client.ask_daemon import TIMEOUT
from affinityd.client.process import ProcessContext
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import (
    AffinityError,
    DaemonError,
    InvalidRequestError,
    NoSuchGpuError,
    UnknownParameterError,
    UnsatisfiableError,
)
from affinityd.linux import pinning
from affinityd.linux.cgroup import mask_of
from affinityd.linux.memory_policy import MemoryPolicy, checked_policy, own_policy
from affinityd.linux.processes import stat_of
from affinityd.text import count, whole_number

if TYPE_CHECKING:
    from affinityd.request.document import PlanDocument
    from affinityd.request.process_plan import ProcessPlan

#: The members of `Mode`, so that a type checker finds a wrong name; - and _ mean the same.
ModeName = Literal[
    "all",
    "single",
    "single_unique",
    "single-unique",
    "unique_interleaved",
    "unique-interleaved",
    "unique_contiguous",
    "unique-contiguous",
    "node",
    "socket",
    "exclusive",
    "core_complex",
    "core-complex",
    "even",
]

logger = logging.getLogger("affinityd")


@dataclass(frozen=True)
class Binding:
    """The binding of this process, as read back from the kernel."""

    cpus: CpuSet  #: the calling thread's mask
    locality: str | None  #: "local", "mixed", "remote", "unknown"; None: there was no plan
    memory: MemoryPolicy | None  #: the calling thread's policy; None: it cannot be read
    #: Source of the plan: "daemon", "node.json", "sysfs"; "kept": an earlier pin remains; None:
    #: there was no plan.
    source: str | None
    warnings: tuple[str, ...] = ()  #: deviations from the request, one line for each

    @property
    def pinned(self) -> bool:
        """Whether a plan was applied, by this pin or an earlier one."""
        return self.source is not None


def bind(
    rank: int | None = None,
    ranks: int | None = None,
    *,
    gpus: str | int | Sequence[int | str] | None = None,
    mode: ModeName | Mode | None = None,
    scope: str | Scope | None = None,
    multithreading: str | Multithreading | None = None,
    balanced: bool | None = None,
    min_physical_cores: int | None = None,
    max_physical_cores: int | None = None,
    cpus: int | None = None,
    share: str | None = None,
    strict: bool | None = None,
    choose_gpu: bool = False,
    gpus_per_rank: int | None = None,
    memory: Literal["local", "preferred", "bind", "interleave"] | None = None,
    nics: str | Sequence[str] | None = None,
    timeout: float = TIMEOUT,
    fail_closed: bool = False,
) -> Binding:
    """Pin the threads of this process to the CPUs near its GPU; return the binding, read back.

    Threads whose masks differ from the main thread's were bound by a runtime, and are left alone.

    `rank` is the local rank, `ranks` the number of them; None: as the launcher says. `gpus` are the
    ranks' GPUs, an entry for each rank, as `/plan` takes them; None: the visible GPUs. `cpus` is
    how many CPUs each rank asked for; None: as Slurm or the pod says. `memory`: a policy ("local",
    "preferred", "bind", "interleave") for the calling thread and its children. `nics` names
    libraries ("ucx", "nvshmem", "uccl", "nccl") whose variables are set to the near RDMA devices.
    `choose_gpu` keeps the CPUs and sets the vendor's variable, like CUDA_VISIBLE_DEVICES, to
    `gpus_per_rank` near GPUs; call this before the first use of CUDA. `timeout`: asking a daemon
    may take so many seconds, and reading the machine without a daemon 5 times as many. The others
    are parameters of a plan, by their names; None: as AFFINITYD_* variables say.

    A second call with arguments plans as the first one did; without arguments about the plan, it
    keeps the CPUs of the first call, or of `affinityd exec`. Without a plan the process stays as it
    is, with a warning in the result and in the log; with `fail_closed`, AffinityError is raised.
    """
    arguments = locals().copy()
    if choose_gpu:
        arguments["choose"] = "gpu"
    for of_this_call in ("choose_gpu", "timeout", "fail_closed"):
        del arguments[of_this_call]
    try:
        chosen = texts(arguments)
        policy = chosen.pop("memory", None)
        libraries = chosen.pop("nics", None)
        binding = bind_process(chosen, policy, ask_daemon.seconds(str(timeout)), libraries)
    except Exception as error:  # a bug here must not end the job
        if fail_closed:
            raise
        reason = str(error) if isinstance(error, AffinityError) else repr(error)
        binding = _unbound(reason)
    for warning in binding.warnings:
        logger.warning("affinityd: %s", warning)
    return binding


def plan(*, timeout: float = TIMEOUT, **parameters: object) -> PlanDocument:
    """Return the plan of this process, as the JSON of `GET /plan` has it; nothing is changed.

    `parameters` are those of a plan, like `gpus`, `mode` and `rank`. Asking a daemon may take
    `timeout` seconds, reading the machine without a daemon 5 times as long. Raises AffinityError.
    """
    _require_linux()
    timeout = ask_daemon.seconds(str(timeout))
    start, variables = time.monotonic(), config.variables()
    chosen = config.plan_parameters(variables, texts(parameters))
    sockets = config.sockets(variables)

    def find() -> PlanDocument:
        # bind() needs none of these modules, and each rank would wait for them.
        from affinityd.client.local_plan import find_node, plan_on_node  # noqa: PLC0415
        from affinityd.json_codec import loads  # noqa: PLC0415
        from affinityd.request.document import PlanDocument, document  # noqa: PLC0415

        process = ProcessContext.of_self()
        query = process.query(chosen, process.mask)
        for path in sockets:
            try:
                text = ask_daemon.ask_plan(path, query, start + timeout, "json")
                return loads(PlanDocument, text, f"the answer of {path}")
            except (DaemonError, UnknownParameterError, ValueError):  # noqa: PERF203 - two at most
                continue
        return document(plan_on_node(find_node(sockets).node, query))

    return ask_daemon.within(start, timeout, find)


def bind_process(
    chosen: Mapping[str, str],
    policy: str | None = None,
    timeout: float = TIMEOUT,
    libraries: str | None = None,
) -> Binding:
    """Plan for this process, and apply the plan if the switch is on. Raises AffinityError."""
    _require_linux()
    start, switch = time.monotonic(), config.chosen_switch()
    if switch == config.OFF:
        return _unbound()
    try:
        checked_policy(policy)
        variables = config.variables()
        kept = apply.kept_pin(chosen) if switch == config.ON else None
        if kept is not None and policy is None and libraries is None:
            return _kept()
        chosen = config.plan_parameters(variables, chosen)
        mask = mask_of(os.getpid()) or frozenset()
        before = openmp.cpus_before_binding(os.environ, mask)
        sockets = config.sockets(variables)

        def find() -> tuple[ProcessContext, ProcessPlan]:
            process = ProcessContext.of_self()
            query = process.query(chosen, before, switch)
            return process, ask_daemon.find_plan(query, sockets, start, timeout, forks=False)

        process, plan = ask_daemon.within(start, timeout, find)
    except AffinityError as error:
        if switch != config.OBSERVE:
            raise
        apply.export_unpinned(str(error))
        return _unbound()
    if plan.switch != config.ON:
        apply.export_observed(plan)
        return _unbound()
    if kept is not None:
        memory, remarks = apply.add_to_pin(plan, variables, policy=policy, libraries=libraries)
        return _kept(memory, remarks)
    if libraries is None:
        libraries = variables.get(apply.NICS)
    cpus, memory, remarks = apply.apply_plan(
        plan, process, chosen, variables, policy=policy, libraries=libraries
    )
    return Binding(
        cpus=cpus,
        locality=plan.locality,
        memory=memory or own_policy(),
        source=plan.source,
        warnings=(*remarks, *_pin_threads(plan.cpus, mask, before)),
    )


def _require_linux() -> None:
    if sys.platform != "linux":
        raise AffinityError("affinityd needs Linux; this process is not pinned")


def _kept(memory: MemoryPolicy | None = None, remarks: Sequence[str] = ()) -> Binding:
    cpus = frozenset(os.sched_getaffinity(0))
    locality = os.environ.get(apply.LOCALITY)
    return Binding(cpus, locality, memory or own_policy(), "kept", tuple(remarks))


def _unbound(*reasons: str) -> Binding:
    if sys.platform != "linux":
        return Binding(frozenset(), None, None, None, reasons)
    return Binding(frozenset(os.sched_getaffinity(0)), None, own_policy(), None, reasons)


def _pin_threads(cpus: CpuSet, main: CpuSet, before: CpuSet) -> Iterator[str]:
    """Pin the threads of this process, and yield remarks. `main`: the main thread's old mask."""

    def rule(mask: CpuSet, given: Collection[CpuSet]) -> str:
        is_own = pinning.is_on_purpose(mask, {main, *given}, before)
        return pinning.LEFT_ALONE if is_own else pinning.CHANGE

    stat = stat_of(os.getpid())
    targets = [] if stat is None else [pinning.Target(stat.number, stat.start, cpus, rule)]
    pinned = pinning.pin_threads(lambda: targets)
    for thread in pinned.having(pinning.REFUSED):
        yield f"thread {thread.tid} was refused its CPUs: {thread.reason}"
    elsewhere = [thread for thread in pinned.having(pinning.LEFT_ALONE) if not thread.held <= cpus]
    if elsewhere:
        held = frozenset[int]().union(*(thread.held for thread in elsewhere))
        yield (
            f"{count(len(elsewhere), 'thread')} of this process had CPUs of their own, and keep "
            f"them, {format_list(held)}: call bind() before they are bound"
        )
    if not pinned.is_settled:
        yield "threads start faster than they are pinned; some may run elsewhere"
    threads = len(pinned.having(pinning.PINNED))
    is_narrowed = main == before and len(cpus) < len(before)
    pool = openmp.pool_size(threads, len(before)) if is_narrowed else 0
    if pool > len(cpus):
        yield (
            f"a library was loaded before bind(), and its {count(pool, 'thread')} share "
            f"{count(len(cpus), 'CPU')}: call bind() first"
        )


def worker_init_fn(worker_id: int) -> None:
    """Give a worker of PyTorch's DataLoader the CPUs of its training process, if that is bound.

    Workers inherit these CPUs, but OpenMP runtimes change a worker's mask after the fork.
    """
    try:
        cpus = parse_list(os.environ.get("AFFINITYD_CPULIST", ""))
        parent = stat_of(os.getppid())
        above = [] if parent is None else [mask_of(parent.number), mask_of(parent.parent)]
        if cpus in above and cpus and config.chosen_switch() == config.ON:
            apply.set_own_mask(cpus)  # the parent may be a fork server, without that mask
    except (ValueError, AffinityError) as error:
        logger.warning("affinityd: DataLoader worker %d stays unpinned: %s", worker_id, error)


def texts(arguments: Mapping[str, object]) -> dict[str, str]:
    """Return parameters in the form of a request; those that are None are left out."""
    result: dict[str, str] = {}
    for name, value in arguments.items():
        if isinstance(value, Iterable) and not isinstance(value, str):
            result[name] = ",".join(map(str, value))
        elif isinstance(value, bool):
            result[name] = str(value).lower()
        elif value is not None:
            result[name] = str(value)
    return result


class _Name(Enum):
    def __str__(self) -> str:
        return str(self.value)


class Mode(_Name):
    """How ranks divide the cores, as in `affinityd.planner.modes`."""

    ALL = "all"
    SINGLE = "single"
    SINGLE_UNIQUE = "single_unique"
    UNIQUE_INTERLEAVED = "unique_interleaved"
    UNIQUE_CONTIGUOUS = "unique_contiguous"
    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core_complex"
    EVEN = "even"


class Scope(_Name):
    """Which cores: those of the NUMA node, or of its whole package."""

    NODE = "node"
    SOCKET = "socket"


class Multithreading(_Name):
    """Which CPUs of a core: all, or only its lowest allowed one."""

    ALL_LOGICAL = "all_logical"
    SINGLE_LOGICAL = "single_logical"


def set_affinity(
    gpu_id: int,
    nproc_per_node: int,
    *,
    mode: Mode = Mode.UNIQUE_CONTIGUOUS,
    scope: Scope = Scope.NODE,
    multithreading: Multithreading = Multithreading.ALL_LOGICAL,
    balanced: bool = True,
    min_physical_cores: int = 1,
    max_physical_cores: int | None = None,
) -> set[int]:
    """Pin this process to the CPUs near a GPU, and return them as read back.

    `gpu_id` is the GPU's index as this process sees it. It is also the process's rank among
    `nproc_per_node` processes, which have one GPU each and divide the cores.

    Where NVIDIA's package raises GPUAffinityError for the machine's state, this only warns: a
    process without a CPU near its GPU gets the nearest CPUs; a process without a plan stays as it
    is. Raises AffinityError (also as GPUAffinityError) for wrong arguments: no such GPU or rank, an
    unknown word, or a `min_physical_cores` above 1 for which there are too few cores.
    """
    rank = whole_number(str(gpu_id), 2**31)
    ranks = whole_number(str(nproc_per_node), 2**31) or 0
    if rank is None or rank >= ranks:
        raise InvalidRequestError(
            f"gpu_id={gpu_id!r} is not a whole number from 0 to below "
            f"nproc_per_node={nproc_per_node!r}"
        )
    parameters = {
        "gpus": f"0-{ranks - 1}",
        "ranks": ranks,
        "rank": rank,
        "share": "requested",
        "mode": mode,
        "scope": scope,
        "multithreading": multithreading,
        "balanced": balanced,
        "min_physical_cores": min_physical_cores,
        "max_physical_cores": max_physical_cores,
    }
    try:
        binding = bind_process(texts(parameters))
    except (InvalidRequestError, NoSuchGpuError):
        raise
    except AffinityError as error:
        if type(error) is UnsatisfiableError and min_physical_cores > 1:
            raise
        binding = _unbound(str(error))
    for warning in binding.warnings:
        warnings.warn(f"affinityd: {warning}", stacklevel=2)
    return set(binding.cpus)
