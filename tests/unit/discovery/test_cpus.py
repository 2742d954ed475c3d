from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import format_list
from affinityd.discovery import discover
from affinityd.errors import TreeError
from affinityd.topology.model import Topology
from tests.support.machines.sysfs_tree import tree_of

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

Files = dict[str, object]


def read(tmp_path: Path, files: Files) -> Topology:
    return discover(tree_of(tmp_path, files), None)


def cores(topology: Topology) -> list[str]:
    return [format_list(core.cpus) for core in topology.cores]


def siblings(cpu: int, cpus: str) -> Files:
    return {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": cpus}


def cache(cpu: int, index: int, level: int, kind: str, cpus: str) -> Files:
    folder = f"{CPU}/cpu{cpu}/cache/index{index}"
    return {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/shared_cpu_list": cpus}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({f"{CPU}/online": "0-2"}, ["0", "1", "2"], id="CPUs of no topology are cores"),
        pytest.param(
            {f"{CPU}/online": "0-3", **siblings(0, "0,2"), **siblings(1, "1,3")},
            ["0,2", "1,3"],
            id="CPUs that share thread_siblings_list are a core",
        ),
        pytest.param(
            {f"{CPU}/online": "0-1,3", **siblings(0, "0,2"), **siblings(1, "1,3")},
            ["0", "1,3"],
            id="a core with a thread offline keeps the other",
        ),
        pytest.param(
            {
                f"{CPU}/online": "0-1,32",
                f"{CPU}/cpu0/topology/thread_siblings": "00000001,00000001",
            },
            ["0,32", "1"],
            id="an old kernel has the siblings as a mask only",
        ),
        pytest.param(
            {f"{CPU}/online": "0-1", **siblings(0, "what?"), **siblings(1, "1")},
            ["0", "1"],
            id="siblings that cannot be read leave the CPU alone",
        ),
        pytest.param(
            {f"{CPU}/online": "0-2", **siblings(0, "0-1"), **siblings(2, "1-2")},
            ["0-1", "2"],
            id="a CPU that two cores claim is the first one's",
        ),
        pytest.param(
            {
                **siblings(0, "0"),
                **siblings(1, "1"),
                **siblings(2, "2"),
                f"{CPU}/cpu0/online": 1,
                f"{CPU}/cpu1/online": 0,
                f"{CPU}/cpu3/online": 1,
            },
            ["0", "2"],
            id="without cpu/online, CPUs with a topology that are not off are online",
        ),
    ],
)
def test_cores(tmp_path: Path, files: Files, expected: list[str]) -> None:
    assert cores(read(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({f"{CPU}/possible": "0-7", f"{CPU}/present": "0-3"}, "0-7", id="cpu/possible"),
        pytest.param({f"{CPU}/present": "0-3"}, "0-3", id="else cpu/present"),
        pytest.param({f"{CPU}/cpu5/online": "0"}, "0-1,5", id="else the folders, and the online"),
        pytest.param({f"{CPU}/possible": "0"}, "0-1", id="an online CPU is possible"),
    ],
)
def test_possible_cpus(tmp_path: Path, files: Files, expected: str) -> None:
    assert format_list(read(tmp_path, {f"{CPU}/online": "0-1", **files}).possible) == expected


def test_package_and_die_are_read_and_minus_one_is_none(tmp_path: Path) -> None:
    topology = read(
        tmp_path,
        {
            f"{CPU}/online": "0-1",
            f"{CPU}/cpu0/topology/physical_package_id": 8,
            f"{CPU}/cpu0/topology/die_id": 1,
            f"{CPU}/cpu1/topology/physical_package_id": -1,
        },
    )
    assert [(core.package, core.die) for core in topology.cores] == [(8, 1), (None, None)]


def package(cpu: int, number: int) -> Files:
    return {f"{CPU}/cpu{cpu}/topology/physical_package_id": number}


@pytest.mark.parametrize(
    ("files", "llc"),
    [
        pytest.param(
            {**cache(0, 2, 2, "Unified", "0-1"), **cache(2, 2, 2, "Unified", "2-3")},
            [0, 0, 2, 2],
            id="CPUs that share the cache are a group",
        ),
        pytest.param(
            {
                **cache(0, 3, 3, "Unified", "0-3"),
                **cache(0, 0, 1, "Data", "0"),
                **cache(0, 10, 2, "Unified", "0-1"),
            },
            [0, 0, 0, 0],
            id="the highest level counts, wherever it stands",
        ),
        pytest.param(
            {
                **cache(0, 0, 1, "Data", "0-1"),
                **cache(0, 1, 1, "Instruction", "0-3"),
                **cache(2, 0, 1, "Data", "2-3"),
                **cache(2, 1, 1, "Instruction", "0-3"),
            },
            [0, 0, 2, 2],
            id="an Instruction cache does not count",
        ),
        pytest.param(
            {
                f"{CPU}/cpu{cpu}/cache/index0/{name}": text
                for cpu, mask in ((0, "3"), (2, "c"))
                for name, text in (("level", 2), ("type", "Unified"), ("shared_cpu_map", mask))
            },
            [0, 0, 2, 2],
            id="an old kernel has the sharers as a mask only",
        ),
        pytest.param(
            {
                **cache(0, 3, 3, "Unified", "0-3"),
                f"{NODE}/node0/cpulist": "0,2",
                f"{NODE}/node1/cpulist": "1,3",
            },
            [0, 1, 0, 1],
            id="a cache that is wider than a NUMA node makes a group in each",
        ),
        pytest.param(
            {**package(0, 0), **package(1, 0), **package(2, 1), **package(3, 1)},
            [0, 0, 2, 2],
            id="without caches, a node's CPUs of one package are a group",
        ),
        pytest.param(
            {f"{NODE}/node0/cpulist": "0,3", f"{NODE}/node1/cpulist": "1-2"},
            [0, 1, 1, 0],
            id="without caches and packages, a node's CPUs are a group",
        ),
        pytest.param(
            {**cache(0, 0, 2, "Unified", "0-3"), f"{CPU}/online": "1-3"},
            [1, 1, 1],
            id="a group goes by its lowest CPU that is online",
        ),
        pytest.param(
            {**cache(0, 0, 3, "Unified", "0-1"), **cache(2, 0, 2, "Unified", "2")},
            [0, 0, 2, 3],
            id="cores without the highest level have their own highest",
        ),
    ],
)
def test_llc_groups(tmp_path: Path, files: Files, llc: list[int]) -> None:
    topology = read(tmp_path, {f"{CPU}/online": "0-3", **files})
    assert [core.llc for core in topology.cores] == llc


def test_a_machine_without_an_online_cpu_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match=r"has no online CPU in sys/devices/system/cpu$"):
        read(tmp_path, {f"{CPU}/possible": "0-3"})


@pytest.mark.parametrize("number", [65536, 10**19, 10**20 - 1])
def test_a_folder_of_a_cpu_that_no_kernel_has_is_passed_over(tmp_path: Path, number: int) -> None:
    folders: Files = {f"{CPU}/cpu{it}/topology/core_id": 0 for it in (0, 65535, number)}
    topology = read(tmp_path, folders)
    assert topology.online == topology.possible == {0, 65535}


@pytest.mark.parametrize(("text", "package"), [(2**64 - 1, 2**64 - 1), (2**64, None)])
def test_a_number_of_more_than_64_bits_is_none(
    tmp_path: Path, text: int, package: int | None
) -> None:
    files = {f"{CPU}/online": "0", f"{CPU}/cpu0/topology/physical_package_id": text}
    assert [core.package for core in read(tmp_path, files).cores] == [package]
