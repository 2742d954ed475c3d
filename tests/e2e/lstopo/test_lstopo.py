"""affinityd and hwloc see the same machine in captured trees, in written trees, and here.

hwloc (Debian: hwloc-nox) is asked for every online CPU, even if a cgroup of the captured machine
forbids this CPU. Slurm's core numbers are hwloc's logical core numbers.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from affinityd.cpuset import CpuSet, parse_mask
from affinityd.discovery import discover, open_tree
from affinityd.slurm.cores import SlurmCores
from affinityd.topology.model import Topology
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.paths import REPOSITORY

LSTOPO = "lstopo-no-graphics"
#: Captured machines, if they exist beside the checkout.
CAPTURED = sorted(REPOSITORY.parent.glob("shared/machines/sysfs/*.tar.xz"))
ABSENT = pytest.mark.skip(reason="the captured machines are not beside the checkout")

#: A tree on which lstopo knows fewer NUMA nodes than affinityd → the nodes that lstopo lacks.
NODES_THAT_LSTOPO_LACKS = {
    # Eight nodes claim the same CPUs, and lstopo drops all but the first. The kernel has all,
    # and can bind memory to each: affinityd keeps the other seven, as nodes without CPUs.
    "8em64t-2s2ca2c-buggynuma": {1, 2, 3, 4, 5, 6, 7}
}

#: What slurmd has hwloc leave out: xcpuinfo.c (xcpuinfo_hwloc_topo_load).
LEFT_OUT = ("l1cache", "l2cache", "l4cache", "l5cache", "misc")
SLURMD = [word for kind in LEFT_OUT for word in ("--filter", f"{kind}:none")]


@dataclass(frozen=True)
class Machine:
    """The facts on which both tools must agree."""

    cores: frozenset[CpuSet]
    packages: frozenset[CpuSet]
    nodes: dict[int, CpuSet]
    llc_groups: frozenset[CpuSet]


def by_affinityd(topology: Topology) -> Machine:
    cores = topology.cores
    return Machine(
        cores=frozenset(frozenset(core.cpus) for core in cores),
        packages=_groups((core.package, cpu) for core in cores for cpu in core.cpus),
        nodes={
            node.number: topology.cpus_of_node(node.number)
            for node in topology.nodes
            if node.number is not None
        },
        llc_groups=_groups((core.llc, cpu) for core in cores for cpu in core.cpus),
    )


def by_lstopo(environment: dict[str, str]) -> Machine:
    # Without the variable, hwloc hides the nodes that are the memory of NVIDIA's GPUs.
    root = lstopo({**environment, "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1"})
    nodes = _owned({int(n.attrib["os_index"]): _cpus(n) for n in _objects(root, "NUMANode")})
    astray = _cpus(next(_objects(root, "Machine"))).difference(*nodes.values())
    parts, caches = [*nodes.values(), astray], set(_caches(root))
    return Machine(
        cores=frozenset(map(_cpus, _objects(root, "Core"))),
        packages=frozenset(map(_cpus, _objects(root, "Package"))),
        nodes=nodes,
        llc_groups=frozenset(cache & part for cache in caches for part in parts if cache & part),
    )


def lstopo(environment: dict[str, str], *filters: str) -> ET.Element:
    command = [LSTOPO, "--of", "xml", "--no-io", "--disallowed", *filters]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return ET.fromstring(done.stdout)  # noqa: S314 - lstopo's own output


def unpacked(archive: Path, folder: Path) -> Path:
    subprocess.run(["tar", "xf", archive, "-C", folder], check=True)
    return next(folder.glob("*/*/sys")).parent


def written(name: str, folder: Path) -> Path:
    return write_tree(machine(name), folder / name)


TREES = [
    *(pytest.param(partial(unpacked, path), id=path.name.partition(".")[0]) for path in CAPTURED),
    *([] if CAPTURED else [pytest.param(None, id="captured", marks=ABSENT)]),
    *(pytest.param(partial(written, name), id=name) for name in ALL_NAMES),
]


@pytest.mark.parametrize("tree", TREES)
def test_a_machine_is_what_lstopo_sees_and_its_cores_have_slurms_numbers(
    tree: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = tree(tmp_path)
    ours = discover(open_tree(str(root)), None)
    lacking = NODES_THAT_LSTOPO_LACKS.get(ours.name, set())
    assert all(not ours.cpus_of_node(node) for node in lacking)
    seen = by_affinityd(ours)
    nodes = {number: cpus for number, cpus in seen.nodes.items() if number not in lacking}
    # With these variables lstopo reads only the tree.
    environment = {**os.environ, "HWLOC_FSROOT": str(root)}
    environment |= {"HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "-x86"}
    assert replace(seen, nodes=nodes) == by_lstopo(environment)
    numbered = [_cpus(core) for core in _objects(lstopo(environment, *SLURMD), "Core")]
    assert [frozenset(core.cpus) for core in SlurmCores(ours).order] == numbered


def test_this_machine_is_what_lstopo_sees() -> None:
    assert by_affinityd(discover(open_tree("/"), None)) == by_lstopo(dict(os.environ))


def _groups(pairs: Iterable[tuple[object, int]]) -> frozenset[CpuSet]:
    groups: dict[object, set[int]] = {}
    for key, cpu in pairs:
        groups.setdefault(key, set()).add(cpu)
    return frozenset(map(frozenset, groups.values()))


def _owned(nodes: dict[int, CpuSet]) -> dict[int, CpuSet]:
    """Give each CPU to its lowest node only: for a node without CPUs hwloc shows a neighbor's."""
    taken: set[int] = set()
    owned = {}
    for number, cpus in sorted(nodes.items()):
        owned[number] = cpus - taken
        taken |= cpus
    return owned


def _objects(root: ET.Element, kind: str) -> Iterator[ET.Element]:
    return (element for element in root.iter("object") if element.get("type") == kind)


def _cpus(element: ET.Element) -> CpuSet:
    """Read hwloc's form of a set: 32-bit words; an empty word is zero."""
    words = element.attrib["cpuset"].split(",")
    return parse_mask("".join(word.removeprefix("0x").rjust(8, "0") for word in words))


def _caches(
    element: ET.Element, cache: CpuSet | None = None, package: CpuSet | None = None
) -> Iterator[CpuSet]:
    """Yield the CPUs of the topmost data cache above each core, or of the core's package."""
    kind = element.get("type", "")
    if kind == "Package":
        package = _cpus(element)
    elif kind.startswith("L") and kind.endswith("Cache") and not kind.endswith("iCache"):
        cache = cache or _cpus(element)
    elif kind == "Core":
        yield cache or package or _cpus(element)
    for child in element.findall("object"):
        yield from _caches(child, cache, package)
