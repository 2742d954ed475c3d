"""The attributes of DRA: Kubernetes' own examples, and its rule read from the kernel's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery import discover, open_tree
from affinityd.topology.document import attributes_of
from affinityd.topology.model import Gpu, Nic, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.sysfs_tree import write_tree

NODES = "sys/devices/system/node"
PACKAGES = {0: "0-3", 1: "4-7"}


def epyc(on: int) -> Topology:
    """The KEP's EPYC 9825, NPS4: 12 between the nodes of a package, 32 between packages."""
    distances = [("0-3", "0-3", 12), ("4-7", "4-7", 12), ("0-3", "4-7", 32)]
    return made({n: f"{n}" for n in range(8)}, [on], packages=PACKAGES, distances=distances)


def nodes(row: str, *packages: int | None, on: int = 0) -> Topology:
    """A machine whose node `on` has these distances; a node without a package has no CPUs."""
    cpus = {node: "" if package is None else f"{node}" for node, package in enumerate(packages)}
    owned = {
        package: ",".join(filter(None, (cpus[n] for n, it in enumerate(packages) if it == package)))
        for package in packages
        if package is not None
    }
    distances = [(f"{on}", f"{to}", int(far)) for to, far in enumerate(row.split()) if to != on]
    return made(cpus, [on], packages=owned, distances=distances)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        pytest.param(epyc(0), (0, 1, 2, 3), id="KEP-6072: an NVMe on node 0"),
        pytest.param(epyc(6), (6, 4, 5, 7), id="KEP-6072: a NIC on node 6"),
        pytest.param(epyc(5), (5, 4, 6, 7), id="KEP-6072: a GPU on node 5"),
        pytest.param(nodes("32 10", 0, 1, on=1), (1,), id="NPS1: the other node is a package"),
        pytest.param(nodes("12 10 12", 0, 0, 0, on=1), (1, 0, 2), id="helper: equidistant nodes"),
        pytest.param(nodes("10", 0), (0,), id="helper: one node"),
        pytest.param(nodes("10 12 12 20", 0, 0, 1, 0), (0, 1), id="helper: same-socket filter"),
        pytest.param(nodes("10 12 12", 0, None, 1), (0, 1), id="a node without CPUs counts"),
        pytest.param(nodes("10 20 12", 0, 0, 1), (0,), id="not the nearest of its own package"),
        pytest.param(made({0: "0", 1: "1"}, [1]), (1,), id="no distances"),
        pytest.param(made({0: "0", 1: "1"}, [None]), None, id="numa_node is -1"),
    ],
)
def test_the_nodes_beside_a_device(topology: Topology, expected: tuple[int, ...] | None) -> None:
    assert attributes_of(topology, topology.gpus[0]).numaNode == expected


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_device_has_what_a_driver_reads_from_the_kernel(name: str, tmp_path: Path) -> None:
    root = write_tree(machine(name), tmp_path)
    found = discover(open_tree(str(root)), None)
    devices: tuple[Gpu | Nic, ...] = (*found.gpus, *found.nics)
    for device in devices:
        assert vars(attributes_of(found, device)) == of_driver(root, device)


def of_driver(root: Path, device: Gpu | Nic) -> dict[str, object]:
    """Return a device's attributes by the kernel's files alone, by the KEP's words."""
    folder = root / "sys/bus/pci/devices" / device.pci_bus_id
    node = int(read(folder / "numa_node") or -1)
    top = folder.resolve().relative_to(root.resolve() / "sys/devices").parts[0]
    return {
        "numaNode": None if node < 0 else (node, *nodes_beside(root, node)),
        "pcieRoot": top if top.startswith("pci") else None,
        "pciBusID": device.pci_bus_id,
    }


def nodes_beside(root: Path, node: int) -> list[int]:
    columns = sorted(parse_list(read(root / NODES / "online")))
    row = read(root / NODES / f"node{node}/distance").split()
    others = {it: int(far) for it, far in zip(columns, row, strict=False) if it != node}
    sockets = {it: socket(root, it) for it in (node, *others)}
    nearest = [it for it, far in others.items() if far == min(others.values())]
    alike = {sockets[node], None}
    return [it for it in nearest if sockets[node] is None or sockets[it] in alike]


def socket(root: Path, node: int) -> int | None:
    cpus = parse_list(read(root / NODES / f"node{node}/cpulist"))
    online = cpus & parse_list(read(root / "sys/devices/system/cpu/online"))
    ids = (root / f"sys/devices/system/cpu/cpu{cpu}/topology" for cpu in sorted(online))
    return next((int(read(it / "physical_package_id")) for it in ids), None)


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def test_only_the_kernels_numa_node_counts() -> None:
    (gpu,) = epyc(6).gpus
    sources = {"numa_node": (6, 4, 5, 7), "NVML": None, "local_cpulist": None}
    placed = {it: attributes_of(epyc(6), replace(gpu, numa_source=it)).numaNode for it in sources}
    assert placed == sources


def test_a_bridge_that_no_source_names_is_no_root() -> None:
    roots = {attributes_of(machine("dgx-a100"), it).pcieRoot for it in machine("dgx-a100").gpus}
    assert roots == {None}
