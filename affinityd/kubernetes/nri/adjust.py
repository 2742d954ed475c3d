"""The variables, folder and cpuset of a container with GPUs, before it starts. Pure.

A container about which there is a doubt gets nothing, and starts as it would without this. Its
device files say which GPUs it has: what it may open. CDI names and the variables of container
runtimes say it where the files come later. `all`, a folder and the like prove nothing.

Sources: NVIDIA Container Toolkit, "NVIDIA_VISIBLE_DEVICES"; its k8s-device-plugin,
"deviceListStrategy"; Ascend Docker Runtime, "ASCEND_VISIBLE_DEVICES"; the names of DRA drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from affinityd import config
from affinityd.client.apply import NICS, nic_libraries
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.kubernetes.nri.choices import KEEP, Choices, Rules
from affinityd.kubernetes.nri.messages import CPU_SHARES, MOUNT_POINT, Container, Pod
from affinityd.planner import Options
from affinityd.request.environment import JOB_CPUS, NIC_VARIABLES, nic_value
from affinityd.request.parameters import Request
from affinityd.request.resolve import Reply, answer
from affinityd.request.task import Task, gpus_seen
from affinityd.topology.model import Node
from affinityd.topology.nearness import near_nodes, placement, vicinity

NVIDIA_VISIBLE, ASCEND_VISIBLE = "NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"
CDI_ANNOTATION = "cdi.k8s.io/"  #: begins the annotations that name devices of CDI

#: Device files, the first kind that a container has: NVIDIA's driver brings render nodes, too.
FILES = (
    (re.compile(r"/dev/nvidia([0-9]+)", re.ASCII), "minor:"),
    (re.compile(r"/dev/dri/renderD([0-9]+)", re.ASCII), "drm:"),
    (re.compile(r"/dev/davinci([0-9]+)", re.ASCII), "davinci:"),
    (re.compile(r"/dev/accel/accel([0-9]+)", re.ASCII), "accel:"),
)
CDI = (
    (re.compile(r"k8s\.gpu\.[a-z.]+/claim=.*-gpu-([0-9]+)", re.ASCII), "minor:"),
    (re.compile(r"[a-z0-9.-]+/(?:gpu|mig|npu)=([0-9]+|GPU-.+|MIG-.+)", re.ASCII), ""),
)
#: Folder of the mounts by which NVIDIA's device plugin may name devices.
BY_MOUNT = re.compile(r"/(?:var/)?run/nvidia-container-devices/((?:GPU|MIG)-[^/]+)")
INDICES = re.compile(r"[0-9]+(?:,[0-9]+)*", re.ASCII)
LISTED = re.compile(r"(?:[0-9]+|GPU-[^,]+|MIG-[^,]+)(?:,|$)", re.ASCII)


def granted(container: Container) -> str:
    """Return the container's GPUs, separated by commas; "" where it has none, or none are known."""
    ways = (*_by_files(container), _by_cdi(container), *_by_variables(container))
    return next(filter(None, (",".join(names) for names in ways)), "")


def hides_gpus(container: Container) -> bool:
    """Return whether a container to which `granted` finds no GPU may have one all the same.

    A privileged one has every device file; CDI's names may be of a form that is not known here.
    """
    names_cdi = any(name.startswith(CDI_ANNOTATION) for name in container.annotations)
    return bool(PRIVILEGED & {*container.devices} or container.cdi_devices or names_cdi)


def _lists_gpus(container: Container, gpus: int) -> bool:
    """Return whether its spec lists the device files of so many GPUs.

    On cgroup v2 any change of a running container's cpuset may have systemd let it open the
    spec's devices alone: a GPU that libnvidia-container let in beside the spec would be lost
    (NVIDIA/nvidia-container-toolkit#1397).
    """
    listed = [sum(bool(kind.fullmatch(it)) for it in container.devices) for kind, _ in FILES]
    return max(listed) >= gpus


def listed(container: Container) -> str | None:
    """Return the value of NVIDIA's variable; None: it proves nothing."""
    value = container.environment.get(NVIDIA_VISIBLE, "")
    return value if LISTED.match(value) else None


def _by_files(container: Container) -> Iterator[list[str]]:
    if not PRIVILEGED.isdisjoint(container.devices):
        return
    for pattern, kind in FILES:
        yield [f"{kind}{it[1]}" for name in container.devices if (it := pattern.fullmatch(name))]


