"""NUMA nodes: /sys/devices/system/node, and which CPU belongs to which.

Source: kernel `Documentation/ABI/stable/sysfs-devices-node`.
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import CpuSet, parse_list
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import number, numbered, read_cpus, read_fields
from affinityd.topology.model import NumaNode

NODES = "sys/devices/system/node"


def read_nodes(tree: Tree) -> tuple[NumaNode, ...]:
    """Read every node that exists, with CPUs or without, ascending."""
    existing = numbered(tree, NODES, "node")
    columns = _columns(tree) or existing
    return tuple(
        NumaNode(node, _memory_bytes(tree, node), _distances(tree, node, columns))
        for node in existing
    )


def read_node_of_cpu(tree: Tree, nodes: tuple[NumaNode, ...], online: CpuSet) -> Mapping[int, int]:
    """Return CPU → its node, the lowest that lists it; a CPU that no node lists is missing."""
    node_of_cpu: dict[int, int] = {}
    for node in nodes:
        folder = f"{NODES}/node{node.number}"
        cpus = read_cpus(tree, f"{folder}/cpulist", f"{folder}/cpumap") or frozenset()
        for cpu in cpus & online:
            if node.number is not None:
                node_of_cpu.setdefault(cpu, node.number)
    return node_of_cpu


def _columns(tree: Tree) -> tuple[int, ...]:
    """Return the node of each column in `nodeN/distance`: those of `node/online`, ascending."""
    try:
        return tuple(sorted(parse_list(tree.read(f"{NODES}/online") or "")))
    except ValueError:
        return ()


def _distances(tree: Tree, node: int, columns: tuple[int, ...]) -> Mapping[int, int]:
    """Read `nodeN/distance`; a row may be shorter or longer than the nodes that exist."""
    row = (tree.read(f"{NODES}/node{node}/distance") or "").split()
    values = ((column, number(text)) for column, text in zip(columns, row, strict=False))
    return {column: value for column, value in values if value is not None}


def _memory_bytes(tree: Tree, node: int) -> int | None:
    """Read `nodeN/meminfo`, whose lines are like `Node 0 MemTotal:  16772456 kB`."""
    name = f"Node {node} MemTotal"
    text = read_fields(tree, f"{NODES}/node{node}/meminfo", name).get(name, "")
    kilobytes = number(text.removesuffix("kB").strip())
    return None if kilobytes is None else kilobytes * 1024
