"""Built-in machines as compact facts: real plans without a GPU at hand.

One JSON file a machine:

    name, source    its name, and where the facts are published
    cores, threads  how many cores, and how many CPUs each has
    siblings        "split": core c has the CPUs c, c + cores …; "adjacent": c * threads and on
    online          cpulist; absent: every CPU
    packages        package number: cpulist
    nodes           groups of NUMA nodes: nodes (list of numbers), cpus (cpulist; absent: none),
                    memory_mib (null: unknown)
    cores_per_llc   how many adjacent cores share a last-level cache; null: a package's, in a node
    distances       [nodes, nodes, SLIT distance] both ways, a later line overrides an earlier one
    gpus, nics      groups: what their devices share, and devices, each with pci, node (null:
                    unknown), minor (of an NVIDIA GPU's device file; absent: unknown), names (a
                    NIC's interfaces) and path (its bridges, host bridge first; a bridge without
                    a published address has a plain name). A vendor's GPUs are numbered in PCI bus
                    order. A NIC with gbps (and link_layer; absent: not said) is an RDMA device;
                    its first name is the device's, its second one the network interface's
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import TreeError
from affinityd.topology.model import Core, Gpu, Nic, NumaNode, RdmaPort, Topology

NAMES = (
    "dgx-a100",
    "dgx-h100",
    "p4d-24xlarge",
    "mi250x",
    "ascend-910b",
    "gh200x4",
    "gb200",
    "gb200-cdmm",
)
BUSY = "dgx-a100-busy"  #: dgx-a100 with recorded processes, for a demonstration


def load(name: str) -> Topology:
    """Return a built-in machine, or the machine of NAME.json. Raises TreeError for another name."""
    if name.endswith(".json"):
        return _read(name)
    if name == BUSY:
        facts = _facts(name)
        return build({**_facts(facts["machine"]), "name": name})
    if name not in NAMES:
        raise TreeError(
            f"no machine is named {name!r}; there are {', '.join(NAMES)}, {BUSY}, or name a file "
            "of such facts, FILE.json"
        )
    return build(_facts(name))


def recorded(name: str) -> Sequence[Mapping[str, Any]]:
    """Return the recorded processes of a machine; only BUSY has some.

    Each has a pid; a parent, or a GPU (index and memory); a name, user, job or pod, masks, how many
    CPUs it keeps busy, waits (waited, throttled) and memory by node. A process that
    only the driver lists has no more than its GPU's memory.
    """
    processes: Sequence[Mapping[str, Any]] = _facts(name)["processes"] if name == BUSY else ()
    return processes


def _facts(name: str) -> dict[str, Any]:
    from importlib.resources import files  # noqa: PLC0415 - it is slow, and few replay a machine

    facts: dict[str, Any] = json.loads(
        (files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    )
    return facts


def _read(path: str) -> Topology:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return build(json.load(file))
    except OSError as error:
        raise TreeError(f"{path!r} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise TreeError(f"{path!r} has no facts of a machine: {error!r}") from None


def build(facts: Mapping[str, Any]) -> Topology:
    """Return the machine that the facts describe. Raises KeyError or ValueError for wrong facts."""
    every_cpu = frozenset(range(facts["cores"] * facts["threads"]))
    cores = tuple(sorted(_cores(facts, every_cpu), key=lambda core: core.cpus))
    return Topology(
        name=facts["name"],
        cores=cores,
        nodes=tuple(_nodes(facts, cores)),
        gpus=tuple(_gpus(facts.get("gpus", ()))),
        nics=tuple(_nics(facts.get("nics", ()))),
        possible=every_cpu,
    )


def _cores(facts: Mapping[str, Any], every_cpu: CpuSet) -> Iterator[Core]:
    node_of = _owner((group["nodes"], group.get("cpus", "")) for group in facts["nodes"])
    package_of = _owner(facts["packages"].items())
    online = parse_list(facts["online"]) if "online" in facts else every_cpu
    cores = facts["cores"]
    threads = facts["threads"]
    is_split = facts.get("siblings", "split") == "split"
    places: dict[tuple[int | None, int | None], list[tuple[int, ...]]] = {}
    for core in range(cores):
        if is_split:
            first = core
            step = cores
        else:
            first = core * threads
            step = 1
        cpus = tuple(range(first, first + threads * step, step))
        places.setdefault((node_of.get(first), package_of.get(first)), []).append(cpus)
    for (node, package), together in places.items():
        size = facts["cores_per_llc"] or len(together)
        for start in range(0, len(together), size):
            running = []  # the cores of the current LLC group that have an online CPU
            for siblings in together[start : start + size]:
                cpus = tuple(cpu for cpu in siblings if cpu in online)
                if cpus:
                    running.append(cpus)
            for cpus in running:
                yield Core(cpus, node, package, None, llc=min(map(min, running)))


def _owner(lists: Iterable[tuple[str, str]]) -> dict[int, int]:
    owner: dict[int, int] = {}
    for number, cpulist in lists:
        for cpu in parse_list(cpulist):
            owner[cpu] = int(number)
    return owner


def _nodes(facts: Mapping[str, Any], cores: Iterable[Core]) -> Iterator[NumaNode]:
    memory: dict[int, int | None] = {}
    for group in facts["nodes"]:
        size = None
        if group["memory_mib"] is not None:
            size = group["memory_mib"] * 2**20
        memory.update(dict.fromkeys(parse_list(group["nodes"]), size))
    distances: dict[int, dict[int, int]] = {number: {} for number in memory}
    for left, right, distance in facts.get("distances", ()):
        for one in parse_list(left):
            for other in parse_list(right):
                distances[one][other] = distances[other][one] = distance
    for number in sorted(memory):
        row = {**distances[number], number: 10}  # to itself 10: ACPI 6.5, §5.2.17 SLIT
        yield NumaNode(number, memory[number], dict(sorted(row.items())))
    if any(core.node is None for core in cores):
        yield NumaNode(None)


def _devices(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return devices with their group's fields, in PCI bus order; a path ends with its device."""
    devices = []
    for group in groups:
        for facts in group["devices"]:
            device = {**group, **facts}
            path = device.get("path")
            device["path"] = (*path.split("/"), device["pci"]) if path else ()
            devices.append(device)
    return sorted(devices, key=lambda device: str(device["pci"]))


def _gpus(groups: Sequence[Mapping[str, Any]]) -> Iterator[Gpu]:
    vendors = [group["vendor"] for group in groups]
    seen: Counter[str] = Counter()
    for device in sorted(_devices(groups), key=lambda device: vendors.index(device["vendor"])):
        vendor = device["vendor"]
        yield Gpu(
            index=seen[vendor],
            vendor=vendor,
            pci_bus_id=device["pci"],
            numa_node=device["node"],
            minor=device.get("minor"),
            model=device.get("model"),
            pci_id=device.get("pci_id"),
            pci_path=device["path"],
        )
        seen[vendor] += 1


def _nics(groups: Iterable[Mapping[str, Any]]) -> Iterator[Nic]:
    for device in _devices(groups):
        names = tuple(device.get("names", ()))
        ports = []
        if "gbps" in device:
            netdev = names[1] if len(names) > 1 else None
            layer = device.get("link_layer")
            ports.append(RdmaPort(names[0], 1, True, device["gbps"], layer, netdev))  # noqa: FBT003
        yield Nic(
            device["pci"], device["node"], device["kind"], names, device["path"], tuple(ports)
        )