def _by_cdi(container: Container) -> list[str]:
    annotations = container.annotations.items()
    texts = (text for name, text in annotations if name.startswith(CDI_ANNOTATION))
    names = {*container.cdi_devices, *(name for text in texts for name in text.split(","))}
    return [
        f"{kind}{match[1]}"
        for name in sorted(names)
        for pattern, kind in CDI
        if (match := pattern.fullmatch(name))
    ]


def _by_variables(container: Container) -> Iterator[list[str]]:
    yield [match[1] for path in container.mounts if (match := BY_MOUNT.fullmatch(path))]
    yield (listed(container) or "").split(",")
    ascend = container.environment.get(ASCEND_VISIBLE, "")
    yield ascend.split(",") if INDICES.fullmatch(ascend) else []


#: The outcomes of requests.
PINNED, KEPT, OBSERVED, OFF = "pinned", "kept", "observed", "off"
LEFT = "left"  #: it runs, and its spec lists no device file of its GPUs
NOT_CHOSEN, NO_GPU, UNKNOWN = "not_chosen", "no_gpu", "unknown"
NOT_PLACED = "unplaced"  #: for good: a choice without a meaning, a GPU whose node is not known
FAILED = "failed"
OUTCOMES = (PINNED, KEPT, OBSERVED, OFF, LEFT, NOT_CHOSEN, NO_GPU, UNKNOWN, NOT_PLACED, FAILED)
#: Annotation of a container that was placed at its creation: its CPUs, and their locality.
PLACED_ANNOTATION = "affinityd/placed"

#: Device files that only a privileged container has: it has every other one, too.
PRIVILEGED = frozenset(("/dev/mem", "/dev/kmsg"))


@dataclass(frozen=True)
class Adjustment:
    """The changes to a container, and their outcome."""

    outcome: str
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None  #: of the node, mounted read only; None: none is
    cpus: CpuSet = frozenset()  #: its cpuset; empty: as it is
    memory_nodes: CpuSet = frozenset()  #: of its cpuset; empty: as they are
    note: str = ""  #: for the log; empty: the container is not worth a line
    locality: str = ""  #: of its CPUs, one of `nearness.PLACEMENTS`


def adjust(
    node: Node,
    pod: Pod,
    container: Container,
    rules: Rules,
    *,
    choices: Choices,
    granted: str,
    within: CpuSet | None,
    memory: CpuSet | None = None,
    runs: bool = False,
) -> Adjustment:
    """Return the changes to a container with these GPUs.

    `within` and `memory`: the CPUs and the NUMA nodes that its pod may use, None if they are not
    known. `runs`: it runs already.
    Raises AffinityError where no plan can be made: for a GPU that this node has not, or if no CPU
    is allowed.
    """
    word = config.least_switch(
        node.switch,
        choices.switch,
        config.read_switch_or_off(container.environment.get(config.SWITCH, "")),
    )
    if word == config.OFF:
        return Adjustment(OFF)
    keeps = not container.asked and rules.without_request == KEEP
    # A cpuset is another's: of kubelet's static policy, which gives every container one.
    is_taken, cpuset = bool(container.cpus), parse_list(container.cpus)
    usable = within if not is_taken else cpuset if within is None else cpuset & within
    reply = _planned(node, pod, container, choices.options, granted=granted, within=usable)
    if any(rank.locality == UNKNOWN for rank in reply.ranks):
        note = "it stays, since the NUMA node of a GPU is not known"
        return Adjustment(NOT_PLACED, note=note, locality=UNKNOWN)
    before = cpuset or within or node.topology.online
    place = placement(
        node.topology, vicinity(node.topology, [rank.gpu for rank in reply.ranks]), before
    )
    where = f"CPUs {format_list(reply.cpus)} ({reply.locality})"
    if word == config.OBSERVE:
        note = f"observe: would run on {where}"
        told = _unset(container, {"AFFINITYD_UNPINNED": note})
        return Adjustment(OBSERVED, told, note=note, locality=place)
    is_enough = len(reply.cpus) >= min(container.asked or pod.asked, len(reply.allowed))
    pins = is_enough and not is_taken and not keeps and within is not None
    gpus = {rank.gpu.key for rank in reply.ranks}
    if pins and runs and not _lists_gpus(container, len(gpus)):
        note = "its CPUs stay until it starts again: its spec lists no device file of its GPU"
        return Adjustment(LEFT, note=note, locality=place)
    environment = {
        **_facts(node, container, reply, reply.cpus if pins else before),
        **_nics(container, reply, choices.nics, rules),
    }
    if pins:
        cpus = format_list(reply.cpus)
        environment |= {"AFFINITYD_CPULIST": cpus, "AFFINITYD_ALLOWED": cpus}
        environment["AFFINITYD_LOCALITY"] = reply.locality
    near = {home for rank in reply.ranks for home in near_nodes(node.topology, rank.gpu)}
    homes = {node.topology.memory_node(home) for home in near}
    nodes = frozenset(home for home in homes if home is not None)
    binds = pins and choices.binds_memory and not container.memory_nodes
    binds = binds and nodes <= (memory or set())
    return Adjustment(
        PINNED if pins else KEPT,
        _unset(container, environment),
        folder=_folder(pod, container, rules),
        cpus=reply.cpus if pins else frozenset(),
        memory_nodes=nodes if binds else frozenset(),
        note=f"{where}, of {len(before)}" if pins else f"its CPUs stay ({place})",
        locality=reply.locality if pins else place,
    )


