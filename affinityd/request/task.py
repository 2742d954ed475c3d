"""The task of a process, by its facts: which GPUs, rank and CPUs it has. Pure.

A GPU index is read through each numbering between the node and the process, the node's first:

1. the device files that the process may open, which a container's runtime counts from 0;
2. NVIDIA_VISIBLE_DEVICES, where it names only such devices;
3. the list of the MPS daemon, for its clients;
4. the visible-device variables, as the driver reads them.

If one of them is not known, an index may mean several GPUs. If these have the same near CPUs, the
plan is certain. Else there is no plan, and the process stays as it is.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; NVIDIA "Multi-Process Service",
"MIG User Guide", Container Toolkit "NVIDIA_VISIBLE_DEVICES"; Ascend "ASCEND_RT_VISIBLE_DEVICES".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from affinityd.cpuset import CpuSet, several
from affinityd.errors import InvalidRequestError, NoSuchGpuError, UnsatisfiableError
from affinityd.planner import Options, PlanWarning
from affinityd.planner.modes import MODES
from affinityd.request import environment as env
from affinityd.request.devices import (
    ComputeDevice,
    Doubt,
    VisibleDevices,
    all_devices,
    at,
    is_number,
    number_devices,
    number_tiles,
    read_visible,
    with_uuid,
)
from affinityd.request.environment import Environment, Rank, number, visible
from affinityd.request.task_cpus import (
    SlurmTask,
    TaskCpus,
    bound_by,
    read_asked_cpus,
    read_slice,
    read_slurm_task,
)
from affinityd.text import quote
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import near_nodes

FILE = r"(minor|drm|davinci|accel):[0-9]{1,9}"  #: a device file
AMBIGUOUS = "ambiguous_index"


@dataclass(frozen=True)
class Task:
    """The GPUs, rank and CPUs of a process: as parameters state them, else by its variables."""

    gpus: tuple[str, ...] | None = None  #: GPUs of the ranks, by name; None: all that it sees
    rank: tuple[int, ...] | None = None  #: its own ranks; None: all, as if it is the only process
    ranks: int | None = None  #: number of ranks; None: one for each GPU
    job: tuple[str, ...] | None = None  #: all GPUs of its job; None: only its own GPUs matter
    cpuset: CpuSet | None = None
    granted: str | None = None  #: the devices that it may open; None: not known
    visible: str | None = None  #: the value of its visible-device variables; None: not set
    # The fields from here on come from variables alone, not from parameters:
    #: The visible-device variables of all vendors, if none was stated
    lists: tuple[tuple[str, str], ...] = ()
    nvidia_visible: str | None = None  #: NVIDIA_VISIBLE_DEVICES, for container runtimes
    mps: str | None = None  #: device list of its MPS daemon; None: it is no MPS client
    is_in_bus_order: bool = False  #: CUDA_DEVICE_ORDER says so
    counts_cards: bool = False  #: ZE_FLAT_DEVICE_HIERARCHY counts cards, not tiles
    renumbering: tuple[str, ...] = ()  #: variables of RENUMBERING that are set to numbers
    cpus: TaskCpus | None = None  #: how many CPUs it asked for; None: unknown
    slice: CpuSet | None = None  #: the CPUs to which a launcher bound it; None: it is not bound
    slurm: SlurmTask | None = None  #: None: it is no Slurm task, or its GPUs were named
    bound: str | None = None  #: why its CPUs stay as they are; None: they may change
    #: The GPU of each rank; (): GPUs in order of rank. Or one word: "block": adjacent ranks share
    #: a GPU; "unknown": assume nothing
    gpu_order: tuple[str, ...] = ()
    masks: tuple[CpuSet, ...] = ()  #: the CPUs of each rank here; (): all ranks have the same
    masks_unknown: str | None = None  #: why the masks are not known; None: they are known
    opened: str | None = None  #: devices that it may open, also those of other jobs
    has_own_block: bool = False  #: its siblings have other GPUs and other cores
    is_process: bool = False  #: whether it may number GPUs differently from the node
    is_launched: bool = False  #: `job` may be another process's, without this rank


def read_task(environ: Environment, stated: Task, options: Options, names: Collection[str]) -> Task:
    """Return a process's task by its variables; `stated` facts, named in `names`, come first.

    Raises InvalidRequestError for variables that are malformed, or contradict each other.
    """
    launched = env.local_rank(environ)
    is_named = "gpus" in names or "rank" in names
    if launched is not None and max(launched.number + 1, launched.size or 1) > env.MAX_ENTRIES:
        raise InvalidRequestError(
            f"env: {launched.variable}={launched.number} (ranks on this node: "
            f"{launched.size or 'unknown'}): a node may have at most {env.MAX_ENTRIES} ranks"
        )
    rank = launched  # the process is one of several ranks of a launcher
    if launched is not None and (env.is_alone(environ, launched) or env.GPUS in environ):
        rank = None
    task = replace(
        _read_numberings(environ, stated),
        slice=read_slice(environ, stated.cpuset, launched, is_named=is_named),
        is_launched=bool(environ.keys() - {env.ALLOWED, env.CPULIST}),
    )
    if options.cpus is None:
        of_script = rank is None and bool(stated.rank) and not stated.ranks
        cpus = read_asked_cpus(environ, stated.ranks, launched, of_script=of_script)
        task = replace(task, cpus=cpus)
    if not is_named and (launched is None or launched.variable == env.SLURM_TASK):
        task = replace(task, bound=bound_by(environ, launched))
        if launched and launched.size:
            slurm = read_slurm_task(environ, launched.number, launched.size, stated.cpuset)
            task = replace(task, job=stated.job or _gpus_of_job(environ), slurm=slurm)
            return replace(task, granted=_choose_granted(environ, task))
    if rank is None and len(stated.rank or ()) != 1:  # all ranks or several are requested
        return replace(task, granted=_choose_granted(environ, task))
    if stated.rank and stated.ranks:
        return task
    if rank is None or stated.rank:  # one rank; its launcher or GPUs tell how many there are
        return replace(task, job=None, ranks=rank.size if rank else None)
    by_number = replace(task, job=None, rank=(rank.number,), ranks=stated.ranks or rank.size)
    if is_named or stated.ranks:
        return by_number
    return _set_apart(environ, task, rank, options) or by_number


def _read_numberings(environ: Environment, stated: Task) -> Task:
    task = replace(
        stated,
        cpuset=None if stated.cpuset is None else env.cpus_to_plan_on(environ, stated.cpuset),
        nvidia_visible=environ.get(env.NVIDIA_VISIBLE) or None,
        mps=environ.get(env.MPS_LIST) or (env.MPS_UNKNOWN if env.MPS_PIPE in environ else None),
        is_in_bus_order=environ.get(env.DEVICE_ORDER) == env.BUS_ORDER,
        counts_cards=environ.get(env.ZE_HIERARCHY, "").upper() == "COMPOSITE",
        renumbering=tuple(
            name for name in env.RENUMBERING.values() if re.search("[0-9]", environ.get(name, ""))
        ),
        is_process=True,
    )
    if stated.visible is not None:
        return task
    value = visible(environ, _vendors_of(stated))
    return replace(task, visible=value, lists=visible_lists(environ))


def visible_lists(environ: Environment) -> tuple[tuple[str, str], ...]:
    """Return the visible-device variables of all vendors."""
    return tuple((name, environ[name]) for name in env.VISIBLE_NAMES if name in environ)


def _vendors_of(task: Task) -> tuple[str, ...]:
    vendors = {"minor": ("nvidia",), "drm": ("amd", "8086"), "davinci": ("huawei",)}
    return vendors.get((task.granted or "").partition(":")[0], ())


def choose_visible(topology: Topology, task: Task) -> Task:
    """Return a task with the visible-device variables that its GPUs' driver reads."""
    if not task.lists:
        return task
    # GPUs of the vendor that indices count
    gpus = topology.gpus if task.granted else topology.gpus[:1]
    present = {gpu.vendor for gpu in gpus}
    vendors = present.intersection(_vendors_of(task) or present)
    return replace(task, visible=visible(dict(task.lists), vendors) if vendors else None)


