"""Discovery: a machine's files and NVML's answers, joined to a Topology.

`cpus` and `pci` read kernel folders, `gpus` reads the files of the vendors' drivers, and `nvml`
calls NVIDIA's library. They read only the facts that a plan needs.
"""

# ruff: noqa: PTH112, PTH113, PTH119 - importing pathlib takes longer than reading a machine

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from affinityd.cpuset import format_list
from affinityd.discovery import cpus
from affinityd.discovery.gpus import KFD_NODES, nvidia_addresses, read_driver, read_gpus
from affinityd.discovery.pci import NumaLocator, PciDevice, read_devices, read_nics
from affinityd.discovery.tree import MARK, Tree
from affinityd.errors import FailingFileError, TreeError
from affinityd.linux.files import SCARCE
from affinityd.text import printable
from affinityd.topology.model import Gpu, MigInstance, NumaNode, Topology, cpus_of

if TYPE_CHECKING:
    from affinityd.discovery.nvml import NvmlReport

__all__ = ["Tree", "discover", "open_tree", "snapshot_nvml"]

#: Where a snapshot keeps NVML's answers, beside `sys` and `proc`.
NVML_FILE = "nvml.json"


def open_tree(root: str, node_name: str | None = None) -> Tree:
    """Open `/`, or the folder of a captured machine: the folder's name is the machine's.

    `node_name` is the name of the machine in `/`: in a container uname(2) returns another name.
    Raises TreeError where there is no machine.
    """
    path = os.path.realpath(root)
    if path == "/":
        return Tree("/", node_name or os.uname().nodename, live=True)
    if os.path.isfile(path):
        from shlex import quote  # noqa: PLC0415 - few give an archive

        name = os.path.basename(path).partition(".")[0]  # the folder's name is the machine's
        unpack = f"mkdir {quote(name)} && tar -C {quote(name)} -xf {quote(root)}"
        raise TreeError(f"root {root!r} is no folder; unpack it ({unpack}), and name that folder")
    if not os.path.isdir(f"{path}/{MARK}"):
        raise TreeError(f"root {root!r} holds no machine: {MARK} is not there")
    return Tree(f"{path}/", os.path.basename(path))


def snapshot_nvml(tree: Tree) -> NvmlReport | None:
    """Return NVML's report in a snapshot; None for other trees. Raises TreeError."""
    text = tree.read(NVML_FILE)
    if text is None:
        return None
    from affinityd.discovery.nvml import NvmlReport, read_report  # noqa: PLC0415 - rare

    try:
        return read_report(NvmlReport, text)
    except ValueError as error:
        raise TreeError(f"{NVML_FILE} of machine {tree.name!r} cannot be read: {error}") from None


def discover(tree: Tree, nvml: NvmlReport | None) -> Topology:
    """Read a machine, once. `nvml` is NVML's report; None: NVML was not called.

    Parts that a tree lacks are missing in the topology, and named in its notices. Raises TreeError
    if no CPU is found, FailingFileError where a file cannot be read: without that file a GPU could
    seem to be on another node, or to be another GPU.
    """
    tree.broken.clear()
    online = cpus.read_online(tree)
    if not online:
        _check(tree)
        raise TreeError(f"machine {tree.name!r} has no online CPU in {MARK}")
    nodes = cpus.read_nodes(tree)
    node_of_cpu = cpus.read_node_of_cpu(tree, nodes, online)
    cores = cpus.read_cores(tree, online, node_of_cpu)
    driver_gpus = read_driver(tree)
    devices = read_devices(tree, nvidia_addresses(driver_gpus, nvml))
    locator = NumaLocator(tree, {node.number for node in nodes}, online, node_of_cpu)
    gpus, gpu_notices = read_gpus(tree, devices, driver_gpus, nvml)
    placed = tuple(_placed(gpus, devices, locator, nvml))
    notices = []
    unlisted = cpus_of(core for core in cores if core.node is None)
    if not nodes:
        notices.append("The kernel shows no NUMA nodes: all CPUs are treated as one node")
    elif unlisted:
        listed = format_list(unlisted)
        notices.append(f"CPUs {listed} are in no NUMA node: treated as one node, far from others")
    notices += gpu_notices
    if not placed:
        said = nvml and nvml.said
        notices.append(f"No GPU was found; {said}" if said else "No GPU was found")
    unknown = ", ".join(gpu.pci_bus_id for gpu in placed if gpu.numa_node is None)
    if unknown:
        hidden = ""
        if len(nodes) == 1:
            hidden = "; it shows one node, as a virtual machine that hides a second socket does"
        text = f"The machine does not say on which NUMA node these GPUs are: {unknown}{hidden}"
        notices.append(text)
    nics = tuple(read_nics(tree, devices, locator))
    possible = cpus.read_possible(tree, online)
    _check(tree)
    for path, error in sorted(tree.broken.items()):
        notices.append(f"/{path} could not be read: {error.strerror}")
    return Topology(
        name=printable(tree.name),
        cores=cores,
        nodes=(*nodes, NumaNode(None)) if unlisted else nodes,
        gpus=placed,
        nics=nics,
        possible=possible,
        notices=tuple(map(printable, notices)),
    )


def _check(tree: Tree) -> None:
    """Raise FailingFileError if a file could not be read.

    Two kinds of files may fail: those of an RDMA port, which then counts as down, and KFD's files
    in a container, where EPERM hides the GPUs of other containers.
    """
    for path, error in sorted(tree.broken.items()):
        is_port = "/ports/" in path or "/port/" in path
        is_hidden = path.startswith(KFD_NODES) and error.errno == errno.EPERM
        if error.errno in SCARCE or not (is_port or is_hidden):
            raise FailingFileError(f"/{path}: {error.strerror}")


def _placed(
    gpus: Sequence[Gpu],
    devices: Sequence[PciDevice],
    locator: NumaLocator,
    nvml: NvmlReport | None,
) -> Iterator[Gpu]:
    """Yield the GPUs with their NUMA nodes, and how each node was found."""
    device_at = {device.address: device for device in devices}
    listed = {gpu.pci_bus_id: gpu for gpu in (nvml and nvml.gpus) or ()}
    for gpu in gpus:
        by_nvml = listed.get(gpu.pci_bus_id)
        near = by_nvml.node_cpus if by_nvml else frozenset()
        node, source = locator.locate(device_at[gpu.pci_bus_id], near)
        yield replace(
            gpu,
            numa_node=node,
            numa_source=source,
            model=gpu.model and printable(gpu.model),
            uuid=gpu.uuid and printable(gpu.uuid),
            mig=tuple(MigInstance(printable(instance.uuid)) for instance in gpu.mig),
        )