def _planned(
    node: Node,
    pod: Pod,
    container: Container,
    options: Options,
    *,
    granted: str,
    within: CpuSet | None,
) -> Reply:
    """Return the plan, all CPUs near its GPUs, and others if it asked for more.

    More than near ones also if these are too few for all containers with GPUs there. A container
    that has asked for nothing counts as if it had asked for its GPUs' part of the node's CPUs, or
    for all that its pod asked for.
    """
    task = Task(granted=granted, nvidia_visible=listed(container), cpuset=within)
    ranks = gpus_seen(node.topology, task).by_index.values()
    near = {near_nodes(node.topology, rank.gpu) for rank in ranks}
    gpus = len({rank.gpu.key for rank in ranks})
    # The containers of the other GPUs there may have requested as much for each.
    others = sum(near_nodes(node.topology, gpu) in near for gpu in node.topology.gpus)
    together = -(-container.shares * others // (CPU_SHARES * gpus)) if gpus else 0
    part = 0  # a mode that was chosen says it
    if options.mode == "node":
        part = -(-len(node.usable) * gpus // max(len(node.topology.gpus), 1))
    each = -(-max(container.asked or max(part, pod.asked), together) // len(ranks)) if gpus else 0
    return answer(node, Request(task, options=replace(options, cpus=each or None)))


def _unset(container: Container, environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of some variables that the container does not set itself."""
    return {name: text for name, text in environment.items() if name not in container.environment}


def _facts(node: Node, container: Container, reply: Reply, cpus: CpuSet) -> dict[str, str]:
    """Return variables for programs and affinityd's commands in a container that has these CPUs."""
    asked = container.requested or container.limit
    nodes = {core.node for core in node.topology.cores if not cpus.isdisjoint(core.cpus)}
    memory = {rank.memory_node for rank in reply.ranks if rank.memory_node is not None}
    facts = {
        JOB_CPUS: str(asked or ""),
        "AFFINITYD_NODES": format_list(number for number in nodes if number is not None),
        "AFFINITYD_MEMORY_NODES": format_list(memory),
    }
    return {name: text for name, text in facts.items() if text}


def _nics(container: Container, reply: Reply, nics: str, rules: Rules) -> dict[str, str]:
    """Return the variables of libraries for one rank: of devices that its container can open."""
    files = {path.removeprefix("/dev/infiniband/") for path in container.devices}
    ports = [port for port in reply.rdma if files & {*rules.verbs(port.partition(":")[0])}]
    try:
        names = nic_libraries(container.environment.get(NICS, nics) or "none")
    except InvalidRequestError:
        return {}
    if len(reply.ranks) != 1 or not ports or not names:
        return {}
    told = {NIC_VARIABLES[name]: nic_value(name, ports) for name in names}
    return {**told, "AFFINITYD_RDMA": ",".join(ports)}


def _folder(pod: Pod, container: Container, rules: Rules) -> str | None:
    """Return the folder of the daemon's socket, if the site lists the namespace and it is free."""
    taken = any(_overlap(MOUNT_POINT, path.rstrip("/")) for path in container.mounts)
    return rules.folder if rules.of_namespace(pod.namespace) and not taken else None


def _overlap(folder: str, other: str) -> bool:
    return f"{folder}/".startswith(f"{other}/") or f"{other}/".startswith(f"{folder}/")
