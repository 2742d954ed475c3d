"""`affinityd.bind`: a running Python process applies its plan, and reports the result."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from affinityd.client import apply, find_plan
from affinityd.client.export_nics import VARIABLE, export_nics
from affinityd.client.find_plan import TIMEOUT, ProcessPlan
from affinityd.config import file, switch
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import AffinityError
from affinityd.linux import pinning
from affinityd.linux.memory_policy import MemoryPolicy, checked_policy, own_policy
from affinityd.linux.processes import mask_of, stat_of

NOT_OF_PLAN = frozenset(("memory", "nics", "timeout", "fail_closed"))  #: arguments of bind()
TASK_PARAMETERS = frozenset(("rank", "ranks", "gpus"))  #: parameters that identify the process

logger = logging.getLogger("affinityd")


@dataclass(frozen=True)
class Binding:
    """The binding of this process, as read back from the kernel."""

    cpus: CpuSet  #: the calling thread's mask
    locality: str | None  #: "local", "mixed", "remote", "unknown"; None: there was no plan
    memory: MemoryPolicy | None  #: the calling thread's policy; None: it cannot be read
    source: str | None  #: of the plan: "daemon", "node.json", "sysfs"; None: there was no plan
    warnings: tuple[str, ...] = ()  #: deviations from the request, a line each
    plan_of_exec: Callable[[], CpuSet | None] = field(
        default=lambda: None, repr=False, compare=False
    )

    @cached_property
    def exec_cpus(self) -> CpuSet | None:
        """The CPUs `affinityd exec` would give this process; None: the same, or unknown.

        It is planned on first use.
        """
        return self.plan_of_exec()

    @property
    def pinned(self) -> bool:
        """Whether there was a plan, and the kernel took it."""
        return self.source is not None


def bind(
    rank: int | None = None,
    ranks: int | None = None,
    *,
    gpus: str | int | Sequence[int | str] | None = None,
    mode: str = "unique_contiguous",
    scope: str = "node",
    multithreading: str = "all_logical",
    balanced: bool = True,
    min_physical_cores: int = 1,
    max_physical_cores: int | None = None,
    cpus: int | None = None,
    share: str = "auto",
    strict: bool = False,
    memory: str | None = None,
    nics: str | Sequence[str] | None = None,
    timeout: float = TIMEOUT,
    fail_closed: bool = False,
) -> Binding:
    """Pin every thread of this process to the CPUs near its GPU; return the binding, read back.

    `rank` is the local rank of so many `ranks`; None: the launcher's. `gpus` are those of the
    ranks, an entry each, as `/plan` takes them; None: those that are visible. `cpus` is how many
    CPUs each rank asked for; None: Slurm's or the pod's number. `memory` is a policy
    ("local", "preferred", "bind", "interleave"), set for the calling thread and its children from
    now on. `nics` names libraries ("ucx", "nvshmem", "uccl", "nccl"): their variables are set to
    the near RDMA devices; None: as AFFINITYD_NICS says. The others are the parameters of a plan, by
    their names.

    Children see it in AFFINITYD_* variables in the environment. A second call plans as the
    first one did. Without a plan the process stays as it is, with a warning in the result and in
    the log; with `fail_closed`, AffinityError is raised instead.
    """
    arguments = locals().copy()
    chosen = {name: value for name, value in arguments.items() if name not in NOT_OF_PLAN}
    try:
        libraries = nics if nics is None or isinstance(nics, str) else ",".join(nics)
        binding = bind_process(texts(chosen), memory, timeout, libraries)
    except Exception as error:  # nor may a bug here end a job
        if fail_closed:
            raise
        reason = str(error) if isinstance(error, AffinityError) else repr(error)
        binding = _unbound(reason)
    for warning in binding.warnings:
        logger.warning("affinityd: %s", warning)
    return binding


def bind_process(
    given: Mapping[str, str],
    policy: str | None = None,
    timeout: float = TIMEOUT,
    libraries: str | None = None,
) -> Binding:
    """Plan for this process, and apply that if the switch is on. Raises AffinityError.

    `libraries` are told their RDMA devices; None: those that AFFINITYD_NICS names.
    """
    chosen = file.chosen_switch()
    if chosen == switch.OFF:
        return _unbound()
    try:
        return _plan_and_pin(given, policy, timeout, chosen, libraries)
    except AffinityError as error:
        if chosen != switch.OBSERVE:
            raise
        apply.export_unpinned(str(error))
        return _unbound()


def _plan_and_pin(
    given: Mapping[str, str], policy: str | None, timeout: float, chosen: str, libraries: str | None
) -> Binding:
    checked_policy(policy)
    variables = file.variables()
    if "cpus" not in given and (asked := variables.get("AFFINITYD_CPUS")):
        given = {"task_cpus": asked, **given}
    plan = _own_plan(given, chosen, timeout)
    if plan.switch != switch.ON:
        apply.export_observed(plan)
        return _unbound()
    cpus, held, remarks = apply.apply_plan(plan, policy)
    far_apart = apply.gpus_far_apart(plan, given)
    said = variables.get(VARIABLE) if libraries is None else libraries
    untold = export_nics(said, plan.rdma, variables) if said else ()
    return Binding(
        cpus=cpus,
        locality=plan.locality,
        memory=held or own_policy(),
        source=plan.source,
        warnings=(*far_apart, *remarks, *untold, *_pin_threads(plan.cpus)),
        plan_of_exec=partial(_cpus_of_exec, plan, given, chosen, timeout),
    )


def _own_plan(given: Mapping[str, str], chosen: str, timeout: float) -> ProcessPlan:
    start = time.monotonic()
    questions = apply.own_questions(given, chosen)
    sockets = file.sockets(file.variables())
    return find_plan.find_plan(questions, sockets, start, timeout, bounded=False)


def _cpus_of_exec(
    plan: ProcessPlan, given: Mapping[str, str], chosen: str, timeout: float
) -> CpuSet | None:
    """Return the CPUs of `exec`, whose mode variables choose; None: the same."""
    of_task = {name: given[name] for name in TASK_PARAMETERS & given.keys()}
    try:
        given = {**file.plan_parameters(file.variables()), **of_task}
        cpus = _own_plan(given, chosen, timeout).cpus
    except AffinityError:
        return None
    return None if cpus == plan.cpus else cpus


def _unbound(*warnings: str) -> Binding:
    """Return the binding of a process that stays as it is."""
    return Binding(frozenset(os.sched_getaffinity(0)), None, own_policy(), None, warnings)


def _pin_threads(cpus: CpuSet) -> Iterator[str]:
    """Pin every thread of this process; yield the refusals."""
    stat = stat_of(os.getpid())
    targets = [] if stat is None else [pinning.Target(stat.number, stat.start, cpus)]
    pinned = pinning.pin_threads(lambda: targets)
    for thread in pinned.having(pinning.REFUSED):
        yield f"thread {thread.tid} was refused its CPUs: {thread.reason}"
    if not pinned.is_settled:
        yield "threads start faster than they are pinned; some may run elsewhere"


def worker_init_fn(_worker_id: int) -> None:
    """Give a worker of PyTorch's DataLoader the CPUs of its training process.

    Workers inherit them, but OpenMP runtimes change them after a fork. Does nothing where
    the process was not bound: a variable alone may come from another job's shell.
    """
    try:
        cpus = parse_list(os.environ.get("AFFINITYD_CPULIST", ""))
        if cpus and file.chosen_switch() == switch.ON and cpus in _masks_above():
            apply.set_own_mask(cpus)
    except (ValueError, AffinityError) as error:
        logger.warning("affinityd: DataLoader worker %d stays unpinned: %s", _worker_id, error)


def _masks_above() -> list[CpuSet | None]:
    """Return the masks of the process's parent, and of its parent, as a fork server is."""
    parent = stat_of(os.getppid())
    return [] if parent is None else [mask_of(parent.number), mask_of(parent.parent)]


def texts(chosen: Mapping[str, object]) -> dict[str, str]:
    """Return parameters as a request has them; those that are None are not given."""

    def text(value: object) -> str:
        if isinstance(value, (list, tuple)):
            return ",".join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    return {name: text(value) for name, value in chosen.items() if value is not None}
