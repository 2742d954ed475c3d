"""Applies a plan to this process: its query, its mask and memory policy, its environment."""

from __future__ import annotations

import os

from affinityd import config
from affinityd.client.process_context import ProcessContext
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.errors import ApplyError, InvalidRequestError
from affinityd.linux.files import listed, text
from affinityd.request.environment import NIC_VARIABLES, cpus_to_plan_on, local_rank, nic_value
from affinityd.text import one_line, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from affinityd.client.find_plan import ProcessPlan
    from affinityd.linux.memory_policy import MemoryPolicy
    from affinityd.request.environment import Pairs

UNPINNED = "AFFINITYD_UNPINNED"  #: why a process was not pinned
NICS = (
    f"{config.PREFIX}NICS"  #: which libraries are told their NICs: the site's or the user's choice
)
NO_LIBRARY = "none"
EXPORTED_NICS = f"{config.PREFIX}RDMA"  #: the ports of a process, for programs that it starts
ACTIVE = "4:"  #: begins a port's state, enum ib_port_state

#: Remarks on a plan's warnings; the others follow from the question, or are reported anyway.
REMARKS = {
    "widened": (
        "fewer CPUs are near the GPU than were asked for: the nearest others were added "
        "(AFFINITYD_CPUS=none leaves them out)"
    ),
    "share_unavailable": "too few cores for a block for each GPU: only this job's GPUs divide them",
    "ambiguous_index": (
        "this machine has GPUs of several models, which CUDA numbers fastest first: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    ),
}


def own_query(chosen: Mapping[str, str], switch: str = config.ON) -> Pairs:
    """Return the plan requests for this process; `chosen` parameters override its own."""
    process = ProcessContext.of_self()
    mask = process.mask
    observed = {"observe": format_list(mask)} if switch == config.OBSERVE else {}
    cpus = cpus_to_plan_on(os.environ, mask)
    return process.query({**observed, **chosen}, cpus)


def check_policy(policy: str | None) -> None:
    """Raise InvalidRequestError for an unknown memory policy; None is none."""
    if policy is not None:
        from affinityd.linux.memory_policy import checked_policy  # noqa: PLC0415 - few ask for one

        checked_policy(policy)


def apply_plan(
    plan: ProcessPlan, policy: str | None
) -> tuple[CpuSet, MemoryPolicy | None, list[str]]:
    """Apply a plan to the calling thread, and to the environment of its children.

    Returns the result, as read back: its mask, its memory policy (None: none was requested),
    and the deviations, a line each. Raises ApplyError where the kernel refuses all of
    its CPUs.
    """
    cpus, memory, refusals = set_own_mask(plan.cpus), None, []
    if policy is not None:
        from affinityd.linux.memory_policy import set_policy  # noqa: PLC0415 - few ask for one

        memory = set_policy(policy, plan.memory_nodes)
        refusals = [f"memory: {refusal}" for refusal in memory.refusals]
    os.environ.pop(UNPINNED, None)
    os.environ["AFFINITYD_CPULIST"] = format_list(cpus)
    os.environ["AFFINITYD_ALLOWED"] = format_list(plan.allowed)
    os.environ["AFFINITYD_LOCALITY"] = plan.locality
    return cpus, memory, [*_remarks(plan, cpus), *refusals]


def export_unpinned(reason: str) -> None:
    """Tell children why this process is not pinned."""
    os.environ[UNPINNED] = one_line(reason)


def export_observed(plan: ProcessPlan) -> None:
    """Leave this process as it is; if the switch is observe, put its plan into the environment."""
    if plan.switch == config.OBSERVE:
        cpus = format_list(plan.cpus)
        export_unpinned(f"observe: would run on CPUs {cpus} ({plan.locality})")


def set_own_mask(cpus: CpuSet) -> CpuSet:
    """Set the mask of the calling thread, and return it as read back.

    A program that it executes inherits it. The kernel silently removes CPUs that the cpuset
    does not allow, sched_setaffinity(2). Raises ApplyError if none is left.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ApplyError(
            f"CPUs {format_list(cpus)} were refused: {error.strerror}; "
            "the cpuset may hold none of them"
        ) from None
    return frozenset(os.sched_getaffinity(0))


def gpus_far_apart(plan: ProcessPlan, chosen: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for a single process that has the CPUs near GPUs of several nodes.

    A process that named its GPUs knows them, and each rank would repeat it.
    """
    rank = local_rank(os.environ)
    is_alone = rank is None or rank.size == 1
    if is_alone and "gpus" not in chosen and len(plan.gpus) > 1 and len(plan.nodes) > 1:
        gpus, nodes = several("GPU", plan.gpus), several("node", plan.nodes)
        yield (
            f"this process sees {gpus} of {nodes} and has the CPUs near any of them; if it uses "
            "only one GPU, name it: --gpus N, in Python bind(gpus=N)"
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
        yield f"CPUs {asked} are not near the GPU; allowed are {format_list(plan.allowed)}"
    if cpus != plan.cpus:
        yield f"CPUs {asked} were cut down to {format_list(cpus)}: the cpuset has no more"
    is_ordered = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    for code in plan.warnings:
        if code in REMARKS and not (code == "ambiguous_index" and is_ordered):
            yield REMARKS[code]


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
    usable = [port for port in ports if is_usable(port, root)]
    former = os.environ.get(EXPORTED_NICS, "").split(",")
    unset = []
    for library in libraries:
        variable, near = NIC_VARIABLES[library], nic_value(library, usable)
        set_before = os.environ.get(variable)
        if set_before and set_before not in {near, nic_value(library, former)}:
            yield f"{variable}={quote(set_before)} was set before, and stays"
        elif usable:
            os.environ[variable] = near
        else:
            os.environ.pop(variable, None)
            unset.append(variable)
    if unset:
        yield f"not set: {', '.join(unset)}; {_why_no_port(ports, root)}"
    os.environ[EXPORTED_NICS] = ",".join(usable)


def is_usable(port: str, root: str = "/") -> bool:
    """Whether a port is active, and its device can be opened here."""
    device, _, _ = port.partition(":")
    return _is_active(port, root) and any(
        os.access(f"{root}dev/infiniband/{name}", os.R_OK | os.W_OK)
        for name in verbs_files(device, root)
    )


def verbs_files(device: str, root: str = "/") -> list[str]:
    """Return the names of an RDMA device's files in /dev/infiniband."""
    files = f"{root}sys/class/infiniband/{device}/device/infiniband_verbs"
    # An adapter may have several devices.
    return [name for name in listed(files) if text(f"{files}/{name}/ibdev") == device]


def _is_active(port: str, root: str) -> bool:
    device, _, number = port.partition(":")
    state = text(f"{root}sys/class/infiniband/{device}/ports/{number}/state")
    return state.startswith(ACTIVE)


def _why_no_port(ports: Sequence[str], root: str) -> str:
    if not ports:
        return "the plan has no active device of InfiniBand, RoCE or EFA"
    active = [port for port in ports if _is_active(port, root)]
    if active:
        return f"this process cannot open {', '.join(active)} in /dev/infiniband"
    return f"not active here: {', '.join(ports)}"
