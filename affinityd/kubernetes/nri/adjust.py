"""The variables, folder and cpuset of a container with GPUs, before it starts. Pure.

In doubt a container gets nothing, and starts as it would without affinityd. The device files that
it may open tell which GPUs it has. If the runtime adds the files later, CDI names and the variables
of container runtimes tell the GPUs. `all`, a folder and the like prove nothing.

Sources: NVIDIA Container Toolkit, "NVIDIA_VISIBLE_DEVICES"; its k8s-device-plugin,
"deviceListStrategy"; Ascend Docker Runtime, "ASCEND_VISIBLE_DEVICES"; the names of DRA drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from affinityd import config
from affinityd.client.apply import NICS, nic_libraries
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.kubernetes.nri.choices import Choices, Rules
from affinityd.kubernetes.nri.messages import CPU_SHARES, MOUNT_POINT, Container, Pod
from affinityd.planner import Options
from affinityd.request.environment import JOB_CPUS, NIC_VARIABLES, nic_value
from affinityd.request.parameters import Request
from affinityd.request.resolve import Reply, answer
from affinityd.request.task import Task, gpus_seen
from affinityd.topology.model import Gpu, Node
from affinityd.topology.nearness import UNKNOWN, near_nodes, placement, vicinity

CDI_ANNOTATION = "cdi.k8s.io/"  #: prefix of annotations that name CDI devices

#: Device files; the first kind that a container has counts: NVIDIA's driver also brings render
#: nodes.
DEVICE_FILE_PATTERNS = (
    (re.compile(r"/dev/nvidia([0-9]+)", re.ASCII), "minor:"),
    (re.compile(r"/dev/dri/renderD([0-9]+)", re.ASCII), "drm:"),
    (re.compile(r"/dev/davinci([0-9]+)", re.ASCII), "davinci:"),
    (re.compile(r"/dev/accel/accel([0-9]+)", re.ASCII), "accel:"),
)
#: CDI names: of DRA drivers and of container toolkits.
CDI_PATTERNS = (
    (re.compile(r"k8s\.gpu\.[a-z.]+/claim=.*-gpu-([0-9]+)", re.ASCII), "minor:"),
    (re.compile(r"[a-z0-9.-]+/(?:gpu|mig|npu)=([0-9]+|GPU-.+|MIG-.+)", re.ASCII), ""),
)
#: Device files that only a privileged container has; it has all other files, too.
PRIVILEGED_FILES = frozenset(("/dev/mem", "/dev/kmsg"))
#: Annotation of a container that was placed when created: its CPUs, and their locality.
PLACED_ANNOTATION = "affinityd/placed"

#: The outcome of a request. "left": the container is running, and its spec lists no device file of
#: its GPUs. "unplaced" is final: a choice is not valid, or the node of a GPU is not known.
Outcome = Literal[
    "pinned",
    "kept",
    "observed",
    "off",
    "left",
    "not_chosen",
    "no_gpu",
    "unknown",
    "unplaced",
    "failed",
]


def granted(container: Container) -> str:
    """Return the container's GPUs, separated by commas; "" if no GPU of it is known."""
    gpus = _by_files(container) or _by_cdi(container) or _by_mounts(container)
    if gpus:
        return ",".join(gpus)
    nvidia = listed(container)
    if nvidia is not None:
        return nvidia
    ascend = container.environment.get("ASCEND_VISIBLE_DEVICES", "")
    is_list = re.fullmatch(r"[0-9]+(?:,[0-9]+)*", ascend, re.ASCII)
    return ascend if is_list else ""


def hides_gpus(container: Container) -> bool:
    """Return whether a container may have a GPU that `granted` does not find.

    A privileged container has every device file; CDI names may have an unknown form.
    """
    if _is_privileged(container) or container.cdi_devices:
        return True
    return any(name.startswith(CDI_ANNOTATION) for name in container.annotations)


def _is_privileged(container: Container) -> bool:
    return not PRIVILEGED_FILES.isdisjoint(container.devices)


def _lists_gpus(container: Container, gpus: int) -> bool:
    """Return whether the container's spec lists the device files of so many GPUs.

    On cgroup v2 any change of a running container's cpuset may make systemd allow only the spec's
    devices: a GPU that libnvidia-container added beside the spec would be lost
    (NVIDIA/nvidia-container-toolkit#1397).
    """
    for pattern, kind in DEVICE_FILE_PATTERNS:
        if len(_files_of(container, pattern, kind)) >= gpus:
            return True
    return False


