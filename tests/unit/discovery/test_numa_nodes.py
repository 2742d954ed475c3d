from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import format_list
from affinityd.discovery import discover
from affinityd.topology.model import Topology
from tests.support.machines.sysfs_tree import tree_of

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

Files = dict[str, object]


def read(tmp_path: Path, files: Files) -> Topology:
    return discover(tree_of(tmp_path, {f"{CPU}/online": "0-3", **files}), None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, {None: "0-3"}, id="no node folder: one node without a number"),
        pytest.param(
            {f"{NODE}/node0/cpulist": "0-1", f"{NODE}/node8/cpulist": "2-3"},
            {0: "0-1", 8: "2-3"},
            id="sparse numbers",
        ),
        pytest.param(
            {f"{NODE}/node0/cpulist": "0-87", f"{NODE}/node1/cpulist": "88-175"},
            {0: "0-3", 1: ""},
            id="a list may name offline CPUs: online decides",
        ),
        pytest.param(
            {f"{NODE}/node0/cpulist": "0-3", f"{NODE}/node1/cpulist": "0-3"},
            {0: "0-3", 1: ""},
            id="a CPU that several nodes list is the lowest one's",
        ),
        pytest.param(
            {f"{NODE}/node1/cpulist": "1,3"},
            {1: "1,3", None: "0,2"},
            id="CPUs that no node lists come last",
        ),
        pytest.param(
            {
                f"{NODE}/node0/cpulist": "0-3\0",
                f"{NODE}/node1/cpulist": "",
                f"{NODE}/online": "0-1\0",
            },
            {0: "0-3", 1: ""},
            id="a list with a NUL, and an empty one",
        ),
        pytest.param(
            {f"{NODE}/node0/cpumap": "00000000,00000003", f"{NODE}/node1/cpumap": "c"},
            {0: "0-1", 1: "2-3"},
            id="an old kernel has the CPUs as a mask only",
        ),
        pytest.param(
            {
                f"{NODE}/node10/cpulist": "0-1",
                f"{NODE}/node9/cpulist": "2-3",
                f"{NODE}/power/x": "",
            },
            {9: "2-3", 10: "0-1"},
            id="nodes are ordered as numbers",
        ),
        pytest.param(
            {
                f"{CPU}/cpu0/topology/thread_siblings_list": "0,3",
                f"{NODE}/node0/cpulist": "0-1",
                f"{NODE}/node1/cpulist": "2-3",
            },
            {0: "0-1,3", 1: "2"},
            id="a core is on its first CPU's node, whole",
        ),
    ],
)
def test_nodes_and_their_cpus(
    tmp_path: Path, files: Files, expected: dict[int | None, str]
) -> None:
    topology = read(tmp_path, files)
    nodes = {
        node.number: format_list(topology.cpus_of_node(node.number)) for node in topology.nodes
    }
    assert nodes == expected
    assert list(nodes) == list(expected)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {f"{NODE}/node0/distance": "10 21", f"{NODE}/node8/distance": "21 10"},
            {0: {0: 10, 8: 21}, 8: {0: 21, 8: 10}},
            id="without node/online, the columns are the nodes that exist",
        ),
        pytest.param(
            {f"{NODE}/online": "8,0-1", f"{NODE}/node8/distance": "21 31 10"},
            {8: {0: 21, 1: 31, 8: 10}},
            id="the columns are those of node/online, ascending",
        ),
        pytest.param(
            {f"{NODE}/node0/distance": "10", f"{NODE}/node1/cpulist": ""},
            {0: {0: 10}, 1: {}},
            id="a row may be too short, or missing",
        ),
        pytest.param(
            {f"{NODE}/online": "1", f"{NODE}/node1/distance": "21 10"},
            {1: {1: 21}},
            id="a row may be too long",
        ),
        pytest.param(
            {f"{NODE}/online": "?", f"{NODE}/node0/distance": "x 20", f"{NODE}/node1/cpulist": ""},
            {0: {1: 20}, 1: {}},
            id="what is no number is missing",
        ),
    ],
)
def test_distances(tmp_path: Path, files: Files, expected: dict[int, dict[int, int]]) -> None:
    topology = read(tmp_path, {**files})
    rows = {node.number: node.distances for node in topology.nodes if node.number is not None}
    assert rows == expected


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("Node 0 MemTotal:       16772456 kB\nNode 0 MemFree:  1 kB", 16772456 * 1024),
        ("Node 0 MemTotal:              0 kB", 0),
        ("Node 0 MemFree:  1 kB", None),
        ("", None),
    ],
    ids=["a node with memory", "a node without", "a file without the line", "an empty file"],
)
def test_memory_is_in_bytes(tmp_path: Path, text: str, memory: int | None) -> None:
    topology = read(tmp_path, {f"{NODE}/node0/cpulist": "0-3", f"{NODE}/node0/meminfo": text})
    assert topology.node_of[0].memory_bytes == memory


def test_what_is_odd_about_the_nodes_is_said(tmp_path: Path) -> None:
    assert (
        "The kernel shows no NUMA nodes: all CPUs are taken as one"
        in read(tmp_path / "none", {}).notices
    )
    assert (
        "CPUs 0,2 are in no NUMA node: taken as one, farthest from all"
        in read(tmp_path / "some", {f"{NODE}/node1/cpulist": "1,3"}).notices
    )
