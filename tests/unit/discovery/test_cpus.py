"""CPUs, cores, caches and NUMA nodes, as kernels of any age show them."""

from pathlib import Path

import pytest

from affinityd.cpuset import format_list
from affinityd.discovery import discover
from affinityd.errors import TreeError
from affinityd.topology.document import from_document, to_document
from affinityd.topology.model import Topology
from tests.support.machines.sysfs_tree import files_of, tree_of
from tests.support.tables import rows

SYSTEM = "sys/devices/system"


def read(tmp_path: Path, files: str) -> Topology:
    """Read a machine with these files below the folders of CPUs and nodes."""
    return discover(tree_of(tmp_path, files_of(SYSTEM, files)), None)


def cpus(text: str) -> str:
    """Put the folder of CPUs, `cpu/`, before each of these paths."""
    return "; ".join(f"cpu/{path.strip()}" for path in text.split(";"))


T = "topology/thread_siblings"


@pytest.mark.parametrize(
    ("files", "expected"),
    rows(f"""
    CPUs of no topology are cores | online=0-2 | 0 1 2
    CPUs that share a core | online=0-3; cpu0/{T}_list=0,2; cpu1/{T}_list=1,3 | 0,2 1,3
    one thread is offline | online=0-1,3; cpu0/{T}_list=0,2; cpu1/{T}_list=1,3 | 0 1,3
    an old kernel has a mask only | online=0-1,32; cpu0/{T}=00000001,00000001 | 0,32 1
    a CPU whose list cannot be read is a core | online=0-1; cpu0/{T}_list=what? | 0 1
    two claims on a CPU: the first counts | online=0-2; cpu0/{T}_list=0-1; cpu2/{T}_list=1-2 | 0-1 2
    no cpu/online: CPUs with topology | cpu0/{T}=1; cpu2/{T}=4; cpu0/online=1; cpu3/online=1 | 0 2
    no cpu/online: a CPU that is off | cpu0/{T}=1; cpu1/{T}=2; cpu1/online=0 | 0
    """),
)
def test_cores_are_read_from_sibling_lists(tmp_path: Path, files: str, expected: str) -> None:
    cores = [format_list(core.cpus) for core in read(tmp_path, cpus(files)).cores]
    assert cores == expected.split()


@pytest.mark.parametrize(
    ("files", "slow"),
    rows("""
    cores of one kind     | devices/system/cpu/online=0-3 |
    efficient cores       | devices/system/cpu/online=0-3; devices/cpu_atom/cpus=2-5 | 2-3
    less capacity    | devices/system/cpu/online=0-2; devices/system/cpu/cpu0/cpu_capacity=446; \
devices/system/cpu/cpu1/cpu_capacity=1024; devices/system/cpu/cpu2/cpu_capacity=446 | 0,2
    the same capacity     | devices/system/cpu/online=0-1; \
devices/system/cpu/cpu0/cpu_capacity=1024; devices/system/cpu/cpu1/cpu_capacity=1024 |
    """),
)
def test_cores_of_a_slower_kind_are_known(tmp_path: Path, files: str, slow: str) -> None:
    topology = discover(tree_of(tmp_path, files_of("sys", files)), None)
    assert format_list(topology.slow) == slow
    assert from_document(to_document(topology)) == topology


P = "topology/physical_package_id"

#: Caches as `CPU/INDEX LEVEL KIND SHARERS`; the sharers are a list or a mask.
CACHES = {
    "D01": "0/0 1 Data 0-1",
    "D23": "2/0 1 Data 2-3",
    "I": "0/1 1 Instruction 0-3",
    "L01": "0/2 2 Unified 0-1",
    "L23": "2/2 2 Unified 2-3",
    "L2": "2/10 2 Unified 2",
    "LLC": "0/3 3 Unified 0-3",
    "LLC01": "0/3 3 Unified 0-1",
    "M01": "0/0 2 Unified map=3",
    "M23": "2/0 2 Unified map=c",
}


def cache(place: str, level: str, kind: str, sharers: str) -> str:
    cpu, index = place.split("/")
    folder = f"cpu/cpu{cpu}/cache/index{index}"
    shared = sharers if "=" in sharers else f"list={sharers}"
    return f"{folder}/level={level}; {folder}/type={kind}; {folder}/shared_cpu_{shared}"