# The GPUs of a task's job, and the task's siblings.


def _gpus_of_job(environ: Environment) -> tuple[str, ...] | None:
    """Return the GPUs of the job on this node, as the job numbers them, if known."""
    in_script = environ.get("SLURM_JOB_GPUS") if "SLURM_STEP_ID" not in environ else None
    gpus = environ.get(env.JOB_GPUS) or in_script
    return tuple(gpus.split(",")) if gpus else None


def _choose_granted(environ: Environment, task: Task) -> str | None:
    """Return the job's GPUs if an unbound task may open more GPUs, else those it may open."""
    of_step = number(environ.get("SLURM_GPUS_ON_NODE"))
    files = (task.granted or "").count(",") + 1
    if task.job is None or task.visible is not None or of_step in {None, files}:
        return task.granted
    return ",".join(task.job)


def _set_apart(environ: Environment, task: Task, rank: Rank, options: Options) -> Task | None:
    """Return a rank with its own block of cores, if its only GPU is no sibling's; else None."""
    if task.visible is None or MODES[options.mode].everywhere or options.share == "requested":
        return None
    container = task.nvidia_visible or task.granted
    in_slurm = env.SLURM_JOB in environ
    is_only_one = not in_slurm and container not in (None, "all") and "," not in (container or "")
    if env.gpus_in(task.visible) != 1 or is_only_one:
        return None
    job = task.job or _gpus_of_job(environ)
    ranks = rank.size or 1
    gpus = ranks
    if job:
        gpus = len(job)
    elif of_node := number(environ.get("SLURM_GPUS_ON_NODE")):
        gpus = of_node
    sharing = -(-ranks // gpus)  # how many ranks share a GPU
    if sharing > 1:
        task = replace(task, ranks=sharing, rank=(rank.number // gpus,))
        job = None
    return replace(task, job=job, has_own_block=job is None)


# The GPUs that a task sees.


def gpus_seen(topology: Topology, task: Task) -> VisibleDevices:
    """Return the devices that a process sees, by its own numbers, through every numbering.

    Raises InvalidRequestError for a malformed grant, NoSuchGpuError for a device that is not here.
    """
    everything = all_devices(topology)
    devices = None
    if task.granted is not None:
        devices = _devices_opened(topology, everything, task.granted)
    if task.nvidia_visible:
        devices = _devices_of_container(everything, task.nvidia_visible, devices) or devices
    seen = everything if devices is None else number_devices(devices)
    if _counts_itself(task) and not task.counts_cards:
        seen = number_tiles(seen)
    seen = seen._replace(doubt=_doubt_of_order(topology, task, seen))
    of_daemon = None if task.mps == env.MPS_UNKNOWN else read_visible(task.mps, seen)
    # A list that does not fit the devices that this process sees is about other devices.
    if of_daemon is None or (task.mps is not None and (of_daemon.cut or not of_daemon.by_index)):
        why = f"{env.MPS_PIPE}: CUDA numbers GPUs by the MPS daemon's list, which is not known"
        gpus = frozenset(device.gpu.key for device in seen.by_index.values())
        seen = seen._replace(doubt=Doubt(f"{why}; name the GPU by its UUID", gpus))
    else:
        seen = of_daemon
    seen = read_visible(task.visible, seen)
    divided = _doubt_of_mig(seen) if _counts_itself(task) else None
    if divided and seen.doubt:
        divided = divided._replace(gpus=divided.gpus | seen.doubt.gpus)
    return seen._replace(doubt=divided or seen.doubt)


def _counts_itself(task: Task) -> bool:
    """Return whether an index may be in a numbering of the process's own, not the node's."""
    return task.is_process or task.visible is not None


def _devices_opened(
    topology: Topology, everything: VisibleDevices, granted: str
) -> tuple[ComputeDevice, ...]:
    """Return the devices that may be opened, in the node's order, as a process counts them."""
    if granted == "none":
        raise NoSuchGpuError("granted=none: the caller was given no GPU")
    files: dict[str, ComputeDevice] = {}
    for gpu in topology.gpus:
        files |= dict.fromkeys(gpu.device_files, ComputeDevice(gpu))
    entries = granted.split(",")
    if not files.keys().isdisjoint(entries):  # the file of a lost GPU remains
        entries = [entry for entry in entries if entry in files or not re.fullmatch(FILE, entry)]
    wanted = set()
    for entry in entries:
        if entry not in files and (match := re.fullmatch(FILE, entry)):
            kind = [file.split(":")[1] for file in files if file.startswith(match[1])]
            have = ", ".join(sorted(kind, key=int)) or "none that is known: see affinityd doctor"
            raise NoSuchGpuError(f"granted: no GPU has {entry}; this machine has {have}")
        wanted.add(files.get(entry) or _granted_device(everything, entry))
    return tuple(device for device in everything.nameable if device in wanted)


def _granted_device(everything: VisibleDevices, entry: str) -> ComputeDevice:
    try:
        return at(everything, entry)
    except NoSuchGpuError as error:
        raise NoSuchGpuError(f"granted: {error}") from None
    except InvalidRequestError:
        raise InvalidRequestError(
            f"granted: {quote(entry)} is not a device; write a comma list of indices, UUIDs, "
            "minor:N or drm:N, or none"
        ) from None


def _devices_of_container(
    everything: VisibleDevices, listed: str, granted: tuple[ComputeDevice, ...] | None
) -> tuple[ComputeDevice, ...] | None:
    """Return the devices that a container lists; None: no list (`all`), or some are not granted."""
    try:
        wanted = {at(everything, entry.strip()) for entry in listed.split(",")}
    except (InvalidRequestError, NoSuchGpuError):
        return None
    keys = None if granted is None else {device.gpu.key for device in granted}
    if keys is not None and not keys >= {device.gpu.key for device in wanted}:
        return None
    return tuple(device for device in everything.nameable if device in wanted)


def _doubt_of_order(topology: Topology, task: Task, seen: VisibleDevices) -> Doubt | None:
    """Return why these GPUs may be counted in another order than the node's; None: no doubt."""
    gpus = [device.gpu for device in seen.by_index.values() if device.gpu.vendor == "nvidia"]
    are_identified = all(gpu.pci_id for gpu in gpus)
    models = {gpu.pci_id if are_identified else gpu.model for gpu in gpus}
    if len(models) > 1 and not task.is_in_bus_order:
        why = "this machine has GPUs of several models, which CUDA numbers fastest first"
        remedy = f"set {env.DEVICE_ORDER}={env.BUS_ORDER}, or name GPUs by their UUIDs"
        return Doubt(f"{why}: {remedy}", frozenset(gpu.key for gpu in gpus))
    for device in seen.by_index.values():
        variable = env.RENUMBERING.get(device.gpu.vendor)
        if variable in task.renumbering:
            why = f"{variable} counts in an order of its own: name the GPU by its PCI bus id"
            return Doubt(why, frozenset(device.gpu.key for device in seen.by_index.values()))
    # The driver gives each of its GPUs a minor number: a GPU without one is lost.
    of_node = [gpu for gpu in topology.gpus if gpu.vendor == "nvidia"]
    lost = [gpu.index for gpu in of_node if gpu.minor is None]
    if not lost or len(lost) == len(of_node) or not _counts_itself(task):
        return None
    # A container has the driver's entries of its own GPUs only. The file of a lost GPU remains.
    granted = set(re.findall(r"minor:[0-9]+", task.granted or ""))
    if granted and granted <= frozenset[str]().union(*(gpu.device_files for gpu in of_node)):
        return None
    behind = frozenset(gpu.key for gpu in gpus if gpu.index >= lost[0])
    why = f"NVIDIA's driver does not list {several('GPU', lost)}, which CUDA may leave out, too"
    return Doubt(f"{why}; name the GPU by its UUID", behind)


def _doubt_of_mig(seen: VisibleDevices) -> Doubt | None:
    """Return the doubt about indices if GPUs are divided: CUDA counts only one instance."""
    devices = list(seen.by_index.values())
    gpus = [device.gpu for device in devices if device.mig is None]
    divided = [gpu.index for gpu in gpus if gpu.mig or gpu.is_divided]
    if not divided or len(devices) == 1:
        return None
    has = f"MIG is on, and CUDA shows {several('GPU', divided)} by the UUIDs of its instances alone"
    return Doubt(f"{has}: name one of these", frozenset(device.gpu.key for device in devices))


def check_gpus(
    topology: Topology, task: Task, doubt: Doubt | None, gpus: Sequence[Gpu]
) -> PlanWarning | None:
    """Return a warning if a task's GPUs are uncertain, but their place is certain.

    Raises UnsatisfiableError if the place is uncertain, too.
    """
    keys = {gpu.key for gpu in gpus}
    is_by_index = task.gpus is None or any(map(is_number, task.gpus))
    if doubt is None or not is_by_index:
        return None
    if not _counts_itself(task):
        return PlanWarning(AMBIGUOUS, f"{doubt.why}; an index here follows the PCI bus")
    if doubt.gpus.isdisjoint(keys) or doubt.gpus <= keys:
        return None
    candidates = [gpu for gpu in topology.gpus if gpu.key in doubt.gpus or gpu.key in keys]
    if len({near_nodes(topology, gpu) for gpu in candidates}) > 1:
        raise UnsatisfiableError(f"it is not known which GPU the task uses: {doubt.why}")
    return PlanWarning(AMBIGUOUS, f"{doubt.why}; the CPUs near each of them are the same")


def names_unknown_mig(topology: Topology, task: Task) -> bool:
    """Return whether a task names a MIG instance that the topology does not have."""
    texts = (*(task.gpus or ()), task.granted, task.nvidia_visible, task.visible, task.mps)
    names: list[str] = []
    for text in texts:
        names += re.findall(r"MIG-[^,;\s]+", text or "")
    nameable = all_devices(topology).nameable
    return not all(with_uuid(name, nameable) for name in names)