def listed(container: Container) -> str | None:
    """Return the value of NVIDIA's variable; None: the value proves nothing."""
    value = container.environment.get("NVIDIA_VISIBLE_DEVICES", "")
    names_gpus = re.match(r"(?:[0-9]+|GPU-[^,]+|MIG-[^,]+)(?:,|$)", value, re.ASCII)
    return value if names_gpus else None


def _by_files(container: Container) -> list[str]:
    if _is_privileged(container):
        return []
    for pattern, kind in DEVICE_FILE_PATTERNS:
        gpus = _files_of(container, pattern, kind)
        if gpus:
            return gpus
    return []


def _files_of(container: Container, pattern: re.Pattern[str], kind: str) -> list[str]:
    """Return the device files of one kind, each as a GPU name."""
    gpus = []
    for path in container.devices:
        match = pattern.fullmatch(path)
        if match:
            gpus.append(f"{kind}{match[1]}")
    return gpus


def _by_cdi(container: Container) -> list[str]:
    names = {*container.cdi_devices}
    for annotation, text in container.annotations.items():
        if annotation.startswith(CDI_ANNOTATION):
            names.update(text.split(","))
    gpus = []
    for name in sorted(names):
        for pattern, kind in CDI_PATTERNS:
            match = pattern.fullmatch(name)
            if match:
                gpus.append(f"{kind}{match[1]}")
    return gpus


def _by_mounts(container: Container) -> list[str]:
    """Return the GPUs that NVIDIA's device plugin names by mounts in a folder of its own."""
    gpus = []
    for path in container.mounts:
        match = re.fullmatch(r"/(?:var/)?run/nvidia-container-devices/((?:GPU|MIG)-[^/]+)", path)
        if match:
            gpus.append(match[1])
    return gpus


@dataclass(frozen=True)
class Adjustment:
    """The changes to a container, and their outcome."""

    outcome: Outcome
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None  #: the node's folder, mounted read only; None: no folder
    cpus: CpuSet = frozenset()  #: the container's new cpuset; empty: unchanged
    memory_nodes: CpuSet = frozenset()  #: NUMA nodes of that cpuset; empty: unchanged
    note: str = ""  #: for the log; empty: the container is not worth a line
    locality: str = ""  #: locality of its CPUs, one of `nearness.PLACEMENTS`


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

    `within` and `memory`: the CPUs and NUMA nodes that its pod may use, None if unknown. `runs`:
    the container is running. Raises AffinityError if no plan can be made: for a GPU that this node
    does not have, or if no CPU is allowed.
    """
    word = config.least_switch(
        node.switch,
        choices.switch,
        config.read_switch_or_off(container.environment.get(config.SWITCH, "")),
    )
    if word == config.OFF:
        return Adjustment("off")
    # Another program has set this cpuset: kubelet's static policy sets that of every container.
    is_taken = bool(container.cpus)
    cpuset = parse_list(container.cpus)
    usable = within
    if is_taken:
        usable = cpuset if within is None else cpuset & within
    reply = _planned(node, pod, container, choices.options, granted=granted, within=usable)
    if any(rank.locality == UNKNOWN for rank in reply.ranks):
        note = "its CPUs stay, since the NUMA node of a GPU is not known"
        return Adjustment("unplaced", note=note, locality=UNKNOWN)
    before = usable or node.topology.online
    gpus = [rank.gpu for rank in reply.ranks]
    place = placement(node.topology, vicinity(node.topology, gpus), before)
    where = f"CPUs {format_list(reply.cpus)} ({reply.locality})"
    if word == config.OBSERVE:
        note = f"observe: would run on {where}"
        environment = _unset(container, {"AFFINITYD_UNPINNED": note})
        return Adjustment("observed", environment, note=note, locality=place)
    keeps = not container.asked and rules.without_request == "keep"
    is_enough = len(reply.cpus) >= min(container.asked or pod.asked, len(reply.allowed))
    pins = is_enough and not is_taken and not keeps and within is not None
    if pins and runs and not _lists_gpus(container, len({gpu.key for gpu in gpus})):
        note = "its CPUs stay until it starts again: its spec lists no device file of its GPU"
        return Adjustment("left", note=note, locality=place)
    environment = _facts(node, container, reply, reply.cpus if pins else before)
    environment |= _nics(container, reply, choices.nics, rules)
    folder = _folder(pod, container, rules)
    if not pins:
        return Adjustment(
            "kept",
            _unset(container, environment),
            folder=folder,
            note=f"its CPUs stay ({place})",
            locality=place,
        )
    cpus = format_list(reply.cpus)
    environment["AFFINITYD_CPULIST"] = cpus
    environment["AFFINITYD_ALLOWED"] = cpus
    environment["AFFINITYD_LOCALITY"] = reply.locality
    memory_nodes = _memory_nodes(node, gpus)
    is_bound = choices.binds_memory and not container.memory_nodes
    if not is_bound or not memory_nodes <= (memory or set()):
        memory_nodes = frozenset()
    return Adjustment(
        "pinned",
        _unset(container, environment),
        folder=folder,
        cpus=reply.cpus,
        memory_nodes=memory_nodes,
        note=f"{where}, of {len(before)}",
        locality=reply.locality,
    )


def _memory_nodes(node: Node, gpus: Iterable[Gpu]) -> CpuSet:
    """Return the near NUMA nodes from which programs on the GPUs' near CPUs take memory."""
    nodes = set()
    for gpu in gpus:
        for near in near_nodes(node.topology, gpu):
            nodes.add(node.topology.memory_node(near))
    return frozenset(number for number in nodes if number is not None)


