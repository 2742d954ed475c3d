"""Applying a plan to this process: its mask, memory policy, and variables for its children."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from affinityd import config
from affinityd.client.process import ProcessContext, may_open
from affinityd.client.remarks import rebinding, remarks
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import ApplyError, InvalidRequestError
from affinityd.linux.cgroup import mask_of
from affinityd.linux.files import listed, text
from affinityd.request import environment
from affinityd.request.environment import ALLOWED, CPULIST, GPUS, NIC_VARIABLES, PINNED_FOR
from affinityd.request.process_plan import ProcessPlan
from affinityd.text import count, one_line, quote

if TYPE_CHECKING:  # importing it takes longer than starting Python, and few ranks have a policy
    from affinityd.linux.memory_policy import MemoryPolicy

UNPINNED_BECAUSE = "AFFINITYD_UNPINNED"  #: the variable that says why a process was not pinned
LOCALITY = "AFFINITYD_LOCALITY"  #: the locality of the pin's CPUs
#: Variable of the site or the user: the libraries for which affinityd sets the NICs.
NICS = f"{config.PREFIX}NICS"
NO_LIBRARY = "none"
OMP_THREADS = "OMP_NUM_THREADS"
EXPORTED_NICS = f"{config.PREFIX}RDMA"  #: the near ports of a process, for programs that it starts
UNKNOWN_PLACE = "the machine does not say on which NUMA node its GPU is"


def kept_pin(chosen: Mapping[str, str]) -> CpuSet | None:
    """Return the mask of this process if affinityd has pinned it before, for the same task.

    If `chosen` has parameters of a plan, the process is planned again; GPUs are never chosen twice.
    """
    chooses_gpus = chosen.keys() <= {"choose", "gpus_per_rank"}
    is_kept = not chosen or (chooses_gpus and GPUS in os.environ)
    if not is_kept or os.environ.get(PINNED_FOR) != environment.task_of(os.environ):
        return None
    mask = frozenset(os.sched_getaffinity(os.getpid()))
    return mask if mask == environment.read_cpus(os.environ, CPULIST) else None


def apply_plan(
    plan: ProcessPlan,
    process: ProcessContext,
    chosen: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    policy: str | None,
    libraries: str | None,
    starts_ranks: bool = False,
) -> tuple[CpuSet, MemoryPolicy | None, list[str]]:
    """Apply a plan to the calling thread, and to the environment of its children.

    `chosen`: parameters of the plan. `variables`, `policy`, `libraries`: as for `add_to_pin`.
    `starts_ranks`: the process is a launcher; its locality would be wrong for ranks that inherit
    its variables. Returns the mask and the memory policy as read back, and remarks. Raises
    ApplyError if the kernel refuses all CPUs of the plan, or nothing says which CPUs are near.
    """
    if plan.locality == "unknown":
        raise ApplyError(UNKNOWN_PLACE)
    cpus = set_own_mask(plan.cpus)
    os.environ.pop(UNPINNED_BECAUSE, None)
    task = environment.task_of(os.environ)
    if os.environ.get(PINNED_FOR) != task:
        os.environ.pop(GPUS, None)
    if plan.visible:
        os.environ.update(plan.visible)
        os.environ[GPUS] = format_list(plan.gpus)
        task = environment.task_of(os.environ)
    os.environ[PINNED_FOR] = task
    # Export it even if the mask did not change: `kept_pin` compares the mask with this list.
    os.environ[CPULIST] = format_list(cpus)
    os.environ[ALLOWED] = format_list(plan.allowed)
    os.environ[LOCALITY] = plan.locality
    if starts_ranks:
        del os.environ[LOCALITY]
    lines = list(remarks(plan, cpus, process, chosen, starts_ranks=starts_ranks))
    memory, more = add_to_pin(plan, variables, policy=policy, libraries=libraries)
    return cpus, memory, [*lines, *more, *rebinding()]


def add_to_pin(
    plan: ProcessPlan, variables: Mapping[str, str], *, policy: str | None, libraries: str | None
) -> tuple[MemoryPolicy | None, list[str]]:
    """Set the memory policy of this process, and tell `libraries` their NICs; the mask stays.

    `policy` None: no policy is set, and the kernel takes near memory. `variables` are AFFINITYD_*.
    Returns the policy as read back, and a line for each thing that was refused. Raises ApplyError
    if the place of the GPU is not known.
    """
    memory = None
    lines = []
    if policy is not None:
        if plan.locality == "unknown":
            raise ApplyError(UNKNOWN_PLACE)
        from affinityd.linux.memory_policy import set_policy  # noqa: PLC0415 - few ask for one

        # Interleaved memory is for all ranks: it lies near each of their GPUs in turn.
        visible = plan.visible_memory if policy == "interleave" else frozenset()
        memory = set_policy(policy, visible or plan.memory_nodes)
        lines += [f"memory: {refusal}" for refusal in memory.refusals]
    if libraries:
        lines += export_nics(libraries, plan.rdma, variables)
    return memory, lines


def export_unpinned(reason: str) -> None:
    """Tell children why this process is not pinned."""
    forget_other_pin()
    os.environ[UNPINNED_BECAUSE] = one_line(reason)


def forget_other_pin() -> None:
    """Unset the variables of a pin of another process, such as the shell that submitted the job."""
    pinned = os.environ.get(CPULIST)
    if pinned is None:
        return
    mask = mask_of(os.getpid())
    if mask is not None and pinned != format_list(mask):
        for name in (CPULIST, ALLOWED, LOCALITY, GPUS, PINNED_FOR):
            os.environ.pop(name, None)


def export_observed(plan: ProcessPlan) -> None:
    """Leave this process as it is; if the switch is observe, put its plan into the environment."""
    if plan.switch == config.OBSERVE:
        cpus = format_list(plan.cpus)
        gpus = "".join(f", with {name}={value}" for name, value in plan.visible.items())
        export_unpinned(f"observe: would run on CPUs {cpus} ({plan.locality}){gpus}")


def set_own_mask(cpus: CpuSet) -> CpuSet:
    """Set the mask of the calling thread, and return it as read back, sched_setaffinity(2).

    The kernel removes CPUs that the cpuset does not allow. A mask that is right already is not set,
    so that it still grows with the cpuset. Raises ApplyError if no CPU is left.
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


