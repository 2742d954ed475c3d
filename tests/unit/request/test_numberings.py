"""Every numbering between a node and a process: its GPU is the right one, or is said to be unknown.

What is right is found by going the other way: from each order in which the driver may have numbered
the devices that it sees, to the device of an index. If they are not all one device, and not all on
one node, nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinityd.errors import AffinityError, UnsatisfiableError
from affinityd.topology.model import Gpu, MigInstance, Topology
from tests.support.asking import codes, try_to_ask
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, words

UUIDS = [f"GPU-{index}{index}" for index in range(8)]
DGX = machine("dgx-a100")
NODES = {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}


def with_gpus(topology: Topology, **facts: Sequence[object]) -> Topology:
    """Return a machine with the facts of each of its GPUs."""
    gpus = [
        replace(gpu, uuid=UUIDS[place], **{name: each[place] for name, each in facts.items()})  # type: ignore[arg-type]
        for place, gpu in enumerate(topology.gpus)
    ]
    return replace(topology, gpus=tuple(gpus))


TWO_MODELS = ["10de:2330"] * 4 + ["10de:20b0"] * 4
MIG = (MigInstance("MIG-1"), MigInstance("MIG-2"))
MACHINES = {
    "dgx": with_gpus(DGX),
    "reversed": with_gpus(DGX, minor=range(7, -1, -1)),
    "lost": with_gpus(DGX, minor=[0, 1, 2, None, 4, 5, 6, 7]),
    "docker": with_gpus(DGX, minor=[None, None, None, 3, 4, None, None, None]),
    "mixed": with_gpus(DGX, pci_id=TWO_MODELS),
    "alike": with_gpus(DGX, pci_id=TWO_MODELS, numa_node=[3] * 8),
    "mig": with_gpus(DGX, mig=[MIG if index == 5 else () for index in range(8)]),
    "lost and mig": with_gpus(
        DGX,
        minor=[*range(7), None],
        mig=[MIG if index == 5 else () for index in range(8)],
    ),
    "mi250x": with_gpus(machine("mi250x"), render_minor=range(128, 136)),
    "ascend-910b": with_gpus(machine("ascend-910b")),
    "gaudi": with_gpus(made(NODES, [3, 3, 1, 1, 0, 0, 2, 2]), vendor=["1da3"] * 8, minor=range(8)),
    "max": with_gpus(
        made(NODES, [0, 1, 2]),
        vendor=["8086"] * 3,
        pci_id=["8086:0bd5"] * 3,
        minor=[None] * 3,
        render_minor=range(128, 131),
    ),
}
#: An index is not worked out where another is unknown.
LEFT_SOONER = {"lost", "mig", "lost and mig"}
KINDS = {"nvidia": "minor:{}", "huawei": "davinci:{}", "1da3": "accel:{}"}


def file_of(gpu: Gpu) -> int:
    """Return the number of a GPU's device file, of AMD's and Intel's less 128."""
    if gpu.vendor in {"amd", "8086"}:
        return (gpu.render_minor or 0) - 128
    return gpu.index if gpu.minor is None else gpu.minor


def selected(order: list[int], text: str) -> list[int]:
    """Return the devices that a list leaves of those in this order."""
    devices = []
    for entry in text.split(","):
        if entry in UUIDS:
            devices.append(UUIDS.index(entry))
        elif entry.isdigit() and int(entry) < len(order):
            devices.append(order[int(entry)])
        else:
            break
    return devices


#: The visible-device variables that each vendor's driver reads, one after the other.
VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
    "8086": ("ZE_AFFINITY_MASK",),
}


def lists_of(vendor: str, environ: dict[str, str]) -> list[str]:
    """Return the lists that the driver applies."""
    lists = [environ[name] for name in VARIABLES.get(vendor, ()) if environ.get(name)]
    if vendor == "8086":  # the order stays that of the driver, whatever the order of the mask
        lists = [",".join(sorted({tile[0] for tile in mask.split(",")})) for mask in lists]
    return lists


