"""A Topology as plain data for JSON, and back: for /topology, `topology --format json`, node.json.

CPU sets are cpulists. What follows from the rest (online, packages, a node's cpulist, a NIC's
nearness) is there for readers; `from_dict` does not look at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from affinityd.cpuset import CpuSet, format_list
from affinityd.json_reader import JsonValue
from affinityd.topology.model import Core, Gpu, MigInstance, Nic, NumaNode, Topology


def to_dict(topology: Topology) -> dict[str, Any]:
    """Return the topology as dicts, lists, strings, numbers and None."""
    packages = {core.package for core in topology.cores if core.package is not None}
    return {
        "name": topology.name,
        "online": format_list(topology.online),
        "possible": format_list(topology.possible),
        "packages": [
            {"number": number, "cpulist": format_list(_cpus_of_package(topology, number))}
            for number in sorted(packages)
        ],
        "nodes": [_from_node(topology, node) for node in topology.nodes],
        "cores": [_from_core(core) for core in topology.cores],
        "gpus": [_from_gpu(gpu) for gpu in topology.gpus],
        "nics": [_from_nic(topology, nic) for nic in topology.nics],
        "notices": list(topology.notices),
    }


def from_dict(data: object) -> Topology:
    """Return the topology that `to_dict` wrote.

    Raises ValueError, one line that names the field, for what is no topology.
    """
    whole = JsonValue(data, "topology")
    nodes = whole["nodes"].each(_to_node)
    cores = whole["cores"].each(_to_core)
    known = {node.number for node in nodes}
    for core in cores:
        if core.node not in known:
            raise ValueError(
                f"topology.nodes has no number {core.node}, which CPU {core.cpus[0]} is on"
            )
    return Topology(
        name=whole["name"].text(),
        cores=cores,
        nodes=nodes,
        gpus=whole["gpus"].each(_to_gpu),
        nics=whole["nics"].each(_to_nic),
        possible=whole["possible"].cpus(),
        notices=whole["notices"].each(JsonValue.text),
    )


def _cpus_of_package(topology: Topology, number: int) -> CpuSet:
    return frozenset(c for core in topology.cores if core.package == number for c in core.cpus)


def _from_node(topology: Topology, node: NumaNode) -> dict[str, Any]:
    return {
        "number": node.number,
        "cpulist": format_list(topology.cpus_of_node(node.number)),
        "memory_bytes": node.memory_bytes,
        "distances": {str(number): distance for number, distance in node.distances.items()},
    }


def _to_node(value: JsonValue) -> NumaNode:
    return NumaNode(
        number=value["number"].maybe(JsonValue.number),
        memory_bytes=value["memory_bytes"].maybe(JsonValue.number),
        distances=dict(value["distances"].by_number(JsonValue.number)),
    )


def _from_core(core: Core) -> dict[str, Any]:
    return {
        "cpulist": format_list(core.cpus),
        "numa_node": core.node,
        "package": core.package,
        "die": core.die,
        "llc": core.llc,
    }


def _to_core(value: JsonValue) -> Core:
    cpus = tuple(sorted(value["cpulist"].cpus()))
    if not cpus:
        raise ValueError(f"{value.where}.cpulist is empty; a core has at least one CPU")
    return Core(
        cpus=cpus,
        node=value["numa_node"].maybe(JsonValue.number),
        package=value["package"].maybe(JsonValue.number),
        die=value["die"].maybe(JsonValue.number),
        llc=value["llc"].number(),
    )


def _from_gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "vendor": gpu.vendor,
        "pci_bus_id": gpu.pci_bus_id,
        "numa_node": gpu.numa_node,
        "numa_source": gpu.numa_source,
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "render_minor": gpu.render_minor,
        "model": gpu.model,
        "pci_id": gpu.pci_id,
        "pci_path": list(gpu.pci_path),
        "mig": [{"uuid": instance.uuid} for instance in gpu.mig],
        "nvlinks": None if gpu.nvlinks is None else _from_nvlinks(gpu.nvlinks),
    }


def _to_gpu(value: JsonValue) -> Gpu:
    return Gpu(
        index=value["index"].number(),
        vendor=value["vendor"].text(),
        pci_bus_id=value["pci_bus_id"].text(),
        numa_node=value["numa_node"].maybe(JsonValue.number),
        numa_source=value["numa_source"].maybe(JsonValue.text),
        uuid=value["uuid"].maybe(JsonValue.text),
        minor=value["minor"].maybe(JsonValue.number),
        render_minor=value["render_minor"].maybe(JsonValue.number),
        model=value["model"].maybe(JsonValue.text),
        pci_id=value["pci_id"].maybe(JsonValue.text),
        pci_path=value["pci_path"].each(JsonValue.text),
        mig=value["mig"].each(lambda instance: MigInstance(instance["uuid"].text())),
        nvlinks=_to_nvlinks(value),
    )


def _from_nvlinks(nvlinks: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"pci_bus_id": end, "links": links} for end, links in nvlinks.items()]


def _to_nvlinks(gpu: JsonValue) -> Mapping[str, int] | None:
    """Return None also for a file that was written before GPUs had the field."""
    if not isinstance(gpu.value, dict) or gpu.value.get("nvlinks") is None:
        return None
    return dict(gpu["nvlinks"].each(lambda it: (it["pci_bus_id"].text(), it["links"].number())))


def _from_nic(topology: Topology, nic: Nic) -> dict[str, Any]:
    return {
        "pci_bus_id": nic.pci_bus_id,
        "numa_node": nic.numa_node,
        "kind": nic.kind,
        "names": list(nic.names),
        "pci_path": list(nic.pci_path),
        "nearness": {gpu.pci_bus_id: topology.nearness(gpu, nic) for gpu in topology.gpus},
    }


def _to_nic(value: JsonValue) -> Nic:
    return Nic(
        pci_bus_id=value["pci_bus_id"].text(),
        numa_node=value["numa_node"].maybe(JsonValue.number),
        kind=value["kind"].text(),
        names=value["names"].each(JsonValue.text),
        pci_path=value["pci_path"].each(JsonValue.text),
    )