def threads_to_start(cpus: CpuSet, limit: int | None, number: int | None) -> Iterator[str]:
    """Yield a line if libraries of this process will start more threads than it has CPUs.

    `limit`: the container's CPU limit. `number`: most threads, for OMP_NUM_THREADS if unset.
    """
    usable = len(cpus) if limit is None else min(limit, len(cpus))
    if number is not None and not os.environ.get(OMP_THREADS):
        os.environ[OMP_THREADS] = f"{min(number, usable)}"
    if number is not None:  # the value of os.cpu_count(), from Python 3.13 on
        before = environment.number(os.environ.get("PYTHON_CPU_COUNT", ""))
        os.environ["PYTHON_CPU_COUNT"] = f"{min(before or usable, usable)}"
    for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON"):
        variable = f"{library}_NUM_THREADS"
        asked = environment.number(os.environ.get(variable, "").partition(",")[0])
        if asked is not None and asked > usable:
            yield (
                f"{variable}={asked} is more than the {count(usable, 'CPU')} of this process: its "
                "threads will wait for each other"
            )
    if usable < len(cpus) and not os.environ.get(OMP_THREADS):
        yield (
            f"{OMP_THREADS} is unset, and the CPU limit is {usable} of {len(cpus)} CPUs: libraries "
            "start a thread for each CPU; --threads sets it"
        )


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
    """Set the variables of libraries to the plan's ports, like `mlx5_2:1`; yield what is not set.

    `settings` are the AFFINITYD_* variables. A variable that the user has set stays, and no device
    is named that this process cannot open: a library that may use nothing else would fail.
    """
    try:
        libraries = nic_libraries(names)
    except InvalidRequestError as error:
        yield f"{error}; no variable is set"
        return
    if not libraries:
        return
    root = settings.get(f"{config.PREFIX}ROOT", "").rstrip("/") + "/"
    active = [port for port in ports if _is_active(port, root)]
    usable = [port for port in active if _may_use(port, root)]
    former = os.environ.get(EXPORTED_NICS, "").split(",")
    unset = []
    for library in libraries:
        variable = NIC_VARIABLES[library]
        near = environment.nic_value(library, usable)
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
    return state.startswith("4:")  # ACTIVE of enum ib_port_state


def _may_use(port: str, root: str) -> bool:
    files = verbs_files(port.partition(":")[0], root)
    return any(may_open(f"{root}dev/infiniband/{name}") for name in files)


def verbs_files(device: str, root: str = "/") -> list[str]:
    """Return the names of an RDMA device's files in /dev/infiniband."""
    files = f"{root}sys/class/infiniband/{device}/device/infiniband_verbs"
    # An adapter may have several devices.
    return [name for name in listed(files) if text(f"{files}/{name}/ibdev") == device]