def _planned(
    node: Node,
    pod: Pod,
    container: Container,
    options: Options,
    *,
    granted: str,
    within: CpuSet | None,
) -> Reply:
    """Return a container's plan: all CPUs near its GPUs, and far CPUs if it asked for more.

    It also gets far CPUs if the near CPUs are too few for all containers with GPUs there. Without a
    request, a container counts as if it had asked for its GPUs' part of the node's CPUs, or for
    all that its pod asked for.
    """
    task = Task(granted=granted, nvidia_visible=listed(container), cpuset=within)
    ranks = gpus_seen(node.topology, task).by_index.values()
    gpus = len({rank.gpu.key for rank in ranks})
    if not gpus:
        return answer(node, Request(task, options=replace(options, cpus=None)))
    near = {near_nodes(node.topology, rank.gpu) for rank in ranks}
    # The containers of the other GPUs on these nodes may have requested as much for each GPU.
    others = sum(near_nodes(node.topology, gpu) in near for gpu in node.topology.gpus)
    together = -(-container.shares * others // (CPU_SHARES * gpus))  # rounded up
    cpus = container.asked
    if not cpus:
        cpus = pod.asked
        if options.mode == "node":  # other modes divide the node's CPUs
            part = -(-len(node.usable) * gpus // len(node.topology.gpus))
            cpus = max(part, cpus)
    each = -(-max(cpus, together) // len(ranks))
    return answer(node, Request(task, options=replace(options, cpus=each or None)))


def _unset(container: Container, environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name not in container.environment}


def _facts(node: Node, container: Container, reply: Reply, cpus: CpuSet) -> dict[str, str]:
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
    """Return NIC variables for a container of one rank: they name devices that it can open."""
    files = {path.removeprefix("/dev/infiniband/") for path in container.devices}
    ports = []
    for port in reply.rdma:
        device = port.partition(":")[0]
        if not files.isdisjoint(rules.verbs(device)):
            ports.append(port)
    try:
        libraries = nic_libraries(container.environment.get(NICS, nics) or "none")
    except InvalidRequestError:
        return {}
    if len(reply.ranks) != 1 or not ports or not libraries:
        return {}
    variables = {"AFFINITYD_RDMA": ",".join(ports)}
    for library in libraries:
        variables[NIC_VARIABLES[library]] = nic_value(library, ports)
    return variables


def _folder(pod: Pod, container: Container, rules: Rules) -> str | None:
    """Return the socket's folder, if the namespace is listed and nothing else is mounted there."""
    if not rules.of_namespace(pod.namespace):
        return None
    for path in container.mounts:
        if _overlap(MOUNT_POINT, path.rstrip("/")):
            return None
    return rules.folder


def _overlap(folder: str, other: str) -> bool:
    return f"{folder}/".startswith(f"{other}/") or f"{other}/".startswith(f"{folder}/")