@pytest.mark.parametrize(
    ("caches", "files", "llc"),
    rows(f"""
    CPUs that share the cache are a group | L01 L23 | | 0 0 2 2
    the highest level counts, wherever it stands | D01 LLC L2 | | 0 0 0 0
    an Instruction cache does not count | D01 D23 I | | 0 0 2 2
    an old kernel has the sharers as a mask only | M01 M23 | | 0 0 2 2
    a cache over nodes: two groups | LLC | node/node0/cpulist=0,2; node/node1/cpulist=1,3 | 0 1 0 1
    no caches: a package is a group | | cpu/cpu0/{P}=0; cpu/cpu1/{P}=0; cpu/cpu2/{P}=1 | 0 0 2 3
    no packages: a node is a group | | node/node0/cpulist=0,3; node/node1/cpulist=1-2 | 0 1 1 0
    a group has the number of its lowest online CPU | LLC | cpu/online=1-3 | 1 1 1
    cores without the highest level have their own highest | LLC01 L2 | | 0 0 2 3
    """),
)
def test_llc_groups_are_read_from_cache_files(
    tmp_path: Path, caches: str, files: str, llc: str
) -> None:
    its = (cache(*CACHES[name].split()) for name in caches.split())
    topology = read(tmp_path, "; ".join(("cpu/online=0-3", *its, files)))
    assert [core.llc for core in topology.cores] == [*map(int, llc.split())]


def test_a_machine_without_an_online_cpu_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match=r"has no online CPU in sys/devices/system/cpu$"):
        read(tmp_path, "cpu/possible=0-3")


def read_nodes(tmp_path: Path, files: str, siblings: str = "0") -> Topology:
    """Read a machine of four CPUs and these files below the folder of nodes."""
    cpu = files_of(f"{SYSTEM}/cpu", f"online=0-3; cpu0/topology/thread_siblings_list={siblings}")
    return discover(tree_of(tmp_path, {**cpu, **files_of(f"{SYSTEM}/node", files)}), None)


@pytest.mark.parametrize(
    ("files", "expected"),
    rows("""
    no node folder: one node without a number | | None:0-3
    sparse numbers | node0/cpulist=0-1; node8/cpulist=2-3 | 0:0-1 8:2-3
    offline CPUs do not count | node0/cpulist=0-87; node1/cpulist=88-175 | 0:0-3 1:
    if two nodes list a CPU, the lower has it | node0/cpulist=0-3; node1/cpulist=0-3 | 0:0-3 1:
    CPUs that no node lists come last | node1/cpulist=1,3 | 1:1,3 None:0,2
    NULs, and an empty list | node0/cpulist=0-3\0; node1/cpulist=; online=0-1\0 | 0:0-3 1:
    an old kernel has masks | node0/cpumap=00000000,00000003; node1/cpumap=c | 0:0-1 1:2-3
    a number above any kernel's | node0/cpulist=0-1; node1024/cpulist=2-3 | 0:0-1 None:2-3
    nodes are ordered as numbers | node10/cpulist=0-1; node9/cpulist=2-3; power/x= | 9:2-3 10:0-1
    """),
)
def test_nodes_have_their_cpus_and_memory(tmp_path: Path, files: str, expected: str) -> None:
    topology = read_nodes(tmp_path, files)
    numbers = [node.number for node in topology.nodes]
    nodes = (f"{number}:{format_list(topology.cpus_of_node(number))}" for number in numbers)
    assert [*nodes] == expected.split()
    named = [notice for notice in topology.notices if "treated as one" in notice]
    assert len(named) == (None in numbers)


NO_MORE = "node1/cpulist="


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Columns are the nodes of node/online, ascending; without this file, the existing nodes.
        ("node0/distance=10 21; node8/distance=21 10", {0: {0: 10, 8: 21}, 8: {0: 21, 8: 10}}),
        ("online=8,0-1; node8/distance=21 31 10", {8: {0: 21, 1: 31, 8: 10}}),
        # A row may be too short, or missing, or too long; a text that is no number is ignored.
        (f"node0/distance=10; {NO_MORE}", {0: {0: 10}, 1: {}}),
        ("online=1; node1/distance=21 10", {1: {1: 21}}),
        (f"online=?; node0/distance=x 20; {NO_MORE}", {0: {1: 20}, 1: {}}),
    ],
)
def test_distances_are_read_for_existing_nodes(
    tmp_path: Path, files: str, expected: dict[int, dict[int, int]]
) -> None:
    nodes = read_nodes(tmp_path, files).nodes
    assert {node.number: node.distances for node in nodes if node.number is not None} == expected