def orders_of(topology: Topology, files: str, environ: dict[str, str]) -> list[list[int]]:
    """Return all orders of GPUs that the process may see, of which it counts one."""
    gpus = topology.gpus
    numbers = [int(number) for number in files.split(",") if number.isdigit()]
    seen = [gpu.index for gpu in gpus if not numbers or file_of(gpu) in numbers]
    if listed := environ.get("NVIDIA_VISIBLE_DEVICES"):
        seen = sorted(selected([gpu.index for gpu in gpus], listed))
    if gpus[0].pci_id == "8086:0bd5" and "ZE_FLAT_DEVICE_HIERARCHY" not in environ:
        seen = [index for index in seen for _tile in range(2)]
    orders = [seen]
    models = {gpus[index].pci_id for index in seen}
    if len(models) > 1 and "CUDA_DEVICE_ORDER" not in environ:  # either may be the faster
        fast_first = sorted(seen, key=lambda index: gpus[index].pci_id != "10de:2330")
        slow_first = sorted(seen, key=lambda index: gpus[index].pci_id != "10de:20b0")
        orders = [fast_first, slow_first]
    if any(gpu.vendor == "nvidia" and gpu.minor is None for gpu in gpus):
        orders.append([index for index in seen if gpus[index].minor is not None])
    mps = environ.get("AFFINITYD_MPS_DEVICES")
    selected_otherwise = environ.get("ONEAPI_DEVICE_SELECTOR", "level_zero:gpu") != "level_zero:gpu"
    is_unknown = mps == "unknown" or "CUDA_MPS_PIPE_DIRECTORY" in environ
    if is_unknown or selected_otherwise or "HABANA_VISIBLE_MODULES" in environ:
        orders += [[index] * len(seen) for index in seen]
    elif mps:  # a list that ends early, or has none of these, is of other devices
        fits = all(len(selected(order, mps)) == mps.count(",") + 1 for order in orders)
        unknown = [[index] * len(seen) for index in seen]
        orders = [selected(order, mps) for order in orders] if fits else [*orders, *unknown]
    for text in lists_of(gpus[0].vendor, environ):
        orders = [selected(order, text) for order in orders]
    divided = [index for index in orders[0] if gpus[index].mig]
    if divided and len(orders[0]) > 1:  # CUDA shows an instance, and no other GPU
        orders.append(divided * len(orders[0]))
    return orders


@pytest.mark.parametrize(("name", "files", "variables"), cases("numberings.tsv"))
def test_a_process_has_the_gpu_that_its_driver_means_or_is_left(
    name: str, files: str, variables: str
) -> None:
    topology = MACHINES[name]
    for index, uuid in enumerate(UUIDS):
        variables = variables.replace(f"${index}", uuid)
    environ = words(variables)
    orders = orders_of(topology, files, environ)
    granted = {}
    if files != "-":
        kind = KINDS.get(topology.gpus[0].vendor, "drm:{}")
        base = 128 if kind.startswith("drm") else 0
        numbers = [int(n) for n in files.split(",") if n.isdigit()] or map(file_of, topology.gpus)
        granted["granted"] = ",".join(kind.format(base + number) for number in numbers)
    for rank in (*range(8), None):
        here = {"LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "8"} if rank is not None else {}
        may_be = {frozenset([order[(rank or 0) % len(order)]]) for order in orders}
        if rank is None:  # it has the CPUs near all that it sees, or that it may see
            seen = {frozenset(order) for order in orders}
            may_be = {gpus for gpus in seen if not any(gpus < others for others in seen)}
        places = {frozenset(topology.gpus[index].numa_node for index in gpus) for gpus in may_be}
        reply = try_to_ask(
            topology, mode="node", **granted, **environ, **here, AFFINITYD_CPUS="none"
        )
        case = (name, files, variables, rank, orders)
        if isinstance(reply, AffinityError):
            assert isinstance(reply, UnsatisfiableError), case
            assert len(places) > 1 or name in LEFT_SOONER, case
            assert str(reply).startswith("it is not known which GPU it uses: "), case
            continue
        assert {frozenset(one.gpu.numa_node for one in reply.ranks)} == places, case
        if "ambiguous_index" not in codes(reply):
            assert {frozenset(one.gpu.index for one in reply.ranks)} == may_be, case
